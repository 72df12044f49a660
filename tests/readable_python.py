"""Another account has to be able to run the Python that runs the tests: where it lies in somebody's own folder, that is
laid open in a mount namespace, for one command and what it starts."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

LAID_OPEN = """
set -e
mount --bind "$1" "$2"
mount -t tmpfs -o mode=755 tmpfs "$3"
mkdir -p "$1"
mount --bind "$2" "$1"
shift 3
exec "$@"
"""


def closed_folder() -> Path | None:
    """The outermost folder on the way to Python through which others may not pass."""
    base = Path(sys.base_prefix)
    return next((p for p in reversed([base, *base.parents]) if not p.stat().st_mode & 0o001), None)


def can_run_as_others() -> bool:
    """Whether this process may change to another account, which can then run Python."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return False
    if closed_folder() is None:
        return True
    tried = ["unshare", "-m", "--propagation", "private", "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
    return (
        shutil.which("unshare") is not None
        and subprocess.run(tried, capture_output=True, check=False).returncode == 0
    )


@contextmanager
def readable_python() -> Iterator[list[str]]:
    """What to put before a command."""
    closed = closed_folder()
    if closed is None:
        yield []
        return
    with tempfile.TemporaryDirectory() as aside:
        script = ["sh", "-c", LAID_OPEN, "sh", sys.base_prefix, aside, str(closed)]
        yield ["unshare", "-m", "--propagation", "private", *script]
