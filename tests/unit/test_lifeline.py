"""A process that asked for it ends with its parent, however that one ends."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import ringleader

SOURCES = Path(ringleader.__file__).parent
CHILD = "import signal; from ringleader.lifeline import end_with_parent; {asked}; print(1, flush=True); signal.pause()"
PARENT = "import signal, subprocess, sys; subprocess.Popen([sys.executable, '-c', {child!r}]); signal.pause()"


@pytest.mark.parametrize("asked", ["end_with_parent()", "end_with_parent(signal.SIGTERM)"])
def test_a_process_ends_with_its_killed_parent(asked: str) -> None:
    """Whoever still holds the pipe lives."""
    program = PARENT.format(child=CHILD.format(asked=asked))
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    with parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"1\n"
        os.kill(parent.pid, signal.SIGKILL)
        assert parent.stdout.read() == b""


def test_a_process_that_stands_back_is_the_least_urgent_and_so_is_what_it_forks() -> None:
    forks = "import os; child = os.fork(); os.waitpid(child, 0) if child else None"
    told = "print(os.nice(0), open('/proc/self/oom_score_adj').read().strip(), flush=True)"
    asked = f"from ringleader.lifeline import stand_back; stand_back({os.getpid()}); {forks}; {told}"
    assert subprocess.check_output([sys.executable, "-c", asked], text=True) == "19 1000\n19 1000\n"


def test_what_a_process_forks_that_stands_back_ends_with_it() -> None:
    """Whoever still holds the pipe lives."""
    forks = "import os, signal; os.fork() or (print(1, flush=True), signal.pause()); signal.pause()"
    asked = f"from ringleader.lifeline import stand_back; stand_back({os.getpid()}); {forks}"
    process = subprocess.Popen([sys.executable, "-c", asked], stdout=subprocess.PIPE)
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"1\n"
        process.kill()
        assert process.stdout.read() == b""


def test_a_process_whose_parent_is_gone_already_ends_at_once() -> None:
    asked = "from ringleader.lifeline import stand_back; stand_back(1 << 30); print(1)"
    ended = subprocess.run([sys.executable, "-c", asked], capture_output=True, check=False)
    assert (ended.returncode, ended.stdout) == (1, b"")


def test_nobody_asks_the_kernel_by_itself() -> None:
    """But the guard of the stack's services, which runs without what is installed."""
    asking = {path.name for path in SOURCES.rglob("*.py") if ".prctl(" in path.read_text()}
    assert asking == {"lifeline.py", "guard.py"}
