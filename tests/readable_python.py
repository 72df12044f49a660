"""Another account has to be able to run the Python that runs the tests, and to read this checkout: where either lies in
a folder that is closed to others, that is laid open in a mount namespace, for one command and what it starts."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from accounts import NOBODY

CHECKOUT = Path(__file__).parents[1]
LAY_OPEN = """
set -e
umask 022
aside=$1 trees=$2 closed=$3
shift 3
n=0
for tree in $trees; do n=$((n + 1)); mkdir -p "$aside/$n"; mount --bind "$tree" "$aside/$n"; done
for folder in $closed; do mount -t tmpfs -o mode=755 tmpfs "$folder"; done
n=0
for tree in $trees; do n=$((n + 1)); mkdir -p "$tree"; mount --bind "$aside/$n" "$tree"; done
exec "$@"
"""
"""Folders are told apart by blanks: where a path has one nothing is laid open, and the tests are skipped."""
TRIES = f"""
import os, sys
os.setgroups([]), os.setgid({NOBODY}), os.setuid({NOBODY})
os.execv(sys.executable, [sys.executable, "-c", "import ringleader"])
"""


def closed_folder(of: Path) -> Path | None:
    """The outermost folder on the way there through which others may not pass."""
    return next((p for p in reversed([of, *of.parents]) if not p.stat().st_mode & 0o001), None)


@cache
def can_run_as_others() -> bool:
    """Whether this process may change to another account, which can then run this Python and read this checkout."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return False
    with readable_python() as before:
        if before and shutil.which(before[0]) is None:
            return False
        tried = [*before, sys.executable, "-c", TRIES]
        return subprocess.run(tried, capture_output=True, check=False, cwd="/").returncode == 0


@contextmanager
def readable_python() -> Iterator[list[str]]:
    """What to put before a command."""
    trees = {tree: closed_folder(tree) for tree in map(Path, {sys.base_prefix, sys.prefix, str(CHECKOUT)})}
    hidden = sorted({str(folder) for folder in trees.values() if folder is not None})
    if not hidden:
        yield []
        return
    # What a closed folder holds of them would be hidden with the rest of it.
    kept = sorted(str(tree) for tree in trees if any(tree.is_relative_to(folder) for folder in hidden))
    with tempfile.TemporaryDirectory() as aside:
        script = ["sh", "-c", LAY_OPEN, "sh", aside, " ".join(kept), " ".join(hidden)]
        yield ["unshare", "-m", "--propagation", "private", *script]
