"""Processes that the warm pool gave out: who asks again gets the same one, and one without work does not stay."""

from types import SimpleNamespace

import pytest


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
    given.note("job-w0", first, now=0.0)
    given.note("job-w1", second, now=1.0)
    given.end_unused(ASKED_AGAIN_S - 0.5)
    assert (given.of("job-w0"), first.told) == (first, 0)
    given.end_unused(ASKED_AGAIN_S + 0.5)
    assert (given.of("job-w0"), given.of("job-w1")) == (None, second)
    given.end_unused(ASKED_AGAIN_S + 2.0)
    given.end_unused(2 * ASKED_AGAIN_S)
    assert (given.of("job-w1"), first.told, second.told) == (None, 1, 1)


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
