"""The blocks of the files that a data set takes its rows from, and reading them before they are needed."""

from collections.abc import Sequence
from itertools import chain, zip_longest
from typing import Any

import numpy as np

from ringleader.data import FileDataset
from ringleader.data.inside import file_set
from ringleader.spec import JobSpec
from ringleader.spec.data import WINDOW_BLOCKS, Data
from ringleader.train.job_warnings import JobWarnings
from ringleader.train.rows.order.block_order import Window

ABOUT = "data_order"
WORTH = 2.0
"""As many times faster has `order: block` to be for a warning."""
WINDOWS_BYTES = 1 << 30
"""With `order: auto`, the windows of all logical shards together have no more, but a block for each. Never another
number: the order follows from it."""
STEPS = 64
"""A shard that no slice of so many steps belongs to is another worker's now: its window is let go."""


def order_for(spec: JobSpec, dataset: Any) -> Data:
    """The `data:` of the job file as it is for a data set. With `order: auto` files are shuffled by blocks, in windows
    of bounded size. As with `shuffled` are data sets in memory, those that keep all rows they have read, and those of
    a batch whose size changes, for which no file can be cut. A function of the job file and the files, and of nothing
    that a node has: every worker and every attempt needs the same."""
    data = spec.data
    if data.order != "auto":
        return data
    files = file_set(dataset)
    if files is None or FileDataset.keeps_rows(files) or spec.batch.schedule:
        return data.model_copy(update={"order": "shuffled", "window_blocks": None})
    size_bytes = spec.shards * FileDataset.block_bytes(files)
    fits = WINDOWS_BYTES // size_bytes if size_bytes else WINDOW_BLOCKS
    window = data.window_blocks or max(1, min(WINDOW_BLOCKS, fits))
    return data.model_copy(update={"order": "block", "window_blocks": window})


def warn_of_decoding(dataset: Any, rows_at_once: int, warnings: JobWarnings) -> None:
    """Warn where rows are shuffled one by one from files that are larger than what stays in memory of them.

    Args:
        rows_at_once: those of a slice.
    """
    files = file_set(dataset)
    again = 1.0 if files is None else FileDataset.decoded_per_row(files, rows_at_once)
    if again >= WORTH:
        warnings.add(
            ABOUT,
            f"the rows of {type(files).__name__} are shuffled one by one, and its files take more memory than its "
            f"cache_bytes: a worker decodes about {again:,.0f} rows for each one that it uses.",
            f"data: {{order: block}} decodes each row group once an epoch, and reads up to {again:,.0f} times as fast; "
            "it changes the order of rows, and so the bits.",
        )


def blocks_of(dataset: Any, warnings: JobWarnings) -> np.ndarray | None:
    """(blocks,) int64, the rows of each block; None for a data set without blocks, whose rows are shuffled one by one,
    with a warning."""
    files = file_set(dataset)
    if files is not None:
        return FileDataset.files(files).block_rows
    warnings.add(
        ABOUT,
        f"data.order is block, but {type(dataset).__name__} is not made of one data set over files: its rows are "
        "shuffled one by one.",
        "Keep one ringleader.data.ParquetDataset of the same length in an attribute, or use data.order: row.",
    )
    return None


class ReadAhead:
    """The windows of the shards that this process loads. Nothing is read before the first of them is entered."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset
        self._files: FileDataset | None = None
        self._entered: dict[int, tuple[int, Window]] = {}

    def enter(self, step: int, windows: Sequence[Window]) -> None:
        """Have the data set keep the blocks of a slice's windows, and read those behind them."""
        before = {shard: window for shard, (_, window) in self._entered.items()}
        self._entered |= {window.shard: (step, window) for window in windows}
        self._entered = {k: entry for k, entry in self._entered.items() if abs(step - entry[0]) <= STEPS}
        now = {shard: window for shard, (_, window) in self._entered.items()}
        if now == before:
            return
        self._files = self._files or file_set(self._dataset)
        if self._files is not None:
            ahead = chain.from_iterable(zip_longest(*(window.ahead for window in now.values())))
            FileDataset.expect(
                self._files,
                list(chain.from_iterable(window.now for window in now.values())),
                [block for block in ahead if block is not None],
            )
