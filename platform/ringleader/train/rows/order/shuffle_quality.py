"""The quality of a shuffle: from how many blocks a batch's rows come, and what is left of the files' order."""

from dataclasses import asdict, dataclass
from typing import Literal

import numpy as np

from ringleader.spec.data import Data
from ringleader.train.rows.order.cursor import Epoch

LOOKED_AT = 100
"""Batches of a pass, spread over the whole."""
MEASURED: dict[str, Literal["row", "block"]] = {"shuffled": "row", "row": "row", "block": "block"}
"""By `data.order`, the order that is looked at: `shuffled` draws as `row` does, which makes no list of all rows."""


@dataclass(frozen=True, slots=True)
class ShuffleQuality:
    """How far an order is from that of the files.

    Attributes:
        batch_blocks: the mean number of different blocks among the rows of a global batch. Rows of a block are often
            alike: the more blocks, the more a batch is like the whole.
        rank_correlation: between places in a pass and row numbers (Spearman's), from -1 to 1: 1 where the rows come
            as they lie in the files, about 0 where the pass forgets that.
        mixing: `batch_blocks` as a share of what it is expected to be where all rows are shuffled, from 0 to 1.
    """

    batch_blocks: float
    rank_correlation: float
    mixing: float


def shuffle_quality(epoch: Epoch, block_rows: np.ndarray) -> ShuffleQuality:
    """Look at a pass over the rows of these blocks.

    Args:
        epoch: the pass; a batch schedule does not count.
        block_rows: (blocks,) int64, the rows of each block.
    """
    # Whole batches: a short last one has fewer blocks.
    whole = max(1, len(epoch.order) // epoch.batch)
    offsets = np.unique(np.linspace(0, whole - 1, LOOKED_AT).astype(np.int64)).tolist()
    batches = [epoch.rows_of(offset, range(epoch.shards)) for offset in offsets]
    edges = np.cumsum(block_rows)
    blocks = [len(np.unique(np.searchsorted(edges, rows, side="right"))) for rows in batches]
    places = np.concatenate(
        [offset * epoch.batch + np.arange(len(rows)) for offset, rows in zip(offsets, batches, strict=True)]
    )
    rows = np.concatenate(batches)
    # Places and row numbers are their own ranks.
    correlation = float(np.corrcoef(places, rows)[0, 1]) if len(rows) > 1 else 0.0
    found = float(np.mean(blocks))
    return ShuffleQuality(found, correlation, min(1.0, found / _expected_blocks(block_rows, len(batches[0]))))


def _expected_blocks(block_rows: np.ndarray, rows: int) -> float:
    """The mean number of different blocks among so many rows drawn at random."""
    return float(np.sum(1 - (1 - block_rows / block_rows.sum()) ** rows))


def by_order(
    block_rows: np.ndarray, *, batch: int, shards: int, window_blocks: int | None = None
) -> dict[str, dict[str, float]]:
    """The quality of the first pass in each order, as plain values, by the order's name in the job file.

    Args:
        block_rows: (blocks,) int64, the rows of each block.
        batch: rows of a global batch.
        shards: logical shards.
        window_blocks: of the order by blocks; None: as many as without the key.
    """
    found = {}
    for order in set(MEASURED.values()):
        epoch = Epoch.shuffled(
            rows=int(block_rows.sum()),
            batch=batch,
            shards=shards,
            seed=0,
            epoch=0,
            shuffle=True,
            data=Data(order=order, window_blocks=window_blocks if order == "block" else None),
            block_rows=block_rows,
        )
        found[order] = asdict(shuffle_quality(epoch, block_rows))
    return {order: found[measured] for order, measured in MEASURED.items()}
