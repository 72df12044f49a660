"""Three real processes over every transport: one is killed inside an exchange, the others re-form and lose nothing."""

import os
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest
from forks import processes
from integration.group_member import member
from rooms import open_room

from ringleader.comm.transports.meeting import KINDS

GUARD_S = 120.0
pytestmark = pytest.mark.timeout(400)


class Process:
    """A member process; what it says is kept until somebody expects it."""

    def __init__(self, port: int, kind: str) -> None:
        self._pipe, there = processes().Pipe()
        self._process = processes().Process(target=member, args=(port, kind, there))
        self._process.start()
        there.close()

    def order(self, **order: object) -> None:
        self._pipe.send(order)

    def expect(self, event: str) -> dict[str, Any]:
        """The next word of that event; fails with what it saw instead."""
        seen: list[dict[str, Any]] = []
        until = time.monotonic() + GUARD_S
        while self._pipe.poll(max(0.0, until - time.monotonic())):
            seen.append(self._pipe.recv())
            if seen[-1]["event"] == event:
                return seen[-1]
        raise AssertionError(f"no {event!r} within {GUARD_S} s; saw {seen}")

    def kill(self) -> None:
        os.kill(self._process.pid or 0, signal.SIGKILL)

    def end(self) -> None:
        self._process.kill()
        self._process.join()


@pytest.fixture(params=list(KINDS))
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def members(kind: str) -> Iterator[list[Process]]:
    store = open_room()
    started = [Process(store.port, kind) for _ in range(3)]
    yield started
    for process in started:
        process.end()
    del store


def test_a_member_killed_inside_an_exchange_breaks_the_others_at_once_and_they_end_with_the_same_bits(
    members,
):
    for rank, process in enumerate(members):
        process.order(prefix="job/1/1", rank=rank, size=3, until=6, **({"hold": 3} if rank == 2 else {}))
    members[2].expect("holding")
    for process in members[:2]:
        while process.expect("waiting")["step"] < 3:
            pass
    killed_at = time.time()
    members[2].kill()
    for process in members[:2]:
        broken = process.expect("broken")
        assert broken["step"] == 3
        assert "phase" in broken["why"]
        # A guard against hanging; on an idle machine it takes tens of milliseconds.
        assert broken["at"] - killed_at < 10
        process.expect("done")
    for rank, process in enumerate(members[:2]):
        process.order(prefix="job/1/2", rank=rank, size=2, until=6)
    for process in members[:2]:
        assert process.expect("formed")["reused"], "the rows of a cleanly ended generation are used again"
    ends = [process.expect("done") for process in members[:2]]
    assert [e["step"] for e in ends] == [6, 6]
    undisturbed = Process(0, "gloo")
    undisturbed.order(size=1, rank=0, until=6)
    expected = undisturbed.expect("done")
    undisturbed.end()
    assert {e["weights"] for e in ends} == {expected["weights"]}


def test_a_member_killed_at_full_speed_never_leaves_the_others_waiting(members):
    for rank, process in enumerate(members):
        process.order(prefix="job/2/1", rank=rank, size=3, until=10**9)
    for process in members:
        while process.expect("waiting")["step"] < 20:
            pass
    members[1].kill()
    for process in (members[0], members[2]):
        process.expect("broken")
