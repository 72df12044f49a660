"""Attributes that a turn reads before it sets them are told by name and line, wherever a turn changes them; those that
it sets first are nobody's concern."""

from pathlib import Path

import attributes
import pytest
import torch
from attributes import HANDED_ON, MADE_OF_WEIGHTS, PASSING, stopped_by_an_object
from cast import Cast
from faults import FaultPlan
from programs import Program
from test_carried import SPEC
from test_programs import ALL, MOMENTS, keeps_its_bits

from ringleader.train.local import run_local


def line_of(text: str) -> str:
    lines = Path(attributes.__file__).read_text().splitlines()
    return f"attributes.py:{[line.strip() for line in lines].index(text) + 1}"


@pytest.mark.parametrize("program", HANDED_ON, ids=lambda program: program.__name__)
def test_an_attribute_that_a_later_turn_goes_on_from_is_told_by_name_and_line(
    program: Program, tmp_path: Path
) -> None:
    torch.set_num_threads(1)
    name, text = HANDED_ON[program]
    finished, recorded = run_local(SPEC, program, tmp_path)
    told = [(data["variable"], data["line"]) for kind, data in recorded.events if kind == "program.differs"]
    assert told == [(name, line_of(text))]
    assert name in finished.reproducible_why


@pytest.mark.parametrize("moment", ["kill-4", "pause-6"])
@pytest.mark.parametrize("name", MADE_OF_WEIGHTS)
def test_what_a_first_turn_keeps_of_the_weights_is_told_once_somebody_makes_it_anew(
    name: str, moment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = MADE_OF_WEIGHTS[name]
    monkeypatch.setitem(ALL, program.__name__, program)
    last = MOMENTS[moment].play(program.__name__, "ring", tmp_path)[-1]
    assert last.outcome == "succeeded", (last.reason, last.message)
    assert {(name in end.reproducible_why, end.reproducible) for end in last.finished.values()} == {
        (True, False)
    }


@pytest.mark.parametrize("moment", ["pause-6", "kill-9"])
@pytest.mark.parametrize("mode", ["ring", "local_sgd"])
def test_what_lines_between_loops_keep_in_an_object_is_no_turn_s(
    mode: str, moment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ALL, "stopped_by_an_object", stopped_by_an_object)
    keeps_its_bits("stopped_by_an_object", mode, moment, tmp_path)


@pytest.mark.parametrize("name", PASSING)
def test_workers_may_differ_in_what_each_turn_sets_first(name: str, tmp_path: Path) -> None:
    torch.set_num_threads(1)
    alone, _ = run_local(SPEC, PASSING[name], tmp_path / "alone")
    play = Cast(SPEC, PASSING[name], FaultPlan().kill("w1", at_step=7), artifacts=tmp_path).play()
    assert play.outcome == "succeeded", (play.reason, play.message)
    assert (
        {finished.reproducible_why for finished in play.finished.values()} == {""} == {alone.reproducible_why}
    )
    assert play.digest == alone.digest
