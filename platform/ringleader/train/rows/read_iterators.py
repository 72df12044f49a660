"""Iterators that a data set holds and goes on with when rows are read: `next(self.noise)` of an `itertools.cycle`.

What a row gets of one depends on which rows the same process has read before. It is seen around the first reads of a
loop, then more and more seldom, in whichever process loads.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from ringleader.train.between_calls.objects.iterator_places import place_in
from ringleader.train.rows.random_streams import own_iterators

IN_A_ROW = 3
"""The first reads that are looked at, and those from every power of two on."""
MOST_BITS = 62

Told = Callable[[Any, Any, str], None]
"""Hears of a data set, its `collate`, and the path to the iterator, below "0" in the one and "1" in the other."""


class ReadIterators:
    """The iterators of one data set and its `collate`.

    Args:
        shared: rows are read in other processes: they say by a number in shared memory which iterators went on.
    """

    def __init__(self, dataset: Any, collate: Any, *, shared: bool = False) -> None:
        self._owners = (dataset, collate)
        self._reads = 0
        self._gone_on: set[str] = set()
        self._told: set[str] = set()
        self._bits = 0
        number = torch.zeros((), dtype=torch.int64)
        self._shared = number.share_memory_() if shared else None  # type: ignore[no-untyped-call]

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Look at the iterators before and after a block that reads rows."""
        reads, self._reads = self._reads, self._reads + 1
        if reads >= IN_A_ROW and reads & (reads - 1):
            yield
            return
        before = [(path, each, place_in(each)) for path, each in own_iterators(self._owners)]
        yield
        held = {id(each) for _, each in own_iterators(self._owners)} if before else set()
        for bit, (path, each, place) in enumerate(before):
            # One that is made anew for each row is another object; one that does not tell its place may go on.
            if id(each) in held and (place is None or place_in(each) != place):
                self._note(path, bit)

    @property
    def gone_on(self) -> bool:
        """Whether one has been told of."""
        return bool(self._told)

    def tell(self, told: Told) -> None:
        """Tell of those that have gone on, of each once."""
        bits = 0 if self._shared is None else int(self._shared)
        if bits != self._bits:
            self._gone_on, self._bits = self._named(bits), bits
        for path in sorted(self._gone_on - self._told):
            self._told.add(path)
            told(*self._owners, path)

    def _note(self, path: str, bit: int) -> None:
        if self._shared is None:
            self._gone_on.add(path)
        else:
            self._shared |= 1 << min(bit, MOST_BITS)

    def _named(self, bits: int) -> set[str]:
        """The paths here of those that went on elsewhere; that of the data set itself where it has made them there."""
        paths = [path for path, _ in own_iterators(self._owners)]
        bits_set = [bit for bit in range(MOST_BITS + 1) if bits >> bit & 1]
        return {paths[bit] if bit < len(paths) else ".0" for bit in bits_set}
