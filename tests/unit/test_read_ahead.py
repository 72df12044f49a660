"""Slices of files shuffled by blocks: each block is read once an epoch, before it is needed, by who owns its shard."""

from collections.abc import Sequence

import numpy as np
import pytest
from test_data_files import BLOCKS, ROWS, Numbers, Wrapped
from waiting import wait_for

from ringleader.data import FileDataset
from ringleader.elastic.plan import owned
from ringleader.spec.data import Data
from ringleader.train.rows.blocks import STEPS, ReadAhead
from ringleader.train.rows.order.block_order import Window
from ringleader.train.rows.order.cursor import Epoch
from ringleader.train.rows.slices import Slice, load

SHARDS = 4
BLOCK_BYTES = ROWS * 8


def pieces(epoch: Epoch, shards: Sequence[int], merged: bool) -> list[Slice]:
    """The slices that a worker loads: one a shard and step, or one a step where no bits are promised."""
    together = [shards] if merged else [[shard] for shard in shards]
    return [
        Slice(("step", offset, part[0]), part[0], epoch.rows_of(offset, part), epoch.windows_of(offset, part))
        for offset in range(epoch.steps)
        for part in together
        if len(epoch.rows_of(offset, part))
    ]


@pytest.mark.parametrize("merged", [False, True], ids=["slices", "merged"])
@pytest.mark.parametrize("world", [1, 2, 3])
@pytest.mark.parametrize("wrapped", [False, True], ids=["itself", "inside"])
def test_all_workers_together_read_each_block_once_and_each_row_once(
    world: int, merged: bool, wrapped: bool
) -> None:
    epoch = Epoch.shuffled(
        rows=BLOCKS * ROWS,
        batch=23,
        shards=SHARDS,
        seed=0,
        epoch=0,
        shuffle=True,
        data=Data(order="block", window_blocks=2),
        block_rows=np.full(BLOCKS, ROWS),
    )
    read: list[int] = []
    rows: list[int] = []
    for rank in range(world):
        source, shards = Numbers(), owned(rank, world, SHARDS)
        # One block: what the windows hold has to stay all the same.
        dataset = FileDataset(source, cache_bytes=BLOCK_BYTES)
        batches = load(
            Wrapped(dataset) if wrapped else dataset, pieces(epoch, shards, merged), seed=0, collate=None
        )
        rows += [row for batch in batches for row in batch["n"].tolist()]
        read += source.read_blocks
    assert sorted(rows) == list(range(BLOCKS * ROWS))
    # Parts meet inside three blocks at most, and what a slice needs of a window behind the next is read in its turn.
    assert len(read) <= BLOCKS + SHARDS - 1


def test_the_next_window_is_there_before_it_is_needed() -> None:
    source = Numbers()
    dataset = FileDataset(source)
    ReadAhead(dataset).enter(0, [Window(0, (3, 4), (5, 6)), Window(1, (9,), (8, 7))])
    wait_for("blocks", lambda: len(source.read_blocks) == 7, 20)
    assert sorted(source.read_blocks) == [3, 4, 5, 6, 7, 8, 9]
    dataset.batch([59, 70])
    assert len(source.read_blocks) == 7


def test_the_window_of_a_shard_that_another_worker_has_is_let_go() -> None:
    source = Numbers()
    dataset = FileDataset(source, cache_bytes=1)
    ahead = ReadAhead(dataset)
    ahead.enter(0, [Window(0, (0, 1), ()), Window(1, (2,), ())])
    wait_for("blocks", lambda: len(source.read_blocks) == 3, 20)
    for step in range(1, STEPS + 2):
        ahead.enter(step, [Window(1, (2,), ())])
    dataset.batch([190])
    assert dataset._reader.get().held == 2  # the window of shard 1, and the newest block
