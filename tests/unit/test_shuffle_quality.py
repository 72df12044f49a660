"""The quality of a shuffle: blocks in a batch, and what is left of the files' order."""

import numpy as np
import pytest

from ringleader.spec.data import Data
from ringleader.train.rows.order.cursor import Epoch
from ringleader.train.rows.order.shuffle_quality import by_order, shuffle_quality

BLOCKS = np.full(400, 50)


def passed(order: str = "row", *, shards: int = 1, window: int | None = None, shuffle: bool = True) -> Epoch:
    data = Data(order=order, window_blocks=window)
    rows = int(BLOCKS.sum())
    return Epoch.shuffled(
        rows=rows, batch=64, shards=shards, seed=3, epoch=1, shuffle=shuffle, data=data, block_rows=BLOCKS
    )


def test_rows_as_they_lie_are_no_shuffle() -> None:
    found = shuffle_quality(passed(shuffle=False), BLOCKS)
    # 64 rows touch two blocks of 50, or three.
    assert 2 <= found.batch_blocks <= 3
    assert found.rank_correlation == pytest.approx(1.0, abs=1e-6)  # rounding of sums


def test_a_batch_of_rows_shuffled_one_by_one_has_the_blocks_that_chance_gives() -> None:
    found = shuffle_quality(passed("row"), BLOCKS)
    # 400 blocks, 64 draws: 400 * (1 - (1 - 1/400)^64). Of 100 batches the mean is off by 0.2 in one of a hundred.
    assert found.batch_blocks == pytest.approx(400 * (1 - (1 - 1 / 400) ** 64), abs=0.6)
    assert abs(found.rank_correlation) < 0.05  # 6,400 places: a standard deviation of 0.0125


@pytest.mark.parametrize(("shards", "window"), [(1, 4), (1, 16), (4, 4)])
def test_by_blocks_a_batch_comes_from_a_window_for_each_shard(shards: int, window: int) -> None:
    found = shuffle_quality(passed("block", shards=shards, window=window), BLOCKS)
    # A little more where a slice meets the next window; 16 rows or more find nearly all of 4 or 16 blocks.
    assert 0.9 * shards * window < found.batch_blocks < 1.3 * shards * window
    # Blocks come at random, 400 of them: a standard deviation of 0.05.
    assert abs(found.rank_correlation) < 0.2


def test_each_order_of_the_job_file_is_told() -> None:
    found = by_order(BLOCKS, batch=64, shards=2)
    assert list(found) == ["shuffled", "row", "block"]
    assert found["shuffled"] == found["row"]
    assert found["block"]["batch_blocks"] < found["row"]["batch_blocks"]


@pytest.mark.parametrize("rows", [1, 2, 64])
def test_sets_smaller_than_a_batch_have_a_quality_too(rows: int) -> None:
    found = by_order(np.ones(rows, np.int64), batch=64, shards=1)
    assert all(quality["batch_blocks"] == rows for quality in found.values())
