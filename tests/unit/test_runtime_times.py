"""What a job says of its time is the attempt's, whoever of its workers has lived for how long."""

import pickle
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest
from test_runtime_attempt import Clock, parked
from test_runtime_surplus import Disk, attempt_of, reserved, take

from ringleader.elastic import events as ev
from ringleader.runtime.messages import Heartbeat, ProcessIdentity
from ringleader.runtime.records.sample_queue import SampleQueue
from ringleader.runtime.supervisor.attempt_times import Times
from ringleader.wire.views import Spent

if TYPE_CHECKING:
    from ringleader.runtime.supervisor.attempt import Attempt

__all__ = ["reserved"]
ME = ProcessIdentity(7, "node", "127.0.0.1")


class Notes(Disk):
    """Keeps what is noted, as a disk does."""

    def __init__(self) -> None:
        self.notes: dict[str, bytes] = {}
        self.events: list[dict[str, Any]] = []
        self.samples = SampleQueue()

    def beat(self, beat: Heartbeat) -> None: ...

    def note(self, name: str, value: bytes) -> None:
        self.notes[name] = value

    def event(self, kind: str, generation: int, data: dict[str, Any]) -> None:
        if kind == "recovered":
            self.events.append(data)

    dropped: dict[str, int] = {}


def lives(
    attempt: "Attempt", clock: Clock, since: dict[str, float], for_s: float, waits: float = 0.0
) -> None:
    """These workers, by when each was called, beat each half second; `waits`: what part of it they are idle."""
    for _ in range(round(2 * for_s)):
        clock.now += 0.5
        for worker, called in since.items():
            wall_s = clock.now - called
            own = Spent(wall_s=wall_s, compute_s=wall_s, idle_s=waits * wall_s)
            attempt.beat(Heartbeat(worker=worker, identity=ME, spent=own))
        attempt._judge(clock.now)


def told(attempt: "Attempt") -> Spent:
    status = attempt.status()
    assert status is not None
    assert status.spent is not None
    return status.spent


def parts(spent: Spent) -> float:
    return spent.compute_s + spent.exposed_communication_s + spent.idle_s + spent.recovery_s


@pytest.mark.usefixtures("reserved")
def test_an_attempt_whose_oldest_worker_is_killed_each_time_has_lasted_since_the_first_was_called(
    tmp_path: Path,
) -> None:
    clock, disk = Clock(), Notes()
    attempt, worker_group = attempt_of(tmp_path, workers_min=1, workers_max=7, clock=clock)
    attempt._open(cast("Any", worker_group), cast("Any", disk))
    cast("Any", worker_group).met = lambda worker, identity: None
    gang = [f"w{number}" for number in range(7)]
    take(attempt, *parked(0, *gang, now=clock.now))
    living = {"w0": clock.now, "w1": clock.now}
    for step, oldest in enumerate(gang[:5], start=1):
        lives(attempt, clock, living, 2.5, waits=0.2)
        left = gang[step:]
        take(attempt, ev.Committed(oldest, step, step, clock.now), ev.Lost(oldest, "died", clock.now))
        take(
            attempt,
            *(ev.Parked(other, clock.now, ev.ParkReport(step, step, step, "broken")) for other in left),
        )
        clock.now += 0.25
        take(attempt, ev.Committed(left[0], step + 1, step + 1, clock.now))
        living = {left[0]: living[left[0]], left[1]: clock.now}
    lives(attempt, clock, living, 2.5, waits=0.2)
    spent = told(attempt)
    assert [event["total_s"] for event in disk.events] == [0.25] * 5
    assert spent.wall_s == pytest.approx(6 * 2.5 + 5 * 0.25, abs=0.5), "no worker lived for half of it"
    assert spent.recovery_s == pytest.approx(5 * 0.25)
    assert spent.idle_s == pytest.approx(0.2 * 15, abs=0.5), "of whoever was followed"
    assert parts(spent) == pytest.approx(spent.wall_s)


@pytest.mark.usefixtures("reserved")
def test_the_account_goes_on_behind_a_restart_of_the_supervisor(tmp_path: Path) -> None:
    disk = Notes()
    attempt, worker_group = attempt_of(tmp_path, workers_min=2, workers_max=2)
    attempt._open(cast("Any", worker_group), cast("Any", disk))
    attempt._times = Times().hear("w0", Spent(wall_s=20.0, idle_s=2.0), 120.0, follow=True)
    take(attempt, *parked(0, "w0", "w1", now=120.0))
    again: Times = pickle.loads(disk.notes["times"])
    later = again.hear("w0", Spent(wall_s=25.0, idle_s=3.0), 125.0, follow=True).spent(125.0)
    assert later is not None
    assert (later.wall_s, later.idle_s, later.compute_s) == (25.0, 3.0, 22.0)


def test_the_parts_are_the_whole_and_recovery_comes_first() -> None:
    own = Spent(wall_s=10.0, exposed_communication_s=3.0, idle_s=2.0, recovery_s=4.0)
    times = Times().hear("w0", own, 10.0, follow=True)
    spent = times.spent(10.0, broke_at=7.5)
    assert spent is not None
    assert spent.recovery_s == 2.5, "the recovery that goes on"
    assert spent.idle_s == 2.0 + 1.5, "it also stood still where nobody was lost"
    assert parts(spent) == spent.wall_s == 10.0
    late = times.spent(10.0, broke_at=0.0)
    assert late is not None
    assert (late.recovery_s, late.compute_s, late.idle_s) == (10.0, 0.0, 0.0)


def test_time_stands_still_once_the_attempt_is_over() -> None:
    times = Times(began=1.0, ended=5.0)
    assert times.spent(100.0) == times.spent(5.0) == Spent(wall_s=4.0, compute_s=4.0)
    assert Times().spent(5.0) is None, "nobody has called the training function"
