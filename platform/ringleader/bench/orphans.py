"""Processes that nobody owns any more and that hold shared memory of a job: what a worker that was killed may leave.

Segments have no names: they last as long as a process has them open or mapped, so they are looked for there.
"""

from contextlib import suppress
from pathlib import Path

from ringleader.comm.segments import NAME

FIRST = 1
"""The process that inherits those whose parent has ended."""
_PPID = 1
"""Where the parent stands in /proc/<pid>/stat behind the name, which may hold spaces."""


def orphans(parent: int = FIRST) -> set[int]:
    """Of this machine, as far as this user may look into them."""
    found = set()
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            with suppress(OSError):  # it has ended, or is another user's
                if _parent(process) == parent and _holds_segment(process):
                    found.add(int(process.name))
    return found


def _parent(process: Path) -> int:
    return int((process / "stat").read_text().rpartition(")")[2].split()[_PPID])


def _holds_segment(process: Path) -> bool:
    if any(str(path.readlink()).startswith(f"/memfd:{NAME}") for path in (process / "fd").iterdir()):
        return True
    return f"/memfd:{NAME}" in (process / "maps").read_text()
