"""Local SGD on real processes: whoever trains which replica, and whoever is lost in a round, the same bits."""

from pathlib import Path
from typing import Any

import pytest
import torch
from cast import Cast
from faults import FaultPlan
from integration.test_group_faults import STEPS, check, job, train

from ringleader.train.local import run_local


def rounds(**changes: Any) -> Any:
    sync = {"intra_node": "local_sgd", "inter_node": "local_sgd", "inner_steps": 2, "outer": "nesterov"}
    return job(sync=sync, **changes)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The digest of one process that trains every replica itself."""
    torch.set_num_threads(1)
    finished, _ = run_local(rounds(), train, tmp_path_factory.mktemp("alone"))
    assert finished.steps == STEPS
    return finished.digest


@pytest.mark.parametrize("world", [1, 2, 3])
def test_an_undisturbed_group_has_the_bits_of_one_process(
    undisturbed: str, tmp_path: Path, world: int
) -> None:
    play = Cast(rounds(workers={"min": 1, "max": world}), train, artifacts=tmp_path).play()
    check(play, undisturbed)
    assert play.worlds == [world]


@pytest.mark.parametrize(
    ("victim", "phase", "past"),
    [("w0", "forward", 1), ("w2", "forward", 3), ("w2", "exchange", 0), ("w0", "committed", 0)],
)
def test_a_worker_killed_in_a_round_costs_no_bit_and_no_row(
    undisturbed: str, tmp_path: Path, victim: str, phase: str, past: int
) -> None:
    """w0 trains one replica and w2 two: two and four turns in the round that begins at step 7."""
    play = Cast(rounds(), train, FaultPlan().kill(victim, at_step=7, phase=phase, past=past), tmp_path).play()
    check(play, undisturbed)
    assert play.worlds[:2] == [3, 2]
    assert [lost["worker"] for lost in play.reported("worker.lost")] == [victim]


def test_a_worker_killed_between_a_committed_round_and_its_checkpoint_takes_nothing_of_it_back(
    undisturbed: str, tmp_path: Path
) -> None:
    """The others find it gone where all compare what they are about to save."""
    faults, spec = FaultPlan().kill("w1", at_step=7, phase="committed"), rounds(checkpoint={"every_steps": 7})
    play = Cast(spec, train, faults, tmp_path, checkpoints=str(tmp_path / "saved")).play()
    check(play, undisturbed)
    assert play.worlds[:2] == [3, 2]


def test_two_killed_one_of_them_in_the_recovery_cost_no_bit(undisturbed: str, tmp_path: Path) -> None:
    faults = FaultPlan().kill("w0", at_step=5, past=1).kill("w2", at_step=5, phase="parked")
    check(Cast(rounds(), train, faults, tmp_path).play(), undisturbed)


def test_a_replacement_is_healed_with_the_outer_momentum(undisturbed: str, tmp_path: Path) -> None:
    faults = FaultPlan().kill("w1", at_step=2, past=1).hold("w0", at_step=9, for_generation=3)
    play = Cast(rounds(), train, faults, tmp_path).play()
    check(play, undisturbed)
    assert play.worlds == [3, 2, 3]


def test_resizes_up_and_down_cost_no_bit(undisturbed: str, tmp_path: Path) -> None:
    """Rounds begin at the steps 4, 9 and 12."""
    faults = (
        FaultPlan()
        .resize(at_step=2, workers_min=4, workers_max=4)
        .hold("w0", at_step=4, for_generation=2)
        .resize(at_step=7, workers_min=2, workers_max=2)
        .hold("w0", at_step=9, for_generation=3)
        .resize(at_step=12, workers_min=3, workers_max=3)
        .hold("w0", at_step=12, for_generation=4)
    )
    play = Cast(rounds(workers={"min": 1, "max": 1}), train, faults, tmp_path).play()
    check(play, undisturbed)
    assert play.worlds == [1, 4, 2, 3]
    assert not play.reported("worker.lost")
