"""Rows that go by training: each slice is read at its own step, whoever computes it."""

import importlib
import os
from collections.abc import Callable
from functools import partialmethod
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from test_leaving import IN_STEP, job, made, rows
from threaded_cast import ThreadedCast
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import Dataset, TensorDataset
from undisturbed import undisturbed

from ringleader.train import Session
from ringleader.train.local import run_local
from ringleader.train.rows.reading_ahead import may_read_ahead

torch.set_num_threads(1)
OTHER_FILE = """
import os
LEVEL = 1.0
def lower():
    global LEVEL
    LEVEL = 0.5
def collate(items):
    return items[0] * LEVEL
def by_environment(items):
    return items[0] * float(os.environ["LEVEL"])
"""


class Scaled(Dataset[tuple[Tensor, Tensor]]):
    """Rows times what a function says when they are read."""

    def __init__(self, scale: Callable[[Tensor], Any]) -> None:
        self.rows, self.scale = rows(), scale

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, row: int) -> tuple[Tensor, Tensor]:
        x, y = self.rows[row]
        return x * self.scale(x), y


def epochs(session: Session, net: nn.Module, data: Any, **how: Any) -> None:
    for _ in range(2):
        for x, y in session.batches(data, **how):
            session.step(F.cross_entropy(net(x), y))


def by_the_step(session: Session) -> None:
    epochs(session, made(session), Scaled(lambda _: 1 - session.global_step / 32))


def by_the_loss(session: Session) -> None:
    epochs(session, made(session), Scaled(lambda _: 1 + (session.loss or 0.0)))


def by_the_weights(session: Session) -> None:
    net = made(session)

    def scale(x: Tensor) -> Tensor:
        with torch.no_grad():
            return 1 + net[0](x).tanh()[0]

    epochs(session, net, Scaled(scale))


def by_a_collate(session: Session) -> None:
    def collate(items: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
        x, y = (torch.stack(part) for part in zip(*items, strict=True))
        return x * (1 - session.global_step / 32), y

    epochs(session, made(session), rows(), collate=collate)


def by_a_callback(session: Session) -> None:
    level = SimpleNamespace(value=1.0)
    session.on_commit(lambda: setattr(level, "value", 1 - session.global_step / 32))
    epochs(session, made(session), Scaled(lambda _: level.value))


def by_lines_after_a_step(session: Session) -> None:
    net, level = made(session), SimpleNamespace(value=1.0)
    data = Scaled(lambda _: level.value)
    for _ in range(2):
        for step in session.steps(data):
            for x, y in step:
                session.step(F.cross_entropy(net(x), y))
            level.value = 1 - session.global_step / 32


def by_an_enclosing_variable(session: Session) -> None:
    level = 1.0

    def lower() -> None:
        nonlocal level
        level = 1 - session.global_step / 32

    session.on_commit(lower)
    epochs(session, made(session), Scaled(lambda _: level))


def by_an_attribute_of_a_class(session: Session) -> None:
    class Own:
        level = 1.0

    def lower() -> None:
        Own.level = 1 - session.global_step / 32

    session.on_commit(lower)
    epochs(session, made(session), Scaled(lambda _: Own.level))


def by_a_function_that_is_put_in(session: Session) -> None:
    scale: Callable[[Tensor], Any] = torch.ones_like

    def soften() -> None:
        nonlocal scale
        scale = torch.tanh if session.global_step % 4 > 1 else torch.ones_like

    session.on_commit(soften)
    epochs(session, made(session), Scaled(lambda x: 1 - scale(x)))


PROGRAMS = [
    by_the_step,
    by_the_loss,
    by_the_weights,
    by_a_collate,
    by_a_callback,
    by_an_enclosing_variable,
    by_an_attribute_of_a_class,
    by_a_function_that_is_put_in,
    by_lines_after_a_step,
]


@pytest.mark.parametrize(
    "sync", [IN_STEP["ring"], IN_STEP["servers"], IN_STEP["local_sgd"]], ids=lambda s: s["intra_node"]
)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_rows_that_go_by_training_keep_their_bits(
    program: Callable[[Session], None], sync: dict[str, Any], tmp_path: Path
) -> None:
    play = ThreadedCast(job(sync), program, artifacts=tmp_path).play()
    finished, _ = undisturbed(job(sync), program)
    assert play.outcome == "succeeded", (play.reason, play.message)
    assert play.worlds == [3]
    assert play.digest == finished.digest


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_rows_that_go_by_training_are_named_where_processes_load_them(
    program: Callable[[Session], None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The processes would go on with the state of their start, which is another one on a worker that comes in late."""
    for name in ("batches", "steps"):
        monkeypatch.setattr(Session, name, partialmethod(getattr(Session, name), loader_workers=1))
    finished, _ = run_local(job(IN_STEP["ring"]), program, tmp_path)
    name = "collate" if program is by_a_collate else "data"
    assert f"{name} (test_reading_ahead.py:" in finished.reproducible_why
    assert "its loading processes" in finished.reproducible_why


def test_rows_that_go_by_nothing_of_training_are_not_named(tmp_path: Path) -> None:
    def program(session: Session) -> None:
        net, data = made(session), Scaled(lambda _: 1 + torch.rand(()))
        data.session = session  # in reach, and not read
        epochs(session, net, data, loader_workers=1)
        for step in session.steps(data, loader_workers=1):
            for x, y in step:
                session.step(F.cross_entropy(net(x), y))

    finished, recorded = run_local(job(IN_STEP["ring"]), program, tmp_path)
    assert not finished.reproducible_why
    assert not [data for kind, data in recorded.events if kind in ("warning", "program.differs")]


def test_other_rows_are_read_while_sums_travel() -> None:
    net, session = nn.Linear(5, 2), object()
    held: Any = SimpleNamespace(models=[net], optimizers=[], schedulers=[], kept={}, callbacks=[lambda: net])
    items = [(torch.zeros(5), 0)] * 5000
    assert may_read_ahead((rows(), None), session, held)
    assert may_read_ahead((items, torch.stack), session, held)
    assert may_read_ahead((Scaled(lambda x: x.mean()), None), session, held)
    assert not may_read_ahead((Scaled(lambda _: session), None), session, held)
    assert not may_read_ahead((TensorDataset(torch.zeros(3)), lambda items: net.weight), session, held)


def set_in_the_environment() -> None:
    os.environ["LEVEL"] = "2"


def test_what_a_hook_or_another_file_sets_is_read_at_its_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hook of the optimizer, and functions of a file that is named as a whole."""
    (tmp_path / "levels_of_rows.py").write_text(OTHER_FILE)
    monkeypatch.syspath_prepend(tmp_path)
    other = importlib.import_module("levels_of_rows")
    net, session, level = nn.Linear(5, 2), object(), SimpleNamespace(value=1.0)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def ahead(sources: tuple[Any, ...], *callbacks: Callable[[], Any]) -> bool:
        held: Any = SimpleNamespace(
            models=[net], optimizers=[(optimizer, None)], schedulers=[], kept={}, callbacks=callbacks
        )
        return may_read_ahead(sources, session, held)

    by_value, by_file = (
        (Scaled(lambda _: level.value), None),
        (rows(), lambda items: other.collate(items[:1])),
    )
    assert ahead(by_value)
    optimizer.register_step_post_hook(lambda *_: setattr(level, "value", 2.0))
    assert not ahead(by_value)
    assert ahead(by_file, lambda: None)
    assert not ahead(by_file, lambda: [other.lower()])
    assert not ahead((rows(), other.collate), lambda: setattr(other, "LEVEL", 2.0))
    assert not ahead((rows(), other.by_environment), set_in_the_environment)
