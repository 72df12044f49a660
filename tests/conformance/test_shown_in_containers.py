"""What a body puts into lists and dicts to show it is no state, whoever has them and however it gets there; the same
list or dict is told where a loss or a rate goes by it."""

import importlib
import json
from dataclasses import dataclass
from pathlib import Path

import pytest
from forks import processes
from test_carried import SPEC, warned
from test_check import run

from ringleader.spec import JobSpec
from ringleader.train.local import run_local

TEXT = """
from dataclasses import dataclass, field
from types import SimpleNamespace

from programs import EPOCHS, network, rows, sgd
from torch import nn
from torch.nn import functional as F

{defined}

def train(session):
    net = session.model(network())
    optimizer = sgd(session, net)
    {made}
    for _ in range(EPOCHS):
        for x, y in session.batches(rows()):
            loss = F.cross_entropy(net(x), y)
            session.step(loss * {weight})
            {put}
        {behind}
"""


@dataclass(frozen=True)
class Shape:
    """A way in which a body keeps a number.

    Attributes:
        name: the variable or attribute that is told where the number has a say.
        read: an expression that reads it.
    """

    name: str
    defined: str
    made: str
    put: str
    read: str

    def text(self, *, weight: str = "1", behind: str) -> str:
        """The text of a program.

        Args:
            weight: what its losses are multiplied with.
            behind: a line behind the loop. Both may have `{}`, for what reads the number.
        """
        return TEXT.format(
            defined=self.defined,
            made=self.made,
            put=self.put,
            weight=weight.format(self.read),
            behind=behind.format(self.read),
        )


TRAINER = """
class Trainer:
    def __init__(self):
        self.logs = {"loss": 0.0}

class Logger:
    def __init__(self, trainer):
        self.trainer = trainer

    def log(self, name, value):
        self.trainer.logs[name] = value
"""
RECORD = """
@dataclass
class Record:
    values: dict = field(default_factory=lambda: {"loss": 0.0})
"""
APPENDING = """
def put(state, name, value):
    state.history[name].append(value)
"""
SETTING = """
def put(logs, name, value):
    logs[name] = value
"""
LISTING = """
def put(losses, value):
    losses.append(value)
"""
SHAPES = {
    "another object's item": Shape(
        "logs",
        TRAINER,
        "trainer = Trainer(); logger = Logger(trainer)",
        "logger.log('loss', loss.item())",
        "trainer.logs['loss']",
    ),
    "a namespace's item": Shape(
        "metrics",
        "",
        "state = SimpleNamespace(metrics={'loss': 0.0})",
        "state.metrics['loss'] = loss.item()",
        "state.metrics['loss']",
    ),
    "a dataclass's item": Shape(
        "values", RECORD, "record = Record()", "record.values['loss'] = loss.item()", "record.values['loss']"
    ),
    "a list in another object's dict": Shape(
        "history",
        APPENDING,
        "state = SimpleNamespace(history={'loss': []})",
        "put(state, 'loss', loss.item())",
        "len(state.history['loss'])",
    ),
    "an item by keyword": Shape(
        "logs", "", "logs = {'loss': 0.0}", "logs.update(loss=loss.item())", "logs['loss']"
    ),
    "a list by setdefault": Shape(
        "logs",
        "",
        "logs = {}",
        "logs.setdefault('loss', []).append(loss.item())",
        "len(logs.get('loss', ()))",
    ),
    "an item of a dict that is given": Shape(
        "logs", SETTING, "logs = {'loss': 0.0}", "put(logs, 'loss', loss.item())", "logs['loss']"
    ),
    "a list that is given": Shape(
        "losses", LISTING, "losses = []", "put(losses, loss.item())", "len(losses)"
    ),
}
KEPT = pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)


def told_alone(text: str, place: Path) -> list[str]:
    """What a run alone tells of the program: its reason not to have the same bits, and warnings."""
    (place / f"{place.name}_kept.py").write_text(text)
    program = importlib.import_module(f"{place.name}_kept").train
    finished, recorded = run_local(SPEC, program, place / "alone")
    return [told for told in (finished.reproducible_why, *warned(recorded)) if told]


def told_by_check(place: Path) -> set[str]:
    """The variables that the check of the same program tells."""
    spec = JobSpec.parse(
        SPEC.model_dump(mode="json", exclude_unset=True) | {"entrypoint": f"{place.name}_kept:train"}
    )
    for which in ("first", "again"):
        process = processes().Process(target=run, args=(spec, place, which))
        process.start()
        process.join()
    found = [each for which in ("first", "again") for each in json.loads((place / which).read_text())]
    return {each["variable"].rpartition(".")[2] for each in found}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder from which programs are imported."""
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


@KEPT
def test_what_is_only_printed_is_told_nowhere(shape: Shape, place: Path) -> None:
    assert told_alone(shape.text(behind="print({})"), place) == []
    assert told_by_check(place) == set()


@KEPT
def test_what_a_later_turn_s_loss_goes_by_is_told(shape: Shape, place: Path) -> None:
    told = told_alone(shape.text(weight="(1 + 0.001 * {})", behind="pass"), place)
    assert any(shape.name in each for each in told)


@KEPT
def test_what_a_rate_is_set_by_behind_the_loop_is_told(shape: Shape, place: Path) -> None:
    told_alone(shape.text(behind="optimizer.param_groups[0]['lr'] = 0.05 / (1 + {})"), place)
    assert shape.name in told_by_check(place)
