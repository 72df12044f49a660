"""A program that goes on by itself from a file of its own, so that a worker that comes later would make fewer loops: it
is refused before any harm, with the variable, the file and the cure."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from cast import Cast
from faults import FaultPlan
from play import Play
from programs import EPOCHS, epoch, network, rows, sgd
from test_programs import DAILY, job, wait_at, worker

from ringleader.train import Session

AGAIN = "again"
"""A file in the folder that the second attempt finds."""


def resuming(session: Session) -> None:
    """As scripts have it at the top of a training function."""
    file = Path(session.params["place"]) / "ckpt.pt"
    net = session.model(network())
    sgd(session, net)
    start_epoch = 0
    if file.exists():
        start_epoch = torch.load(file)["epoch"]
    for number in range(start_epoch, EPOCHS):
        epoch(session, net, rows())
        if session.is_main:
            torch.save({"epoch": number + 1}, file)


def shorter_each_time(session: Session) -> None:
    """Without a variable that tells: an attempt makes as many loops as the folder says."""
    net = session.model(network())
    sgd(session, net)
    for _ in range(1 if (Path(session.params["place"]) / AGAIN).exists() else EPOCHS):
        epoch(session, net, rows())


def reading(session: Session) -> None:
    """Reads at its top what nobody changes."""
    count = len(Path(__file__).read_text()[:0]) + EPOCHS
    net = session.model(network())
    sgd(session, net)
    for _ in range(count):
        epoch(session, net, rows())


def played(mode: str, train: Callable[[Session], None], faults: FaultPlan, place: Path, attempt: int) -> Play:
    spec = job(mode, least=2, most=2).model_copy(update={"params": {"place": str(place)}})
    return Cast(spec, train, faults, place, attempt=attempt, checkpoints=str(place / "saved")).play()


def resumed(mode: str, train: Callable[[Session], None], place: Path) -> Play:
    """The second attempt, behind a pause in the last loop."""
    first = played(mode, train, wait_at(FaultPlan().pause(at_step=12), mode, 12), place, 1)
    assert first.outcome == "paused"
    (place / AGAIN).touch()
    return played(mode, train, FaultPlan(), place, 2)


@pytest.mark.parametrize("mode", DAILY)
def test_a_resume_that_reads_the_run_s_own_file_is_refused_with_variable_file_and_cure(
    mode: str, tmp_path: Path
) -> None:
    play = resumed(mode, resuming, tmp_path)
    assert (play.outcome, play.reason) == ("failed", "entrypoint_raised")
    assert "start_epoch (test_own_resume.py:" in play.message
    assert f"has read {tmp_path}/ckpt.pt (test_own_resume.py:" in play.message
    assert "init_from" in play.message


@pytest.mark.parametrize("mode", DAILY)
def test_so_is_a_worker_that_comes_for_a_lost_one(mode: str, tmp_path: Path) -> None:
    faults = FaultPlan().kill(worker(mode, 1), at_step=10)
    play = played(mode, resuming, faults, tmp_path, 1)
    assert play.outcome == "failed"
    assert "start_epoch (test_own_resume.py:" in play.message
    assert f"has read {tmp_path}/ckpt.pt" in play.message


@pytest.mark.parametrize("mode", DAILY)
def test_a_program_that_ends_before_calls_that_are_over_fails(mode: str, tmp_path: Path) -> None:
    play = resumed(mode, shorter_each_time, tmp_path)
    assert play.outcome == "failed"
    assert "the program ended after 1 session calls on this worker, and 3 are over" in play.message


def test_what_the_top_reads_and_nothing_has_changed_is_no_matter(tmp_path: Path) -> None:
    play = resumed("ring", reading, tmp_path)
    assert play.outcome == "succeeded", play.message
    assert {end.reproducible_why for end in play.finished.values()} == {""}
