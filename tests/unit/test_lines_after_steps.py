"""What lines after a step leave to later ones, and what a program changes in its process, by its text."""

import importlib
import os
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from ringleader.program_text.loop_bodies import SourceText
from ringleader.program_text.variables.lines_after_steps import left_to_later_steps, process_changes
from ringleader.train.between_calls.objects.process_settings import process_settings
from ringleader.train.between_calls.value_fingerprints import ValueReader
from ringleader.train.state.training_state import TrainingState

LOOP = """
class Net:
    def forward(self, x):
        self.features = x
        return x
def train(session):
    net, task, noise = session.model(Net()), Task(), 1.0
    def anneal():
        task.rate = task.rate * 0.9
    def turn(x):
        task.seen = x
        return x
    for step in session.steps(rows):
        for x, y in step:
            session.step(task.loss(net(turn(x)) * noise, y) * task.rate)
        {}
"""


def left(lines: str) -> set[str]:
    return {name for _, name in left_to_later_steps(SourceText(LOOP.format(lines)))}


@pytest.mark.parametrize(
    ("lines", "names"),
    [
        ("if session.global_step == 6: task.loss = focal", {".loss"}),
        ("if session.global_step == 6: noise = 0.5", {"noise"}),
        ("task.weights.append(session.loss)", {".weights"}),
        ("task.rate *= 0.9", {".rate"}),
        ("anneal()", {".rate"}),
        ("noise = 1 / session.global_step", set()),
        ("task.loss = focal if session.global_step > 5 else plain", set()),
        ("if session.loss > 1: task.loss = focal\n        else: task.loss = plain", set()),
        ("if session.is_main: print(session.loss)", set()),
        ("if session.global_step == 6: task.seen = None", set()),
        ("if session.global_step == 6: net.features = None", set()),
    ],
)
def test_what_lines_of_a_step_change_but_not_in_each_anew_is_left_to_later_ones(
    lines: str, names: set[str]
) -> None:
    assert left(lines) == names


OTHER = """
def other(session):
    for x, y in session.batches(rows):
        task.loss = plain
        session.step(task.loss(net(x), y))
"""


def test_what_bodies_of_another_program_of_the_file_set_is_left_all_the_same() -> None:
    source = LOOP.format("if session.global_step == 6: task.loss = focal")
    together = f"{source}\n        other(session)\n"
    found = [
        {name for _, name in left_to_later_steps(SourceText(each + OTHER))} for each in (source, together)
    ]
    assert found == [{".loss"}, set()]


def test_a_variable_that_each_step_sets_anew_is_no_step_s_to_a_later_one() -> None:
    anew, own = (SourceText(LOOP.format(f"noise {sign} 0.5")) for sign in ("=", "*="))
    assert [{key[1] for key in text.by_steps} for text in (anew, own)] == [set(), {"noise"}]


PROCESS = """
import os, torch
from torch.nn import functional as F
os.environ["TOP"] = "1"
def train(session):
    os.environ["RANK"] = str(session.position)
    for step in session.steps(rows):
        for x, y in step:
            session.step(F.cross_entropy(net(x), y) * float(os.environ.get("LEVEL", 1)) * int(os.environ["RANK"]))
        if session.global_step == 6:
            os.environ["LEVEL"] = "2"
            os.environ["UNREAD"] = "3"
            F.cross_entropy = smooth
            torch.set_default_dtype(torch.float64)
            task.loss = smooth
"""


def test_what_loops_change_in_the_process_is_found_where_it_is_read() -> None:
    found = {change.place for change in process_changes(SourceText(PROCESS))}
    assert found == {"os.environ['LEVEL']", "F.cross_entropy", "torch.set_default_dtype"}


ROWS = """
LEVEL, SEEN, AUGMENT = 1.0, 0, abs
def collate(items):
    return AUGMENT(items[0]) * LEVEL
"""
OF_ROWS = """
import rows_of_a_program
def harden():
    rows_of_a_program.AUGMENT = print
def train(session):
    rows_of_a_program.UNREAD = 0
    session.on_commit(lower)
    for step in session.steps(rows, collate=rows_of_a_program.collate):
        for x, y in step:
            rows_of_a_program.SEEN = len(x)
            session.step(net(x))
        if session.global_step == 6:
            harden()
            rows_of_a_program.UNREAD = 1
def lower():
    rows_of_a_program.LEVEL = 0.5
"""


def test_globals_that_another_file_of_the_program_sets_are_told_where_they_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, source in {"rows_of_a_program": ROWS, "program": OF_ROWS}.items():
        (tmp_path / f"{name}.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module("rows_of_a_program")
    names = [(str(tmp_path / "program.py"), {"rows_of_a_program": module})]
    told = {name: text for name, text, _ in process_settings(names, ValueReader(TrainingState(), {}))}
    assert told == {"rows_of_a_program.AUGMENT": "builtins.abs", "rows_of_a_program.LEVEL": "1.0"}


def test_settings_of_the_process_are_told_by_what_they_are_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "program.py"
    file.write_text(PROCESS)
    reader = ValueReader(TrainingState(), {})

    def told() -> dict[str, str]:
        return {name: text for name, text, _ in process_settings([(str(file), {"F": F, "os": os})], reader)}

    before = told()
    monkeypatch.setenv("LEVEL", "2")
    monkeypatch.setattr(F, "cross_entropy", F.nll_loss)
    torch.set_default_dtype(torch.float64)
    try:
        after = told()
    finally:
        torch.set_default_dtype(torch.float32)
    assert {name for name in before if before[name] != after[name]} == set(before) == set(after)
    assert len(before) == 3
