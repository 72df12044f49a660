"""Rows of loading processes compared with those that the training thread reads at the same step.

Loading processes hold the data set as it was when they started. A worker that comes in later starts its own later, so
rows that go by training (the session, weights, a level that a callback raises) would depend on who loads them.
"""

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from ringleader.train.rows.dataset_likeness import likeness
from ringleader.train.rows.slices import Slice

Differ = Callable[[Any, Any], None]
"""Hears of a data set and its `collate`, whose rows differ where they are loaded."""


class RowComparison:
    """A run of slices through loading processes, of which ever fewer are read here too, before a step goes by them.

    Args:
        read: reads a slice in this thread.
        differ: called at the first slice whose rows are others here.
        stale: the processes are older than the run; else its first slice cannot differ.
    """

    def __init__(self, read: Callable[[Slice], Any], differ: Callable[[], None], *, stale: bool) -> None:
        self._read = read
        self._differ = differ
        self._number = 1 if stale else 0
        self._asked: deque[Slice] = deque()
        self._ended = False

    def asked(self, pieces: Iterator[Slice]) -> Iterator[Slice]:
        """The same slices, noted as the processes are asked for them."""
        for piece in pieces:
            self._asked.append(piece)
            yield piece

    def end(self) -> None:
        """Compare nothing from now on."""
        self._ended = True

    def compare(self, batch: Any) -> None:
        """Compare the rows of the next slice, if its number is a power of two."""
        piece, number = self._asked.popleft(), self._number
        self._number += 1
        if self._ended or number.bit_count() != 1:
            return
        loaded = likeness(batch)
        # None: the rows cannot be read, and nothing can be said of them.
        if loaded is not None and likeness(self._read(piece)) not in (loaded, None):
            self.end()
            self._differ()
