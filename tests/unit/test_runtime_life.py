"""A death is known before the kernel has taken the process apart, and never of a process that lives."""

import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path

import pytest
from waiting import wait_for

from ringleader.runtime.nodes import death_watch

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="needs memfd_create (Linux)")

HANG_GUARD_S = 30.0
ALIVE = """
import os, sys, time
from ringleader.runtime.nodes import death_watch
print(death_watch.own(), flush=True)
if sys.argv[1] == "fork" and os.fork() == 0:
    print("child", flush=True)
    time.sleep(600)
sys.stdin.read()
if sys.argv[1] == "exit":
    os._exit(3)
"""


@contextmanager
def process(kind: str = "plain") -> Iterator[tuple[subprocess.Popen[str], int]]:
    """One that lives until its input ends, and the descriptor of its life."""
    command = [sys.executable, "-c", ALIVE, kind]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as one:
        assert one.stdout is not None
        try:
            yield one, int(one.stdout.readline())
        finally:
            one.kill()


def mapped(pid: int) -> int:
    """How many of this process's maps are of its life."""
    page = Path(f"/proc/{pid}/map_files")
    inode = next(entry.stat().st_ino for entry in page.iterdir() if death_watch.NAME in str(entry.readlink()))
    return sum(f" {inode} " in line for line in Path("/proc/self/maps").read_text().splitlines())


def awaited(pid: int, descriptor: int) -> "Future[bool]":
    """Once it has the page of that process, which nobody gets any more when the process is gone."""
    told: Future[bool] = Future()
    before = mapped(pid)
    threading.Thread(
        target=lambda: told.set_result(death_watch.await_death(pid, descriptor)), daemon=True
    ).start()
    wait_for("its page to be had", lambda: mapped(pid) == before + 1)
    return told


def ended(gone: int, patience_s: float) -> bool:
    """What a pidfd tells."""
    death = select.poll()
    death.register(gone, select.POLLIN)
    return bool(death.poll(1000 * patience_s))


def test_a_killed_process_is_known_to_be_dying_while_it_is_still_there() -> None:
    """The test has not waited for its child: the process id cannot be another one's yet."""
    with process() as (one, descriptor):
        told = awaited(one.pid, descriptor)
        gone = os.pidfd_open(one.pid)
        try:
            assert not ended(gone, 0.2)
            assert not told.done()
            one.send_signal(signal.SIGKILL)
            assert told.result(HANG_GUARD_S)
            assert ended(gone, HANG_GUARD_S)
        finally:
            os.close(gone)


def test_a_process_that_ends_by_itself_is_known_too() -> None:
    with process() as (one, descriptor):
        told = awaited(one.pid, descriptor)
        assert one.stdin is not None
        one.stdin.close()
        assert told.result(HANG_GUARD_S)


@pytest.mark.parametrize(("way", "status"), [("exit", 3 << 8), ("end", 0), ("kill", signal.SIGKILL)])
def test_how_a_process_ended_is_known_as_long_as_it_is_there(way: str, status: int) -> None:
    with process(way) as (one, descriptor):
        told = awaited(one.pid, descriptor)
        assert one.stdin is not None
        if way == "kill":
            one.kill()
        else:
            one.stdin.close()
        assert told.result(HANG_GUARD_S)
        assert death_watch.status(one.pid) == status
        one.wait()
        assert death_watch.status(one.pid) is None


def test_neither_a_child_nor_a_stopped_process_counts_as_dead() -> None:
    with process("fork") as (one, descriptor):
        assert one.stdout is not None
        assert one.stdout.readline() == "child\n"
        (child,) = map(int, Path(f"/proc/{one.pid}/task/{one.pid}/children").read_text().split())
        told = awaited(one.pid, descriptor)
        os.kill(child, signal.SIGKILL)
        one.send_signal(signal.SIGSTOP)
        with pytest.raises(TimeoutError):
            told.result(0.3)
        one.send_signal(signal.SIGKILL)
        assert told.result(HANG_GUARD_S)


def test_of_a_process_that_has_ended_and_is_still_there_one_learns_how() -> None:
    with process("exit") as (one, descriptor):
        assert one.stdin is not None
        gone = os.pidfd_open(one.pid)
        try:
            one.stdin.close()
            assert ended(gone, HANG_GUARD_S)
            assert death_watch.await_death(one.pid, descriptor)
        finally:
            os.close(gone)
        assert death_watch.status(one.pid) == 3 << 8


def test_a_process_that_lives_is_not_dead_for_who_may_not_see_its_life() -> None:
    with process() as (one, descriptor):
        assert not death_watch.await_death(one.pid, descriptor + 1000)
        assert one.poll() is None


def test_who_comes_late_or_asks_for_another_thing_learns_nothing() -> None:
    with process() as (one, descriptor):
        assert not death_watch.await_death(one.pid, -1)
        assert not death_watch.await_death(one.pid, 0)
        one.kill()
        one.wait()
        assert not death_watch.await_death(one.pid, descriptor)


def test_two_can_wait_for_the_same_death() -> None:
    with process() as (one, descriptor):
        both = [awaited(one.pid, descriptor) for _ in range(2)]
        one.send_signal(signal.SIGKILL)
        assert [told.result(HANG_GUARD_S) for told in both] == [True, True]


def test_a_process_has_one_life() -> None:
    assert death_watch.own() == death_watch.own()
    assert str(Path(f"/proc/self/fd/{death_watch.own()}").readlink()).startswith(f"/memfd:{death_watch.NAME}")
