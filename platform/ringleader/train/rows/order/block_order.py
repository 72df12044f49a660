"""Shuffling by blocks: an order in which a block of a file is read by one worker, for a while, once an epoch."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ringleader.train.rows.order.batch_sizes import shard_span
from ringleader.train.rows.order.keyed_permutation import mixed, permuted

AHEAD = 2


@dataclass(frozen=True, slots=True)
class Window:
    """The blocks that a shard takes its rows from.

    Attributes:
        shard: whose part they are in.
        now: those of a slice.
        ahead: those of the two windows behind it.
    """

    shard: int
    now: tuple[int, ...]
    ahead: tuple[int, ...]


class BlockOrder:
    """The blocks of a data set in an order that follows from a key, laid end to end and cut into L parts, one a logical
    shard. A shard's slices are the next rows of its part, shuffled within windows of so many blocks.

    What it keeps grows with the number of blocks, not of rows.

    Args:
        block_rows: (blocks,) int64, the rows of each block.
        taken: rows of the pass: fewer, where a short last batch is left out.
        batch: rows of a global batch.
        shards: logical shards L.
        window: blocks of a window.
        key: a number of 64 bits.
    """

    def __init__(
        self, block_rows: np.ndarray, *, taken: int, batch: int, shards: int, window: int, key: int
    ) -> None:
        self._taken = taken
        self._batch = batch
        self._shards = shards
        self._window = window
        self._key = np.uint64(key)
        self._first_rows = np.cumsum(block_rows) - block_rows
        # PCG64 by name: numpy may change its default, and the order has to stay the same.
        self._blocks = np.random.Generator(np.random.PCG64(key)).permutation(len(block_rows))
        # (blocks + 1,) where each block begins when they are laid end to end.
        self._edges = np.concatenate([[0], np.cumsum(block_rows[self._blocks])])
        sizes = np.array([self._part_size(shard) for shard in range(shards)], np.int64)
        # (L + 1,) where each part begins, and the block that it begins in.
        self._parts = np.concatenate([[0], np.cumsum(sizes)])
        self._heads = self._block_at(self._parts[:-1])

    def __len__(self) -> int:
        return self._taken

    def __getitem__(self, places: slice) -> np.ndarray:
        start, stop, _ = places.indices(self._taken)
        laid, shards = self._laid(np.arange(start, stop, dtype=np.int64))
        windows, starts, stops = self._windows_of(laid, shards)
        keys = mixed(mixed(self._key + shards.astype(np.uint64)) + windows.astype(np.uint64))
        laid = starts + permuted(laid - starts, stops - starts, keys)
        at = self._block_at(laid)
        rows: np.ndarray = self._first_rows[self._blocks[at]] + laid - self._edges[at]
        return rows

    def windows(self, offset: int, shards: Sequence[int]) -> tuple[Window, ...]:
        """The windows that these shards' slices at `offset` steps are taken from; none for an empty slice."""
        rows = min(self._batch, self._taken - offset * self._batch)
        spans = {shard: shard_span(shard, rows, self._shards) for shard in shards}
        return tuple(
            self._window_of(shard, offset * self._batch + low, offset * self._batch + high - 1)
            for shard, (low, high) in spans.items()
            if low < high
        )

    def _window_of(self, shard: int, first: int, last: int) -> Window:
        laid, shards = self._laid(np.array([first, last]))
        low, high = self._windows_of(laid, shards)[0].tolist()
        head = int(self._heads[shard])
        # Behind the last row of the part are blocks of the next one.
        end = int(self._block_at(self._parts[shard + 1] - 1)) + 1
        stops = [min(end, head + number * self._window) for number in (low, high + 1, high + 1 + AHEAD)]
        now, ahead = self._blocks[stops[0] : stops[1]], self._blocks[stops[1] : stops[2]]
        return Window(shard, tuple(now.tolist()), tuple(ahead.tolist()))

    def _laid(self, places: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(n,) places in the blocks laid end to end, and (n,) shards, of places in the pass, before any window is
        shuffled."""
        steps, inside = np.divmod(places, self._batch)
        rows = np.minimum(self._batch, self._taken - steps * self._batch)
        # The last shard k whose span begins at or before: k*n//L <= i means k*n < (i + 1)*L.
        shards = ((inside + 1) * self._shards - 1) // rows
        begun = shards * rows // self._shards
        # Before its short last step a shard takes the same number of rows in every step.
        each = (shards + 1) * self._batch // self._shards - shards * self._batch // self._shards
        return self._parts[shards] + steps * each + inside - begun, shards

    def _windows_of(self, laid: np.ndarray, shards: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(n,) the window's number in its part, and (n,) where it begins and ends."""
        heads = self._heads[shards]
        windows = (self._block_at(laid) - heads) // self._window
        firsts = heads + windows * self._window
        lasts = np.minimum(firsts + self._window, len(self._blocks))
        starts = np.maximum(self._edges[firsts], self._parts[shards])
        return windows, starts, np.minimum(self._edges[lasts], self._parts[shards + 1])

    def _block_at(self, laid: np.ndarray) -> np.ndarray:
        """The place of the block that holds a place."""
        return np.searchsorted(self._edges, laid, side="right") - 1

    def _part_size(self, shard: int) -> int:
        """The rows of a shard in the whole pass."""
        steps, rest = divmod(self._taken, self._batch)
        spans = [(steps, self._batch), (1, rest)]
        return sum(
            times * (high - low)
            for times, (low, high) in (
                (times, shard_span(shard, rows, self._shards)) for times, rows in spans
            )
        )
