"""Processes that the warm pool gave out: who asks again gets the same one, and one without work does not stay."""

import threading
from types import SimpleNamespace
from typing import Any

import pytest

MEANWHILE_S = 0.2
HANG_GUARD_S = 30.0


class Process:
    """A handle that counts how often it was told to end."""

    def __init__(self) -> None:
        self.told = 0
        self.end_unless_busy = SimpleNamespace(remote=self._told)

    def _told(self) -> None:
        self.told += 1


def test_a_process_that_was_given_out_is_told_once_to_end_without_work_when_its_time_is_up():
    from ringleader.runtime.nodes.warm_pool import ASKED_AGAIN_S, GivenProcesses

    given, first, second = GivenProcesses(), Process(), Process()
    given.take("job-w0", lambda: (first, None), clock=lambda: 0.0)
    given.take("job-w1", lambda: (second, None), clock=lambda: 1.0)
    given.end_unused(ASKED_AGAIN_S - 0.5)
    assert given.take("job-w0", lambda: (Process(), None), clock=lambda: 60.0) == (first, None)
    assert (first.told, second.told) == (0, 0)
    given.end_unused(ASKED_AGAIN_S + 0.5)
    assert (first.told, second.told) == (1, 0)
    given.end_unused(ASKED_AGAIN_S + 2.0)
    given.end_unused(2 * ASKED_AGAIN_S)
    assert (first.told, second.told) == (1, 1)
    third = Process()
    assert given.take("job-w1", lambda: (third, None), clock=lambda: 2 * ASKED_AGAIN_S) == (third, None)


def test_a_worker_that_is_asked_for_twice_at_once_gets_one_process():
    from ringleader.runtime.nodes.warm_pool import GivenProcesses, WarmPool

    class Pool(WarmPool):
        """A pool without Ray: a supervisor whose call timed out asks again before it has found a process."""

        def __init__(self) -> None:
            self._lock, self._given = threading.Lock(), GivenProcesses()
            self.found: list[Process] = []
            self.taken: list[Any] = []
            self.again = threading.Thread(target=self.ask, daemon=True)

        def ask(self) -> None:
            self.taken.append(self.take("node", "job-w0")[0])

        def _find(self, node: str) -> tuple[Any, None]:
            self.found.append(process := Process())
            if len(self.found) == 1:
                self.again.start()
                self.again.join(MEANWHILE_S)  # ended by then, if it does not wait for this one
            return process, None

    pool = Pool()
    pool.ask()
    pool.again.join(HANG_GUARD_S)
    assert len(pool.found) == 1
    assert pool.taken == 2 * pool.found


def test_a_worker_for_which_no_process_was_found_is_given_one_when_it_is_asked_for_again():
    from ringleader.runtime.nodes.warm_pool import ASKED_AGAIN_S, GivenProcesses

    def none() -> tuple[Any, None]:
        raise OSError("the node is gone")

    given, process = GivenProcesses(), Process()
    with pytest.raises(OSError, match="gone"):
        given.take("job-w0", none, clock=lambda: 0.0)
    given.end_unused(2 * ASKED_AGAIN_S)
    assert given.take("job-w0", lambda: (process, None), clock=lambda: 2 * ASKED_AGAIN_S) == (process, None)
    given.end_unused(3 * ASKED_AGAIN_S - 1.0)
    assert process.told == 0


@pytest.mark.parametrize("busy", [False, True])
def test_only_a_process_without_work_ends_when_it_is_told_so(busy: bool, monkeypatch: pytest.MonkeyPatch):
    from ringleader.runtime.worker import actor as module
    from ringleader.runtime.worker.heartbeat import ORPHANED

    exits: list[int] = []
    monkeypatch.setattr(module, "on_sigterm", lambda act: None)
    monkeypatch.setattr(module.os, "_exit", exits.append)
    worker = module.WorkerActor()
    if busy:
        worker._busy.set()
    worker.end_unless_busy()
    assert exits == ([] if busy else [ORPHANED])
