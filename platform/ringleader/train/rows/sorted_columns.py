"""Columns by which files are sorted: where a block has few of a column's values, so has a batch of few blocks."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ringleader.data.sources.source import Source

BLOCKS, ROWS = 32, 4096
"""Blocks that are looked at, spread over all, and rows of each, spread over it."""
MOST_VALUES = 1000
"""A column with more values than this among those is no label."""
SORTED = 0.5
"""From here on files are said to be sorted by a column."""


def sorted_columns(source: Source) -> dict[str, float]:
    """How far files are sorted by each column of few values, from 0, as in random order, to 1, where each block has one
    value. Columns below `SORTED` are left out.

    Raises:
        BlockUnreadable: naming the block.
    """
    names = [field.name for field in source.schema if _may_be_label(field.type)]
    blocks = np.unique(np.linspace(0, len(source.block_rows) - 1, BLOCKS).astype(np.int64)).tolist()
    if not names or len(blocks) < 2:
        return {}
    seen: dict[str, list[np.ndarray]] = {name: [] for name in names}
    for block in blocks:
        batch = source.read(block, names)
        rows = pa.array(np.unique(np.linspace(0, batch.num_rows - 1, ROWS).astype(np.int64)))
        for name in names:
            seen[name].append(np.asarray(pc.fill_null(batch.column(name).take(rows).cast(pa.string()), "")))
    found = {name: _sortedness(values) for name, values in seen.items()}
    return {name: round(value, 2) for name, value in found.items() if value >= SORTED}


def _may_be_label(kind: pa.DataType) -> bool:
    return any(is_a(kind) for is_a in (pa.types.is_integer, pa.types.is_boolean, pa.types.is_string))


def _sortedness(blocks: Sequence[np.ndarray]) -> float:
    """1 where each block has one value, 0 where each has as many as rows drawn at random from all of them."""
    _, every = np.unique(np.concatenate(blocks), return_counts=True)
    if not 1 < len(every) <= MOST_VALUES:
        return 0.0
    shares = every / every.sum()
    drawn = np.array([np.sum(1 - (1 - shares) ** len(values)) for values in blocks])
    there = np.array([len(np.unique(values)) for values in blocks])
    # A block of one row has one value in any order.
    tells = drawn > 1.5
    return float(np.clip(np.mean(1 - (there - 1)[tells] / (drawn - 1)[tells]), 0, 1)) if tells.any() else 0.0
