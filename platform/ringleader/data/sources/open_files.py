"""Files that are open: few of them, each used by one thread at a time."""

from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Generic, Protocol, TypeVar

OPEN_FILES = 32
"""The most files that a source keeps open in one process: the usual limit is 1,024 for everything."""


class Closable(Protocol):
    """A file that is open."""

    def close(self) -> None:
        """Close it."""


File = TypeVar("File", bound=Closable)


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


def _close(files: list[File]) -> None:
    for file in files:
        file.close()
