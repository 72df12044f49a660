"""The data cursor: which rows a step and a shard take. A pure function of the step and the spec."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from zlib import crc32

import numpy as np

from ringleader.spec.data import Data
from ringleader.train.rows.order.batch_sizes import Changes, batch_at, shard_span, steps_in_epoch
from ringleader.train.rows.order.block_order import BlockOrder, Window
from ringleader.train.rows.order.row_orders import RowOrder, RowPermutation, Sequential
from ringleader.train.rows.order.skipped_steps import KeptSteps
from ringleader.train.rows.random_streams import key

AS_EVER = Data()
FEWEST_RECENT, MOST_RECENT, RECENT_ROWS = 8, 64, 1 << 19
"""Batches whose rows are kept: those that are loaded ahead, and the one that is computed; of small ones enough for a
round of local SGD, whose slices are asked for replica by replica."""


def checksum(rows: np.ndarray) -> int:
    """24 bits over row numbers (n,) int64: exact in a float32, so it can travel in the control word."""
    # The byte order by name: members on other machines compare this number.
    return crc32(np.ascontiguousarray(rows, dtype="<i8").tobytes()) & 0xFF_FFFF


@dataclass(frozen=True, slots=True)
class Epoch:
    """One pass over a dataset in its order.

    Attributes:
        order: the dataset's rows in the order of this epoch.
        batch: rows of a global batch, of the first one where they change.
        shards: logical shards L.
        changes: of the rows of a global batch, by the batch of this pass from which they hold.
        kept: the steps that are not left out; None: all are kept.
    """

    order: RowOrder
    batch: int
    shards: int
    changes: Changes = ()
    kept: KeptSteps | None = None
    _recent: dict[int, np.ndarray] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def shuffled(
        cls,
        *,
        rows: int,
        batch: int,
        shards: int,
        seed: int,
        epoch: int,
        shuffle: bool,
        drop_last: bool = False,
        data: Data = AS_EVER,
        block_rows: np.ndarray | None = None,
        changes: Changes = (),
    ) -> "Epoch":
        """One pass; `drop_last` omits the rows behind the last whole batch: other ones in each epoch, if shuffled.

        Args:
            data: with the kind of the order.
            block_rows: (blocks,) int64, the rows of each block; None: each row is a block of its own.
        """
        taken = rows
        if drop_last:
            whole = steps_in_epoch(rows, batch, drop_last=True, changes=changes)
            taken, _ = batch_at(whole, batch, changes)
        order: RowOrder
        if not shuffle:
            order = Sequential(taken)
        elif data.order == "block" and block_rows is not None:
            by = key(seed, "blocks", epoch)
            order = BlockOrder(
                block_rows, taken=taken, batch=batch, shards=shards, window=data.window, key=by
            )
        elif data.order in ("row", "block"):
            order = RowPermutation(rows, taken, key(seed, "rows", epoch))
        else:
            order = _listed(rows, key(seed, "order", epoch))[:taken]
        return cls(order, batch, shards, changes)

    @property
    def steps(self) -> int:
        if self.kept is not None:
            return len(self.kept)
        return steps_in_epoch(len(self.order), self.batch, changes=self.changes)

    def keeping(self, kept: KeptSteps) -> "Epoch":
        """The same pass without the steps that are left out: all others have the rows that they have in it."""
        return replace(self, kept=kept)

    def batch_rows(self, offset: int) -> int:
        """Rows of the global batch at `offset` steps into the epoch."""
        start, rows = batch_at(self._place(offset), self.batch, self.changes)
        return min(rows, len(self.order) - start)

    def rows(self, offset: int, shard: int) -> np.ndarray:
        """(n,) int64 rows of one slice."""
        low, high = shard_span(shard, self.batch_rows(offset), self.shards)
        return self._batch_at(offset)[low:high]

    def rows_of(self, offset: int, shards: Sequence[int]) -> np.ndarray:
        """(n,) int64 rows of several contiguous shards, in order."""
        parts = [self.rows(offset, k) for k in shards]
        return np.concatenate(parts) if parts else np.empty(0, np.int64)

    def windows_of(self, offset: int, shards: Sequence[int]) -> tuple[Window, ...]:
        """The blocks that slices are taken from; none where rows are not shuffled by blocks."""
        return self.order.windows(self._place(offset), shards) if isinstance(self.order, BlockOrder) else ()

    def _batch_at(self, offset: int) -> np.ndarray:
        """(n,) int64 rows of the global batch. Each is asked for shard by shard: to load, to check, for the ledger."""
        place = self._place(offset)
        rows = self._recent.get(place)
        if rows is None:
            if len(self._recent) >= max(FEWEST_RECENT, min(MOST_RECENT, RECENT_ROWS // self.batch)):
                self._recent.clear()
            start, size = batch_at(place, self.batch, self.changes)
            rows = self._recent[place] = self.order[start : start + size]
        return rows

    def _place(self, offset: int) -> int:
        """The place of a step in the whole pass."""
        return offset if self.kept is None else self.kept.place(offset)


def _listed(rows: int, by: int) -> np.ndarray:
    """(rows,) int64, all rows in an order that follows from a key."""
    every = np.arange(rows, dtype=np.int64)
    # PCG64 by name: numpy may change its default, and the order has to stay the same.
    np.random.Generator(np.random.PCG64(by)).shuffle(every)
    return every
