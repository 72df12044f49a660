"""Reading blocks of files before they are needed: the windows that slices are taken from, told to the data set."""

from collections.abc import Sequence
from itertools import chain, zip_longest
from typing import Any

from ringleader.data import FileDataset
from ringleader.data.inside import file_set
from ringleader.train.rows.order.block_order import Window

STEPS = 64
"""A shard that no slice of so many steps belongs to is another worker's now: its window is let go."""


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
