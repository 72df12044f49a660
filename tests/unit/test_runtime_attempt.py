"""When an attempt starts whom, without Ray."""

from pathlib import Path

import pytest
from test_runtime_surplus import attempt_of, reserved, take

from ringleader.elastic import events as ev

__all__ = ["reserved"]
GANG = ("w0", "w1", "w2")


def parked(generation: int, *workers: str, now: float) -> list[ev.Parked]:
    return [ev.Parked(worker, generation, 0, 0, "", now) for worker in workers]


@pytest.mark.usefixtures("reserved")
def test_those_who_are_left_recover_before_a_process_is_started_for_who_was_lost(tmp_path: Path) -> None:
    attempt, crew = attempt_of(tmp_path, minimum=2, maximum=3)
    take(attempt, *parked(0, *GANG, now=0.0), ev.Lost("w2", "died", 1.0))
    take(attempt, *parked(1, "w0", "w1", now=1.01))
    assert crew.started == [*GANG]
    take(attempt, ev.Committed("w0", 2, 1, 1.05))
    assert crew.started == [*GANG, "w3"]


@pytest.mark.usefixtures("reserved")
def test_a_process_is_started_a_second_later_where_their_recovery_takes_longer(tmp_path: Path) -> None:
    attempt, crew = attempt_of(tmp_path, minimum=2, maximum=3)
    take(attempt, *parked(0, *GANG, now=0.0), ev.Lost("w2", "died", 1.0))
    for now, started in ((1.9, [*GANG]), (2.1, [*GANG, "w3"])):
        take(attempt, ev.Tick(now, 60.0, frozenset(), 0.0))
        assert crew.started == started


@pytest.mark.usefixtures("reserved")
def test_who_parked_while_the_supervisor_was_busy_is_not_late(tmp_path: Path) -> None:
    """All of it lies in the queue when it looks at the time again: seconds after the loss."""
    attempt, _ = attempt_of(tmp_path, minimum=2, maximum=3)
    take(attempt, *parked(0, *GANG, now=0.0), ev.Lost("w2", "died", 1.0))
    for event in parked(1, "w0", "w1", now=1.01):
        attempt.post(event)
    attempt._catch_up()
    take(attempt, ev.Tick(9.0, 4.0, frozenset(), 0.0))
    assert attempt._state is not None
    assert attempt._state.recovery is not None
    assert [worker.cause for worker in attempt._state.workers if worker.cause] == []


@pytest.mark.usefixtures("reserved")
def test_a_process_that_min_needs_is_started_at_once(tmp_path: Path) -> None:
    attempt, crew = attempt_of(tmp_path, minimum=3, maximum=3)
    take(attempt, *parked(0, *GANG, now=0.0), ev.Lost("w2", "died", 1.0))
    assert crew.started == [*GANG, "w3"]
