"""Notices that a worker's place goes away."""

import os
import signal
import subprocess
import sys

from ringleader.runtime.notices import Drained

PARENT = """
import os, signal, sys, threading, time
from ringleader.runtime.notices import on_sigterm
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
    drained = Drained()
    nodes = {"w0": "n0", "w1": "n1", "w2": "n1"}
    assert drained.news({}, nodes) == []
    assert drained.news({"n1": 20.0}, nodes) == [("w1", 20.0), ("w2", 20.0)]
    assert drained.news({"n1": 19.0, "n0": 5.0}, nodes | {"w3": "n1"}) == [("w0", 5.0), ("w3", 19.0)]
