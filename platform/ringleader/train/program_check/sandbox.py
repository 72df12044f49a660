"""A process in which the program changes nothing outside. A file that it opens to write is a copy of its own; any other
change is seen before it happens, and ends the run.

Changes are seen that go through Python (PEP 578), and `torch.save`; the kernel refuses the others, where it can.
"""

import builtins
import io
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping
from functools import wraps
from pathlib import Path
from typing import Any

import torch

from ringleader.landlock import confine
from ringleader.program_text.current_line import calling_line
from ringleader.train.between_calls.files.written_files import CACHES, WRITING

WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
DEVICES = tuple(Path("/dev", name) for name in ("null", "zero", "full", "random", "urandom"))
"""Devices to which a write changes nothing. Shared memory (`/dev/shm`) is none of them: others use it too."""
MAKES = frozenset({"os.mkdir"})
REMOVES = frozenset({"os.remove", "os.rmdir", "shutil.rmtree"})
CHANGES: Mapping[str, tuple[int, ...]] = {
    **dict.fromkeys((*MAKES, *REMOVES, "os.truncate", "os.chmod", "os.chown", "os.utime"), (0,)),
    **dict.fromkeys(("os.link", "os.symlink"), (1,)),
    "os.rename": (0, 1),
}
"""Audit events that change files, with the numbers of the arguments that name them."""
OF_LINKS = frozenset({*MAKES, *REMOVES, "os.link", "os.symlink", "os.rename"})
"""Events that change a link itself, not its target."""
SENDS = frozenset({"socket.connect", "socket.sendto", "socket.sendmsg", "socket.bind"})
MOST_BYTES = 64 << 20
"""The largest existing file that is copied where the program opens it to write."""
STARTS = frozenset({"subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn"})


class ActionRefused(BaseException):
    """The program would have changed something outside. Not an Exception, so that no handler of its own catches it."""


class Sandbox:
    """The sandbox of this process; cannot be undone.

    Args:
        folder: the folder whose content the program may change.

    Attributes:
        why: the program's first line that would have changed something, and what; empty where none would.
    """

    def __init__(self, folder: Path) -> None:
        self.why = ""
        caches = [os.environ[name] for name in CACHES if os.environ.get(name)]
        places = (folder, *DEVICES, Path("~/.cache").expanduser(), *map(Path, caches))
        self._own = [place.resolve() for place in places]
        confine(self._own)
        self._copies: dict[Path, Path] = {}
        self._room = Path(tempfile.mkdtemp(prefix="copies-", dir=folder))
        self._open_copies()
        sys.addaudithook(self._look)

    def _look(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            path, _, flags = arguments
            if isinstance(flags, int) and flags & WRITES:
                self._change(event, path)
        elif event in CHANGES:
            for number in CHANGES[event]:
                self._change(event, arguments[number])
        elif event in SENDS:
            self._send(arguments[1])
        elif event in STARTS:
            self._refuse("starts a process")
        elif event == "sqlite3.connect" and arguments[0] != ":memory:":
            self._change(event, arguments[0])

    def _change(self, event: str, path: Any) -> None:
        place = self._foreign(path, follow=event not in OF_LINKS)
        if place is None:
            return
        # A folder that is there already, or a file that is gone already: the call only raises.
        done = (event in MAKES and place.exists()) or (event in REMOVES and not os.path.lexists(place))
        if not done:
            self._refuse(f"changes {place}")

    def _foreign(self, path: Any, *, follow: bool = True) -> Path | None:
        """The file's place; None where the program may change it.

        Args:
            follow: whether a link stands for its target.
        """
        if not isinstance(path, str | bytes | os.PathLike):
            return None  # a descriptor: of what was opened before
        named = Path(os.fsdecode(path))
        # These name no entry of the folder before them.
        follow = follow or named.name in ("", "..")
        place = named.resolve() if follow else named.parent.resolve() / named.name
        return None if any(place.is_relative_to(own) for own in self._own) else place

    def _send(self, address: Any) -> None:
        if isinstance(address, str):
            self._change("socket", address)
        elif address:
            host, port = address[:2] if isinstance(address, tuple) else (address, "")
            self._refuse(f"connects to {host}:{port}")

    def _refuse(self, what: str) -> None:
        self.why = self.why or f"{calling_line()}, which {what}"
        raise ActionRefused

    def _open_copies(self) -> None:
        """Have the program write a copy of each file that it opens to write, and read that copy later."""
        opens, saves = io.open, torch.save

        @wraps(opens)
        def opened(file: Any, mode: str = "r", *options: Any, **named: Any) -> Any:
            return opens(self._copy_of(file, mode), mode, *options, **named)

        @wraps(saves)
        def saved(obj: object, f: Any, *options: Any, **named: Any) -> None:
            if not isinstance(f, str | os.PathLike):
                saves(obj, f, *options, **named)
                return
            with opened(f, "wb") as file:  # by itself torch opens it past Python
                saves(obj, file, *options, **named)

        # pathlib opens by io.open, programs by the builtin.
        builtins.open = io.open = opened
        torch.save = saved
        os.rename, os.replace = self._moving(os.rename), self._moving(os.replace)
        os.remove, os.unlink = self._removing(os.remove), self._removing(os.unlink)

    def _moving(self, moves: Callable[..., None]) -> Callable[..., None]:
        """Let a copy take another file's place, for files that are saved under another name first."""

        @wraps(moves)
        def moved(src: Any, dst: Any, *options: Any, **named: Any) -> None:
            place, target = self._foreign(src), self._foreign(dst)
            if place is None or target is None or place not in self._copies or place.exists():
                moves(src, dst, *options, **named)
            else:
                self._copies[target] = self._copies.pop(place)

        return moved

    def _removing(self, removes: Callable[..., None]) -> Callable[..., None]:
        @wraps(removes)
        def removed(path: Any, *options: Any, **named: Any) -> None:
            place = self._foreign(path)
            if place is None or place not in self._copies or place.exists():
                removes(path, *options, **named)
            else:
                del self._copies[place]

        return removed

    def _copy_of(self, file: Any, mode: str) -> Any:
        place = self._foreign(file)
        if place is None or (place not in self._copies and not WRITING.intersection(mode)):
            return file
        if place not in self._copies and place.parent.is_dir() and not place.is_dir():
            copy = self._room / str(len(self._copies))
            if place.exists():
                if place.stat().st_size > MOST_BYTES:
                    return file  # and so it is refused
                shutil.copyfile(place, copy)
            self._copies[place] = copy
        return self._copies.get(place, file)
