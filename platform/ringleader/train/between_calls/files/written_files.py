"""Files that the program opens to write, and at its top to read, each with its line: by `open`, with which libraries of
Python open files, and by `torch.save`, which opens them past Python.

Not by an audit hook: it would be called for each `id()` and each attribute of a function in a step, too.
"""

import builtins
import io
import os
import threading
from dataclasses import dataclass
from functools import cache, wraps
from pathlib import Path
from typing import Any

import torch

from ringleader.program_text.current_line import line_calling

WRITING = frozenset("wax+")
"""The letters of modes in which a file is opened to write."""
CACHES = ("XDG_CACHE_HOME", "HF_HOME", "TORCH_HOME", "MPLCONFIGDIR")
"""Variables that name folders which, like ~/.cache, hold only files that can be made again."""
SYSTEM = ("/dev/", "/proc/", "/sys/")
"""Folders of what is no file: devices, and shared memory under names of their own."""

_members: dict[int, "WrittenFiles"] = {}
"""Those of this process, by the thread that runs the program."""


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A file that was opened to write.

    Attributes:
        line: "file:line" of the program.
        name: the path as the program gave it.
        place: the absolute path.
    """

    line: str
    name: str
    place: Path


@dataclass(frozen=True, slots=True)
class ReadFile:
    """A file that was opened to read.

    Attributes:
        line, name: as of `WrittenFile`.
        stamp: differs once the file is another one: its size and the time of its last change, in ns.
    """

    line: str
    name: str
    stamp: tuple[int, int]


class WrittenFiles:
    """Those of one member, since they were last taken. Caches and locks are left out."""

    def __init__(self) -> None:
        self._thread = -1
        self._found: dict[tuple[str, str], WrittenFile] = {}
        self._read: dict[str, ReadFile] | None = {}

    def begin(self) -> None:
        """Look at what this thread opens from here on."""
        _look_at_all()
        self._thread = threading.get_ident()
        _members[self._thread] = self

    def close(self) -> None:
        """Look no longer. Idempotent."""
        if _members.get(self._thread) is self:
            del _members[self._thread]

    def take(self) -> list[WrittenFile]:
        """The files opened since the last time."""
        found, self._found = list(self._found.values()), {}
        return found

    def take_read(self) -> list[ReadFile]:
        """The files opened to read so far; none are noted from here on."""
        found, self._read = self._read, None
        return list((found or {}).values())

    def opened(self, path: Any, *, writes: bool) -> None:
        """Note a file, if a line of the program opens it; one that it writes, if it is meant to stay."""
        if not isinstance(path, str | bytes | os.PathLike) or not (writes or self._read is not None):
            return  # a descriptor: of what was opened before
        line = line_calling(__file__)
        name = os.fsdecode(path)
        if not writes:
            self._note_read(line, name)
            return
        place = os.path.abspath(name)  # noqa: PTH100 - links stay: the program's name counts
        if line and not self._is_left_out(name, place):
            self._found[line, name] = WrittenFile(line, name, Path(place))

    def _note_read(self, line: str, name: str) -> None:
        try:
            found = Path(name).stat()
        except OSError:  # which the program is about to be told
            return
        if line and self._read is not None:
            self._read[name] = ReadFile(line, name, (found.st_size, found.st_mtime_ns))

    def _is_left_out(self, name: str, place: str) -> bool:
        caches = [os.environ[name] for name in CACHES if os.environ.get(name)]
        hidden = any(part.startswith(".") and part.strip(".") for part in Path(name).parts)
        made_again = hidden or "__pycache__" in place or place.endswith(".lock")
        # A folder stands for a temporary file in it, which has a name of its own, or none.
        return made_again or place.startswith((*SYSTEM, *caches)) or Path(place).is_dir()


@cache
def _look_at_all() -> None:
    """Have this process look at every opening, once and for good."""
    opens, saves = io.open, torch.save

    @wraps(opens)
    def opened(file: Any, mode: str = "r", *options: Any, **named: Any) -> Any:
        _note(file, writes=bool(WRITING.intersection(mode)))
        return opens(file, mode, *options, **named)

    @wraps(saves)
    def saved(obj: object, f: Any, *options: Any, **named: Any) -> None:
        _note(f, writes=True)
        saves(obj, f, *options, **named)

    # Under all names: pathlib opens by io.open, programs by the builtin, and pickle finds torch.save under the last.
    builtins.open = io.open = opened
    torch.save = torch.serialization.save = saved


def _note(file: Any, *, writes: bool) -> None:
    member = _members.get(threading.get_ident())
    if member is not None:
        member.opened(file, writes=writes)
