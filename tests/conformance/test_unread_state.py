"""What a program keeps in objects of objects, classes, iterators, or for functions that run with each step is named
where it is not the same for all; and where members differed while they computed steps the result says so."""

from array import array
from pathlib import Path
from typing import Any

import pytest
import torch
from cast import Cast
from faults import FaultPlan
from programs import Program, epoch, norm_free, rows, sgd
from test_carried import SPEC
from test_programs import ALL, DAILY, MOMENTS, keeps_its_bits
from unread_state import BY_ROWS, BY_STEPS, HARMLESS, ONE_LOOP

from ringleader.train import Session


def name_of(program: Program) -> str:
    return program.__name__


@pytest.mark.parametrize("program", BY_ROWS, ids=name_of)
def test_what_is_made_of_a_worker_s_rows_is_named_wherever_it_is_kept(
    program: Program, tmp_path: Path
) -> None:
    play = Cast(SPEC, program, FaultPlan(), artifacts=tmp_path).play()
    assert play.outcome == "succeeded", (play.reason, play.message)
    assert BY_ROWS[program] in [data["variable"] for data in play.reported("program.differs")]
    assert {end.reproducible for end in play.finished.values()} == {False}


@pytest.mark.parametrize("moment", ["kill-5", "pause-8"])
@pytest.mark.parametrize("program", BY_STEPS, ids=name_of)
def test_what_a_function_keeps_that_runs_with_each_step_is_named_once_somebody_lacks_it(
    program: Program, moment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ALL, program.__name__, program)
    plays = MOMENTS[moment].play(program.__name__, "ring", tmp_path)
    last = plays[-1]
    assert last.outcome == "succeeded", (last.reason, last.message)
    told = [data["variable"] for play in plays for data in play.reported("program.differs")]
    assert BY_STEPS[program] in told
    assert {end.reproducible for end in last.finished.values()} == {False}


@pytest.mark.filterwarnings("ignore:.*weight_norm.* is deprecated:FutureWarning")
@pytest.mark.parametrize("moment", ["kill-4", "pause-6"])
@pytest.mark.parametrize("mode", DAILY)
@pytest.mark.parametrize("name", HARMLESS)
def test_what_is_shown_only_or_made_alike_keeps_its_bits(
    name: str, mode: str, moment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ALL, name, HARMLESS[name])
    keeps_its_bits(name, mode, moment, tmp_path)


def clamped_by_an_unread_count(session: Session) -> None:
    """Of an array of the standard library nothing is compared."""
    net, count = session.model(norm_free()), array("i", [0])
    optimizer = sgd(session, net)

    @torch.no_grad()
    def clamp(*_: Any) -> None:
        count[0] += 1
        if count[0] % 4 == 0:
            for weight in net.parameters():
                weight.clamp_(-0.2, 0.2)

    optimizer.register_step_post_hook(clamp)
    epoch(session, net, rows(count=ONE_LOOP))


def test_members_that_differed_while_they_computed_steps_say_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are made alike, but gradients of other weights are in those of all."""
    name = clamped_by_an_unread_count.__name__
    monkeypatch.setitem(ALL, name, clamped_by_an_unread_count)
    (play,) = MOMENTS["kill-5"].play(name, "ring", tmp_path)
    assert play.outcome == "succeeded", (play.reason, play.message)
    assert play.reported("member.differed")
    assert {
        ("differed while they computed steps" in end.reproducible_why) for end in play.finished.values()
    } == {True}
