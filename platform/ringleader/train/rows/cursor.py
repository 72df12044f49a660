"""The data cursor: which rows a step and a shard take. A pure function of the step and the spec."""

from collections.abc import Sequence
from dataclasses import dataclass
from zlib import crc32

import numpy as np

from ringleader.train.rows.random_streams import key


def shard_span(shard: int, rows: int, shards: int) -> tuple[int, int]:
    """Shard k of n rows is [k*n//L, (k+1)*n//L); it may be empty."""
    return shard * rows // shards, (shard + 1) * rows // shards


def present_shards(rows: int, shards: int) -> frozenset[int]:
    """The shards that have rows in a batch of `rows`."""
    if rows >= shards:
        return frozenset(range(shards))
    return frozenset(
        k for k in range(shards) if shard_span(k, rows, shards)[0] < shard_span(k, rows, shards)[1]
    )


def steps_in_epoch(rows: int, batch: int, *, drop_last: bool = False) -> int:
    """Steps of one pass: the last batch may be short, and is left out only where the program says so."""
    return rows // batch if drop_last else -(-rows // batch)


def checksum(rows: np.ndarray) -> int:
    """24 bits over row numbers (n,) int64: exact in a float32, so it can travel in the control word."""
    # The byte order by name: members on other machines compare this number.
    return crc32(np.ascontiguousarray(rows, dtype="<i8").tobytes()) & 0xFF_FFFF


@dataclass(frozen=True, slots=True)
class Epoch:
    """One pass over a dataset in its shuffled order.

    Attributes:
        order: (rows,) int64, the dataset's rows in the order of this epoch.
        batch: rows of a global batch.
        shards: logical shards L.
    """

    order: np.ndarray
    batch: int
    shards: int

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
    ) -> "Epoch":
        """One pass; `drop_last` omits the rows behind the last whole batch: other ones in each epoch, if shuffled."""
        order = np.arange(rows, dtype=np.int64)
        if shuffle:
            # PCG64 by name: numpy may change its default, and the order has to stay the same.
            np.random.Generator(np.random.PCG64(key(seed, "order", epoch))).shuffle(order)
        return cls(order[: rows // batch * batch] if drop_last else order, batch, shards)

    @property
    def steps(self) -> int:
        return steps_in_epoch(len(self.order), self.batch)

    def batch_rows(self, offset: int) -> int:
        """Rows of the global batch at `offset` steps into the epoch."""
        return min(self.batch, len(self.order) - offset * self.batch)

    def rows(self, offset: int, shard: int) -> np.ndarray:
        """(n,) int64 rows of one slice."""
        low, high = shard_span(shard, self.batch_rows(offset), self.shards)
        start = offset * self.batch
        return self.order[start + low : start + high]

    def rows_of(self, offset: int, shards: Sequence[int]) -> np.ndarray:
        """(n,) int64 rows of several contiguous shards, in order."""
        return np.concatenate([self.rows(offset, k) for k in shards]) if len(shards) else self.order[:0]
