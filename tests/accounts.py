"""Another account of this machine: `nobody`, without a token, a group or a file of the owner's."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

NOBODY = 65534
_BECOME = f"""
import os, pathlib, shutil, socket, sys  # before: the interpreter may lie where nobody else may look
os.setgroups([]), os.setgid({NOBODY}), os.setuid({NOBODY})
"""
_TRY = """
def tried(deed, *arguments):
    try:
        deed(*arguments)
    except OSError as error:
        return type(error).__name__
    return "done"
"""

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another account")


def as_nobody(code: str, *arguments: str) -> list[str]:
    """The words that this code prints when that account runs it; `tried(deed, …)` is the name of the error it meets."""
    run = subprocess.run(
        [sys.executable, "-I", "-S", "-c", _BECOME + _TRY + code, *arguments],
        cwd="/",
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    return run.stdout.split()


@contextmanager
def open_folder() -> Iterator[Path]:
    """A folder that every account may enter."""
    with tempfile.TemporaryDirectory(prefix="rlo-", dir="/tmp", ignore_cleanup_errors=True) as name:
        Path(name).chmod(0o755)
        yield Path(name)
