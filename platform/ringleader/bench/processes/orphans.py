"""Leftovers of a run on this machine: processes, and memory that they shared.

A process belongs to a run if it was started with its RINGLEADER_HOME, as all that `ringleader up` starts is, and all
that this starts. Orphans are adopted by the guard of a service, or by the first process where that is gone. Segments of
ours have no names: they last as long as a process has them open or mapped, so they are looked for there.
"""

from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from ringleader.comm.segments import NAME

FIRST = 1
"""The process that inherits those whose parent, and guard, have ended."""
GUARD = b"/ringleader/guard.py"
ZYGOTE = b"/zygote.py"
"""An orphan by birth: its raylet ends it, and nobody's job is left in it."""
SHARED = Path("/dev/shm")  # noqa: S108 - looked into, nothing is put there
_PPID = 1
"""Where the parent stands in /proc/<pid>/stat behind the name, which may hold spaces."""


@dataclass(frozen=True, slots=True)
class Machine:
    """The orphans of the run of `home`, and the names of all shared segments, at one moment. Other users' processes are
    not seen."""

    home: Path
    adopted: frozenset[int]
    named: frozenset[str]

    @classmethod
    def now(cls, home: Path) -> Self:
        return cls(home, frozenset(_adopted(home)), frozenset(_named()))

    def left(self) -> dict[str, list[int] | list[str]]:
        """Leftovers by kind, without what was there then: orphans of the run, its processes that hold shared memory,
        and named segments that no other process has mapped."""
        pids = of_run(self.home)
        found: dict[str, list[int] | list[str]] = {
            "orphans": sorted(_adopted(self.home) - self.adopted),
            "processes that hold shared memory": sorted(p for p in pids if _holds(p, f"/memfd:{NAME}")),
            "segments": sorted(n for n in _named() - self.named if not _mapped(n, but=pids)),
        }
        return {kind: some for kind, some in found.items() if some}


def of_run(home: Path) -> set[int]:
    """All processes that were started with this RINGLEADER_HOME."""
    word = f"RINGLEADER_HOME={home}".encode()
    found = set()
    for pid in _pids():
        with suppress(OSError):  # it has ended, or is another user's
            if word in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                found.add(pid)
    return found


def _adopted(home: Path) -> set[int]:
    found = set()
    for pid in of_run(home):
        with suppress(OSError):
            parent = _parent(pid)
            if (parent == FIRST or GUARD in _command(parent)) and ZYGOTE not in _command(pid):
                found.add(pid)
    return found


def _command(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


def _pids() -> Iterator[int]:
    return (int(process.name) for process in Path("/proc").iterdir() if process.name.isdigit())


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[_PPID])


def _named() -> set[str]:
    return {path.name for path in SHARED.iterdir()}


def _mapped(name: str, *, but: Collection[int]) -> bool:
    """Whether another process has the segment open or mapped."""
    return any(_holds(pid, str(SHARED / name)) for pid in _pids() if pid not in but)


def _holds(pid: int, file: str) -> bool:
    process = Path(f"/proc/{pid}")
    with suppress(OSError):
        # The kernel appends ` (deleted)` to the name of a memfd.
        if any(str(path.readlink()).startswith(file) for path in (process / "fd").iterdir()):
            return True
        return file in (process / "maps").read_text()
    return False
