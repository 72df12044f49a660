"""Gradients are counted by how stale they were, each once, whatever happens to servers and attempts."""

from pathlib import Path

import pytest
from faults import FaultPlan
from leasing import BATCH, DATA, SHARDS, STRICT, job, learn
from threaded_cast import ThreadedCast

LOOPS, STEPS = 3, -(-len(DATA) // BATCH)


@pytest.mark.parametrize("every_steps", [STEPS - 1, STEPS])
def test_a_later_attempt_counts_those_of_the_one_before_too(every_steps: int, tmp_path: Path) -> None:
    """Its checkpoint lies inside the first loop, or at its end."""
    spec, place = job(STRICT, checkpoint={"every_steps": every_steps}), tmp_path / "checkpoints"
    faults = FaultPlan().kill("s0", at_step=STEPS + 2, phase="committed", once=place)
    first = ThreadedCast(spec, learn, faults, tmp_path / "cast", checkpoints=str(place)).play()
    assert first.outcome == "failed"
    second = ThreadedCast(spec, learn, artifacts=tmp_path / "cast", checkpoints=str(place), attempt=2).play()
    assert second.outcome == "succeeded", (second.reason, second.message)
    assert [data["step"] for data in second.reported("checkpoint.restored")] == [every_steps]
    (counted,) = {tuple(finished.staleness) for finished in second.finished.values()}
    assert counted == (LOOPS * STEPS * SHARDS, *[0] * 16), "all of the weights that the update changed"
