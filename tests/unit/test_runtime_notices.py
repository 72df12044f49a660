"""Notices that a worker's place goes away."""

import os
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest

from ringleader.runtime.nodes.notices import DrainNotices

PARENT = """
import os, signal, sys, threading, time
from ringleader.runtime.nodes.notices import on_sigterm
came = threading.Semaphore(0)
on_sigterm(came.release)
child = os.fork()
if not child:
    signal.pause()
os.kill(child, signal.SIGTERM)
print("child", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), came.acquire(timeout=0.2))
loaded = threading.Event()
threading.Thread(target=lambda: (os.kill(os.getpid(), signal.SIGTERM), loaded.set())).start()
print("told", came.acquire(timeout=30), loaded.wait(30))
"""


def test_sigterm_is_told_once_and_ends_forked_children_as_ever():
    done = subprocess.run(
        [sys.executable, "-c", PARENT],
        env=dict(os.environ),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.split("\n")[:2] == [f"child {-signal.SIGTERM} False", "told True True"]


def test_each_worker_on_a_draining_node_is_told_once():
    drained = DrainNotices()
    nodes = {"w0": "n0", "w1": "n1", "w2": "n1"}
    assert drained.news({}, nodes) == []
    news = drained.news({"n1": 20.0}, nodes)
    assert news == [("w1", 20.0), ("w2", 20.0)]
    told: list[tuple[str, float]] = []
    drained.tell(news, lambda worker, for_s: told.append((worker, for_s)))
    assert told == news
    assert drained.news({"n1": 19.0, "n0": 5.0}, nodes | {"w3": "n1"}) == [("w0", 5.0), ("w3", 19.0)]


def test_a_worker_that_could_not_be_told_keeps_no_other_from_it_and_is_told_again():
    drained, nodes = DrainNotices(), {"w0": "n0", "w1": "n0"}
    told: list[str] = []

    def drain(worker: str, _for_s: float) -> None:
        if worker == "w0":
            raise TimeoutError
        told.append(worker)

    drained.tell(drained.news({"n0": 20.0}, nodes), drain)
    assert told == ["w1"]
    assert drained.news({"n0": 19.0}, nodes) == [("w0", 19.0)]


@pytest.mark.parametrize(
    ("answers", "left"),
    [
        (["ActorUnavailableError", "GetTimeoutError", ""], []),
        (["ActorUnavailableError", "ActorDiedError"], [143]),
        (None, [143]),
    ],
    ids=["it comes back", "it is dead for good", "it has none"],
)
def test_sigterm_ends_a_worker_at_once_only_where_no_supervisor_comes_back(
    monkeypatch: pytest.MonkeyPatch, answers: list[str] | None, left: list[int]
):
    from ray import exceptions

    from ringleader.runtime.worker import actor as module

    def answer(_told: object, *, timeout: float) -> None:
        assert answers
        if error := answers.pop(0):
            raise getattr(exceptions, error)(*([error, None] if error == "ActorUnavailableError" else []))

    exits: list[int] = []
    monkeypatch.setattr(module, "TERM_AGAIN_S", 0.0)
    monkeypatch.setattr(module, "on_sigterm", lambda act: None)
    monkeypatch.setattr(module, "ray", SimpleNamespace(get=answer))
    monkeypatch.setattr(module.os, "_exit", exits.append)
    worker = module.WorkerActor()
    if answers is not None:
        worker._supervisor = SimpleNamespace(drain=SimpleNamespace(remote=lambda *said: said))
    worker._terminated()
    assert (exits, answers or []) == (left, [])
