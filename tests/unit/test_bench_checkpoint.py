"""What a checkpoint cost is read from the times of the commits."""

import pytest

from ringleader.bench.elasticity.checkpoint import CheckpointTimes
from ringleader.bench.elasticity.checkpoint_member import APART, HELD

STEP_S = 0.1


def course(late: dict[int, float], written: dict[int, float], rounds: int = 2) -> CheckpointTimes:
    """Rounds of even steps, but for those that come `late`; `written`: seconds after the step's commit."""
    commits = [0.0]
    for step in range(2, APART * (rounds * HELD + 1) + 1):
        commits.append(commits[-1] + STEP_S + late.get(step, 0.0))
    return CheckpointTimes(commits, {step: commits[step - 1] + after for step, after in written.items()})


def test_a_pause_is_the_gap_that_is_longest_behind_all_turns_of_its_kind_less_the_median_step() -> None:
    due = APART * HELD
    found = course({due + 1: 0.02, due + 3: 0.06, 2 * APART + 1: 0.4, 2 * due + 1: 0.03, APART + 5: 0.01}, {})
    assert found.pauses(2) == pytest.approx([0.06, 0.0], abs=1e-9)
    assert found.longest(2) == pytest.approx([0.06, 0.03])
    assert found.pauses(1) == pytest.approx([0.4, 0.0], abs=1e-9)
    assert found.longest(0) == pytest.approx([0.01, 0.0], abs=1e-9)


def test_what_happens_behind_one_turn_alone_is_no_pause() -> None:
    due = APART * HELD
    found = course(
        {due + 1: 0.02, due + 3: 0.05, 2 * due + 1: 0.03, 2 * due + 4: 0.05, 3 * due + 1: 0.01}, {}, 3
    )
    assert found.pauses(2) == pytest.approx([0.02, 0.03, 0.01])


def test_steps_behind_the_copy_are_slowed_until_the_files_are_written() -> None:
    due = APART * HELD
    found = course({due + 1: 0.1, due + 2: 0.1}, {due: 0.45})
    assert found.slowed() == pytest.approx(
        [0.5]
    )  # after the one with the copy: one of twice the time, one usual
