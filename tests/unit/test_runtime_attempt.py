"""When an attempt starts whom, and whom it takes for frozen, without Ray."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest
from rooms import SECRET
from test_runtime_surplus import HERE, Disk, attempt_of, reserved, take

from ringleader.elastic import NOWHERE
from ringleader.elastic import events as ev
from ringleader.elastic import instructions as do
from ringleader.runtime.messages import Heartbeat, ProcessIdentity
from ringleader.runtime.supervisor.failure_detector import BEAT_GONE_S, ProcessGlance

if TYPE_CHECKING:
    from ringleader.runtime.supervisor.attempt import Attempt

__all__ = ["reserved"]
GANG = ("w0", "w1", "w2")


def parked(generation: int, *workers: str, now: float) -> list[ev.Parked]:
    return [ev.Parked(worker, now, ev.ParkReport(generation, 0, 0, "")) for worker in workers]


@pytest.mark.usefixtures("reserved")
def test_those_who_are_left_recover_before_a_process_is_started_for_who_was_lost(tmp_path: Path) -> None:
    attempt, worker_group = attempt_of(tmp_path, workers_min=2, workers_max=3)
    take(attempt, *parked(0, *GANG, now=0.0), ev.Lost("w2", "died", 1.0))
    take(attempt, *parked(1, "w0", "w1", now=1.01))
    assert worker_group.started == [*GANG]
    take(attempt, ev.Committed("w0", 2, 1, 1.05))
    assert worker_group.started == [*GANG, "w3"]


@pytest.mark.usefixtures("reserved")
def test_a_process_is_started_a_second_later_where_their_recovery_takes_longer(tmp_path: Path) -> None:
    attempt, worker_group = attempt_of(tmp_path, workers_min=2, workers_max=3)
    take(attempt, *parked(0, *GANG, now=0.0), ev.Lost("w2", "died", 1.0))
    for now, started in ((1.9, [*GANG]), (2.1, [*GANG, "w3"])):
        take(attempt, ev.Tick(now, 60.0, frozenset(), 0.0))
        assert worker_group.started == started


@pytest.mark.usefixtures("reserved")
def test_who_parked_while_the_supervisor_was_busy_is_not_late(tmp_path: Path) -> None:
    """All of it lies in the queue when it looks at the time again: seconds after the loss."""
    attempt, _ = attempt_of(tmp_path, workers_min=2, workers_max=3)
    take(attempt, *parked(0, *GANG, now=0.0), ev.Lost("w2", "died", 1.0))
    for event in parked(1, "w0", "w1", now=1.01):
        attempt.post(event)
    attempt._catch_up()
    take(attempt, ev.Tick(9.0, 4.0, frozenset(), 0.0))
    assert attempt._state is not None
    assert attempt._state.recovery is not None
    assert [worker.cause for worker in attempt._state.workers if worker.cause] == []


@pytest.mark.usefixtures("reserved")
def test_a_member_that_joins_is_told_with_its_node_and_the_address_of_that(tmp_path: Path) -> None:
    attempt, worker_group = attempt_of(tmp_path, workers_min=3, workers_max=3)
    worker_group.seats = {"w0": "n1", "w1": "n2"}
    take(attempt, *parked(0, *GANG, now=0.0))
    told = cast("Any", attempt._running.records).told
    joined = {data["worker"]: data for kind, data in told if kind == "worker.joined"}
    assert [(joined[w].get("node"), joined[w].get("address")) for w in GANG] == [
        ("n1", "address of n1"),
        ("n2", "address of n2"),
        (None, None),
    ]


@pytest.mark.usefixtures("reserved")
def test_a_process_that_min_needs_is_started_at_once(tmp_path: Path) -> None:
    attempt, worker_group = attempt_of(tmp_path, workers_min=3, workers_max=3)
    take(attempt, *parked(0, *GANG, now=0.0), ev.Lost("w2", "died", 1.0))
    assert worker_group.started == [*GANG, "w3"]


@pytest.mark.usefixtures("reserved")
@pytest.mark.parametrize(
    ("seats", "near"),
    [
        (dict.fromkeys(GANG, "here"), True),
        (dict.fromkeys(GANG, "here") | {"w1": "there"}, False),
        ({"w0": "here", "w2": "here"}, False),
    ],
    ids=["one node", "two nodes", "one unknown"],
)
def test_members_hear_the_secret_and_whether_all_are_on_one_node(
    tmp_path: Path, seats: dict[str, str], near: bool
) -> None:
    attempt, worker_group = attempt_of(tmp_path, workers_min=3, workers_max=3)
    worker_group.seats = seats
    take(attempt, *parked(0, *GANG, now=0.0))
    (plan,) = worker_group.plans
    assert (plan.meeting.address, plan.meeting.secret, plan.meeting.near) == (HERE.address, SECRET, near)
    assert attempt._state is not None
    assert attempt._state.plan is not None
    assert attempt._state.plan.meeting == NOWHERE, "what is written down of a plan names no secret"


@pytest.mark.usefixtures("reserved")
@pytest.mark.parametrize("node", ["here", "there"])
def test_a_pair_hears_the_secret_and_whether_both_are_on_one_node(tmp_path: Path, node: str) -> None:
    attempt, worker_group = attempt_of(tmp_path, workers_min=2, workers_max=3)
    worker_group.seats = {"w0": "here", "w1": "here", "w2": node}
    take(attempt, *parked(0, "w0", "w1", now=0.0))
    attempt._act((do.Follow("w2", "w0", 1),), 1.0)
    (where,) = worker_group.pairs
    assert (where.address, where.secret, where.near) == (HERE.address, SECRET, node == "here")


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


class Busy(Disk):
    """Takes what a heartbeat brings as `take` does."""

    def __init__(self, take: Callable[[], None]) -> None:
        self._take = take

    def beat(self, beat: Heartbeat) -> None:
        self._take()


def at_work(attempt: "Attempt", worker_group: Any, disk: Disk) -> Callable[[int], None]:
    """Two workers that wait in an exchange, and so use no CPU. Returns what lets the first one beat."""
    take(attempt, *parked(0, "w0", "w1", now=0.0))
    worker_group.met = lambda worker, identity: None
    worker_group.glance = lambda worker: ProcessGlance(stopped=False, cpu_s=5.0)
    attempt._open(cast("Any", worker_group), cast("Any", disk))
    identity = ProcessIdentity(7, "node", "127.0.0.1")

    def beat(number: int) -> None:
        attempt.beat(
            Heartbeat(
                worker="w0", identity=identity, generation=1, phase="exchange", moves=number, number=number
            )
        )

    return beat


def given_up(attempt: "Attempt") -> list[str]:
    assert attempt._state is not None
    return [worker.id for worker in attempt._state.workers if worker.cause]


@pytest.mark.usefixtures("reserved")
def test_who_waits_for_the_disk_of_its_supervisor_is_not_frozen_and_who_beats_no_more_behind_that_is(
    tmp_path: Path,
) -> None:
    clock, entered, goes_on = Clock(), threading.Event(), threading.Event()

    def stuck() -> None:
        entered.set()
        assert goes_on.wait(30)

    attempt, worker_group = attempt_of(tmp_path, workers_min=2, workers_max=2, clock=clock)
    beat = at_work(attempt, worker_group, Busy(lambda: None))
    beat(1)
    attempt._open(cast("Any", worker_group), cast("Any", Busy(stuck)))
    told = threading.Thread(target=beat, args=(2,), daemon=True)
    told.start()
    assert entered.wait(30)
    seconds(attempt, clock, 2 * BEAT_GONE_S)
    assert given_up(attempt) == []
    goes_on.set()
    told.join(30)
    seconds(attempt, clock, BEAT_GONE_S - 0.5)
    assert given_up(attempt) == []
    seconds(attempt, clock, 1.0)
    assert given_up(attempt) == ["w0"]


@pytest.mark.usefixtures("reserved")
def test_who_tells_a_full_disk_is_not_frozen(tmp_path: Path) -> None:
    clock = Clock()

    def full() -> None:
        raise OSError("it takes no more")

    attempt, worker_group = attempt_of(tmp_path, workers_min=2, workers_max=2, clock=clock)
    beat = at_work(attempt, worker_group, Busy(lambda: None))
    beat(1)
    attempt._open(cast("Any", worker_group), cast("Any", Busy(full)))
    for _ in range(2 * int(BEAT_GONE_S)):
        with pytest.raises(OSError, match="no more"):
            beat(2)
        seconds(attempt, clock, 1.0)
    assert given_up(attempt) == []


def seconds(attempt: "Attempt", clock: Clock, count: float) -> None:
    """Time goes by, and somebody looks who is late."""
    for _ in range(round(count / 0.1)):
        clock.now += 0.1
        attempt._judge(clock.now)
