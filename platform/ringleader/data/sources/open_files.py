"""Files that are open: of each process its own, few of them, each used by one thread at a time."""

import os
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Any, Generic, Protocol, TypeVar

OPEN_FILES = 32
"""The most files that a source keeps open in one process: the usual limit is 1,024 for everything."""


class Closable(Protocol):
    """A file that is open."""

    def close(self) -> None:
        """Close it."""


File = TypeVar("File", bound=Closable)
Value = TypeVar("Value")


class OpenFiles(Generic[File]):
    """Open files by number. Those that were not used for longest are closed first.

    Args:
        open_: opens the file of a number.
        most: how many are open at once, those in use among them.
    """

    def __init__(self, open_: Callable[[int], File], most: int = OPEN_FILES) -> None:
        self._open = open_
        self._most = most
        self._lock = Lock()
        self._idle: OrderedDict[int, File] = OrderedDict()
        self._used = 0

    @contextmanager
    def use(self, number: int) -> Iterator[File]:
        """The file of a number, open, for this thread alone until the block ends."""
        with self._lock:
            file = self._idle.pop(number, None)
            self._used += 1
            # Before the file is opened: at no time are more open than `most`, unless all are in use.
            closing = self._surplus()
        _close(closing)
        try:
            file = self._open(number) if file is None else file
            yield file
        finally:
            with self._lock:
                self._used -= 1
                # Another thread may have opened the same one meanwhile.
                closing = [self._idle.pop(number)] if number in self._idle else []
                if file is not None:
                    self._idle[number] = file
                closing += self._surplus()
            _close(closing)

    def _surplus(self) -> list[File]:
        """Take out the idle files that are too many."""
        count = min(len(self._idle), max(0, len(self._idle) + self._used - self._most))
        return [self._idle.popitem(last=False)[1] for _ in range(count)]


class PerProcess(Generic[Value]):
    """The value of this process, made when it is first asked for: open files and threads are neither pickled nor shared
    over a fork.

    Args:
        make: makes one; it is pickled in place of the value.
    """

    # Without a `__dict__`: who looks for the generators of a data set does not look into its blocks.
    __slots__ = ("_made", "_make")

    def __init__(self, make: Callable[[], Value]) -> None:
        self._make = make
        self._made: tuple[int, Value] | None = None

    def get(self) -> Value:
        """The value of this process."""
        made = self._made
        if made is None or made[0] != os.getpid():
            made = self._made = os.getpid(), self._make()
        return made[1]

    def __reduce__(self) -> tuple[Any, ...]:
        return PerProcess, (self._make,)


def _close(files: list[File]) -> None:
    for file in files:
        file.close()
