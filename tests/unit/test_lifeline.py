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


def test_nobody_asks_the_kernel_by_itself() -> None:
    """But the guard of the stack's services, which runs without what is installed."""
    asking = {path.name for path in SOURCES.rglob("*.py") if ".prctl(" in path.read_text()}
    assert asking == {"lifeline.py", "guard.py"}
