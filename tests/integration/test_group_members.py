"""Three real processes over every transport: one is killed inside an exchange, the others re-form and lose nothing."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from queue import Empty, Queue

import pytest
from torch.distributed import TCPStore

from ringleader.comm.transports.meeting import KINDS

HERE = Path(__file__).parent
GUARD_S = 120.0
pytestmark = pytest.mark.timeout(400)


def environment() -> dict[str, str]:
    path = os.pathsep.join([str(HERE.parent / "unit"), os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "PYTHONPATH": path}


class Process:
    """A member process; its lines are read as they come."""

    def __init__(self, port: int, kind: str) -> None:
        self.popen = subprocess.Popen(
            [sys.executable, str(HERE / "group_member.py"), str(port), kind],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment(),
        )
        self._lines: Queue[dict] = Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def order(self, **order: object) -> None:
        self.popen.stdin.write(json.dumps(order) + "\n")
        self.popen.stdin.flush()

    def expect(self, event: str) -> dict:
        """The next line of that event; fails with what it saw instead."""
        seen: list[dict] = []
        until = time.monotonic() + GUARD_S
        while time.monotonic() < until:
            try:
                seen.append(self._lines.get(timeout=until - time.monotonic()))
            except Empty:
                break
            if seen[-1]["event"] == event:
                return seen[-1]
        raise AssertionError(f"no {event!r} within {GUARD_S} s; saw {seen}")

    def end(self) -> None:
        self.popen.kill()
        self.popen.wait()

    def _read(self) -> None:
        for line in self.popen.stdout:
            self._lines.put(json.loads(line))


@pytest.fixture(params=list(KINDS))
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def members(kind: str) -> Iterator[list[Process]]:
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
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
    members[2].popen.send_signal(signal.SIGKILL)
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
    undisturbed = subprocess.run(
        [sys.executable, str(HERE / "group_member.py"), "0", "gloo"],
        input=json.dumps({"size": 1, "rank": 0, "until": 6}) + "\n",
        env=environment(),
        capture_output=True,
        text=True,
        timeout=GUARD_S,
        check=True,
    )
    expected = json.loads(undisturbed.stdout.splitlines()[-1])
    assert {e["weights"] for e in ends} == {expected["weights"]}


def test_a_member_killed_at_full_speed_never_leaves_the_others_waiting(members):
    for rank, process in enumerate(members):
        process.order(prefix="job/2/1", rank=rank, size=3, until=10**9)
    for process in members:
        while process.expect("waiting")["step"] < 20:
            pass
    members[1].popen.send_signal(signal.SIGKILL)
    for process in (members[0], members[2]):
        process.expect("broken")
