"""The token ring on real processes: whoever is lost, each row is in the weights once, and all end with the same."""

from pathlib import Path
from typing import Any

import pytest
from cast import Cast
from faults import ANY, FaultPlan
from integration.test_group_faults import EPOCHS, ROWS, STEPS, job, register, rows, train
from play import Play
from torch.nn import functional as F

from ringleader.spec import JobSpec
from ringleader.train import Session

TOKENS = {"intra_node": "token_ring", "inter_node": "token_ring"}


def ring(sync: dict[str, Any] | None = None, **changes: Any) -> JobSpec:
    return job(sync=TOKENS | (sync or {}), **changes)


def check(play: Play) -> None:
    """The promises that hold whatever happened; `digest` says that all members ended with the same bits."""
    assert play.outcome == "succeeded", (play.reason, play.message)
    assert play.digest
    assert [step for step, _ in play.values] == list(range(1, STEPS + 1))
    assert [step for step, _, _ in play.rows] == list(range(1, STEPS + 1))
    for epoch in range(EPOCHS):
        taken = [row for step, _, row in play.settled_rows() if epoch * 5 < step <= (epoch + 1) * 5]
        assert sorted(taken) == list(range(ROWS))
    for finished in play.finished.values():
        assert (finished.steps, finished.samples) == (STEPS, EPOCHS * ROWS)
        assert not finished.reproducible
        assert "token_ring" in finished.reproducible_why
    assert len({(f.loss, f.scores["accuracy"]) for f in play.finished.values()}) == 1


@pytest.mark.parametrize(
    "sync", [{}, {"tokens": 7}, {"staleness": 0}, {"tokens": 1, "staleness": 1}], ids=str
)
@pytest.mark.parametrize("world", [1, 2, 3])
def test_an_undisturbed_group_takes_every_row_once(tmp_path: Path, world: int, sync: dict[str, Any]) -> None:
    play = Cast(ring(sync, workers={"min": 1, "max": world}), train, artifacts=tmp_path).play()
    check(play)
    assert play.worlds == [world]


@pytest.mark.parametrize("victim", ["w0", "w2"])
@pytest.mark.parametrize(
    ("phase", "past"), [("forward", 1), ("forward", 6), ("exchange", 0), ("committed", 0), ("committed", 6)]
)
def test_a_killed_worker_costs_no_row(tmp_path: Path, victim: str, phase: str, past: int) -> None:
    faults = FaultPlan().kill(victim, at_step=ANY, phase=phase, past=past)
    play = Cast(ring(), train, faults, tmp_path).play()
    check(play)
    assert play.worlds[:2] == [3, 2]
    assert [lost["worker"] for lost in play.reported("worker.lost")] == [victim]
    assert [lost["worker"] for lost in play.reported("worker.lost")] == [victim]


LEVELS = {
    "token_ring/ring": ("w0", {"w2": 1}),
    "token_ring/parameter_server": ("w1", {"w3": 1}),
    "parameter_server/token_ring": ("w1", {"w3": 1}),
}
"""The first worker, and who lives elsewhere: two workers share a node and memory, with the server if there is one."""


@pytest.mark.parametrize("name", LEVELS)
def test_two_levels_take_every_row_once_when_a_first_worker_is_killed(tmp_path: Path, name: str) -> None:
    inter, _, intra = name.partition("/")
    victim, nodes = LEVELS[name]
    faults = FaultPlan().kill(victim, at_step=ANY, phase="forward", past=1)
    spec = job(sync={"inter_node": inter, "intra_node": intra})
    play = Cast(spec, train, faults, tmp_path, nodes).play()
    check(play)
    assert [lost["worker"] for lost in play.reported("worker.lost")] == [victim]


def test_two_killed_one_of_them_in_the_recovery_cost_no_row(tmp_path: Path) -> None:
    faults = FaultPlan().kill("w0", at_step=ANY, phase="forward", past=3)
    faults = faults.kill("w2", at_step=ANY, phase="parked", past=1)
    play = Cast(ring(), train, faults, tmp_path).play()
    check(play)
    assert {lost["worker"] for lost in play.reported("worker.lost")} == {"w0", "w2"}


def test_a_replacement_takes_part(tmp_path: Path) -> None:
    faults = FaultPlan().kill("w1", at_step=ANY, phase="forward", past=2)
    faults = faults.hold("w0", at_step=ANY, phase="forward", past=8, for_generation=3)
    play = Cast(ring(), train, faults, tmp_path).play()
    check(play)
    assert play.worlds == [3, 2, 3]


def test_resizes_up_and_down_lose_nobody_and_no_row(tmp_path: Path) -> None:
    faults = (
        FaultPlan()
        .resize(at_step=2, workers_min=4, workers_max=4)
        .hold("w0", at_step=ANY, phase="forward", past=16, for_generation=2)
        .resize(at_step=7, workers_min=2, workers_max=2)
        .hold("w0", at_step=9, phase="committed", for_generation=3)
        .resize(at_step=12, workers_min=3, workers_max=3)
        .hold("w0", at_step=13, phase="committed", for_generation=4)
    )
    play = Cast(ring(workers={"min": 1, "max": 1}), train, faults, tmp_path).play()
    check(play)
    assert play.worlds == [1, 4, 2, 3]
    assert not play.reported("worker.lost")


def stop_early(session: Session) -> None:
    """Members see the stop at different slices; the loop ends for all of them with what is applied."""
    net = register(session)
    data = rows()
    for x, y in session.batches(data):
        if session.global_step >= 2:
            session.stop()
        session.step(F.cross_entropy(net(x), y), mean_x=x.mean())
    for x, y in session.batches(data):
        session.step(F.cross_entropy(net(x), y), mean_x=x.mean())
        if session.global_step >= 7:
            break
    session.evaluate(data, lambda batch: {"accuracy": (net(batch[0]).argmax(dim=1) == batch[1]).float()})


def test_stop_and_break_end_the_loop_for_all_with_equal_weights(tmp_path: Path) -> None:
    play = Cast(ring({"staleness": 0}), stop_early, artifacts=tmp_path).play()
    assert play.outcome == "succeeded", (play.reason, play.message)
    assert play.digest
    ends = {(f.steps, f.samples, f.loss, f.scores["accuracy"]) for f in play.finished.values()}
    assert len(ends) == 1
    assert [step for step, _ in play.values] == list(range(1, play.finished["w0"].steps + 1))
    assert len(play.settled_rows()) == play.finished["w0"].samples
