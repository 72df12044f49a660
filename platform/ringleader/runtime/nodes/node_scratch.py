"""A node's own folder, for what is large and belongs to jobs that run there: copies of data sets, packages."""

import shutil
import time
from collections.abc import Collection
from pathlib import Path

from ringleader.errors import RequirementsFailed
from ringleader.files import SCRATCH, not_private, own_scratch

ENDING_S, LOOK_S = 5.0, 0.01
"""The longest wait for processes that were killed, and the pause between two looks at them."""


def copies_of(attempt: str) -> Path:
    """This machine's copies for one attempt: a folder for each Ray node on it."""
    return own_scratch() / attempt


def remove_scratch(attempt: Path, pids: Collection[int] = ()) -> None:
    """Remove an attempt's folder and this machine's copies for it.

    Args:
        pids: processes that were killed and have used it. Ray tells of a death before the process is gone, which may be
            about to make a folder.
    """
    until = time.monotonic() + ENDING_S
    while any(Path(f"/proc/{pid}").exists() for pid in pids) and time.monotonic() < until:
        time.sleep(LOOK_S)
    for left in (attempt, copies_of(attempt.name)):
        shutil.rmtree(left, ignore_errors=True)


def private_scratch(name: str) -> Path:
    """A folder of this account there, for code that is run: nobody else has written into it, or may.

    Raises:
        RequirementsFailed: it is another account's, or open to others.
    """
    for folder in (own_scratch(), own_scratch() / name):
        if not_private(folder):
            raise RequirementsFailed(
                f"{folder} belongs to another account, or others can write to it.",
                hint=f"Remove it, or set {SCRATCH} for Ray's processes on that node.",
            )
    return own_scratch() / name
