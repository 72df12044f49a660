"""Orders of a data set's rows that need no list of them."""

from typing import Protocol

import numpy as np

from ringleader.train.rows.order.keyed_permutation import permuted


class RowOrder(Protocol):
    """The rows of one pass in their order. An array of row numbers is one."""

    def __len__(self) -> int:
        """The number of rows of the pass."""

    def __getitem__(self, places: slice) -> np.ndarray:
        """(n,) int64, the rows at places [start, stop)."""


class Sequential:
    """Rows as they lie in the data set."""

    def __init__(self, rows: int) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return self._rows

    def __getitem__(self, places: slice) -> np.ndarray:
        start, stop, _ = places.indices(self._rows)
        return np.arange(start, stop, dtype=np.int64)


class RowPermutation:
    """All rows of a data set in an order that follows from a key, each computed when it is asked for.

    Args:
        rows: of the data set.
        taken: of the pass: fewer, where a short last batch is left out.
        key: a number of 64 bits.
    """

    def __init__(self, rows: int, taken: int, key: int) -> None:
        self._rows = rows
        self._taken = taken
        self._key = key

    def __len__(self) -> int:
        return self._taken

    def __getitem__(self, places: slice) -> np.ndarray:
        start, stop, _ = places.indices(self._taken)
        numbers = np.arange(start, stop, dtype=np.int64)
        sizes = np.full(len(numbers), self._rows, np.int64)
        return permuted(numbers, sizes, np.full(len(numbers), self._key, np.uint64))
