"""Orders of rows are pure functions of seed, epoch and place, and give every row exactly one place."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringleader.spec.data import Data
from ringleader.train.rows.order.block_order import BlockOrder
from ringleader.train.rows.order.cursor import Epoch, checksum
from ringleader.train.rows.order.keyed_permutation import permuted

BLOCKS = st.lists(st.integers(1, 40), min_size=1, max_size=30)
KINDS = st.sampled_from(["shuffled", "row", "block"])


def one_pass(
    block_rows: list[int],
    batch: int,
    shards: int,
    *,
    order: str = "block",
    window: int = 3,
    seed: int = 0,
    epoch: int = 0,
    drop_last: bool = False,
) -> Epoch:
    return Epoch.shuffled(
        rows=sum(block_rows),
        batch=batch,
        shards=shards,
        seed=seed,
        epoch=epoch,
        shuffle=True,
        drop_last=drop_last,
        data=Data(order=order, window_blocks=window if order == "block" else None),
        block_rows=np.array(block_rows, np.int64),
    )


def slices(epoch: Epoch) -> list[list[np.ndarray]]:
    return [[epoch.rows(offset, k) for k in range(epoch.shards)] for offset in range(epoch.steps)]


@settings(max_examples=40)
@given(BLOCKS, st.integers(1, 200), st.integers(1, 12), st.integers(1, 6), KINDS, st.integers(0, 3))
def test_every_order_takes_every_row_exactly_once_in_the_same_batches(
    block_rows: list[int], batch: int, shards: int, window: int, order: str, seed: int
) -> None:
    rows = sum(block_rows)
    epoch = one_pass(block_rows, batch, shards, order=order, window=window, seed=seed)
    plain = Epoch.shuffled(rows=rows, batch=batch, shards=shards, seed=0, epoch=0, shuffle=False)
    found = slices(epoch)
    assert [[len(part) for part in step] for step in found] == [[len(p) for p in s] for s in slices(plain)]
    assert sorted(np.concatenate([row for step in found for row in step]).tolist()) == list(range(rows))


@settings(max_examples=40)
@given(BLOCKS, st.integers(1, 200), st.integers(1, 12), KINDS)
def test_without_its_short_last_batch_every_order_takes_whole_batches_of_distinct_rows(
    block_rows: list[int], batch: int, shards: int, order: str
) -> None:
    epoch = one_pass(block_rows, batch, shards, order=order, drop_last=True)
    assert epoch.steps == sum(block_rows) // batch
    taken = [row for offset in range(epoch.steps) for row in epoch.rows_of(offset, range(shards)).tolist()]
    assert len(set(taken)) == len(taken) == epoch.steps * batch
    assert set(taken) <= set(range(sum(block_rows)))


@settings(max_examples=40)
@given(BLOCKS, st.integers(1, 60), st.integers(1, 8), st.integers(1, 5), st.data())
def test_a_slice_does_not_depend_on_what_was_asked_for_before(
    block_rows: list[int], batch: int, shards: int, window: int, data: st.DataObject
) -> None:
    whole = slices(one_pass(block_rows, batch, shards, window=window))
    fresh = one_pass(block_rows, batch, shards, window=window)
    offset = data.draw(st.integers(0, len(whole) - 1))
    shard = data.draw(st.integers(0, shards - 1))
    assert fresh.rows(offset, shard).tolist() == whole[offset][shard].tolist()
    assert fresh.rows_of(offset, range(shards)).tolist() == np.concatenate(whole[offset]).tolist()


@settings(max_examples=40)
@given(BLOCKS, st.integers(1, 60), st.integers(1, 8), st.integers(1, 5), st.booleans())
def test_a_slices_rows_lie_in_its_window_and_later_ones_in_the_two_behind_it(
    block_rows: list[int], batch: int, shards: int, window: int, drop_last: bool
) -> None:
    epoch = one_pass(block_rows, batch, shards, window=window, drop_last=drop_last)
    ends = np.cumsum(block_rows)
    for shard in range(shards):
        allowed: set[int] = set()
        for offset in range(epoch.steps):
            blocks = set(np.searchsorted(ends, epoch.rows(offset, shard), side="right").tolist())
            windows = epoch.windows_of(offset, [shard])
            assert len(windows) == bool(blocks)
            if windows:
                assert blocks <= set(windows[0].now)
                # A slice of one window begins in the window of the slice before it, or in the next.
                assert not allowed or len(windows[0].now) > window or set(windows[0].now) <= allowed
                allowed = {*windows[0].now, *windows[0].ahead}


@settings(max_examples=40)
@given(BLOCKS, st.integers(1, 60), st.integers(1, 8), st.integers(1, 5))
def test_a_block_is_read_for_one_shard_but_where_two_parts_meet(
    block_rows: list[int], batch: int, shards: int, window: int
) -> None:
    epoch, ends = one_pass(block_rows, batch, shards, window=window), np.cumsum(block_rows)
    read = {
        (shard, block)
        for step in slices(epoch)
        for shard, rows in enumerate(step)
        for block in np.searchsorted(ends, rows, side="right").tolist()
    }
    assert len(read) <= len(block_rows) + shards - 1


@settings(max_examples=30)
@given(st.integers(1, 3000), st.integers(0, 2**64 - 1))
def test_a_keyed_permutation_is_one_whatever_the_size(size: int, key: int) -> None:
    found = permuted(np.arange(size), np.full(size, size), np.full(size, key, np.uint64))
    assert sorted(found.tolist()) == list(range(size))


@pytest.mark.parametrize("size", [2, 3, 5, 17, 64, 100, 1000])
def test_each_place_of_a_keyed_permutation_is_equally_likely(size: int) -> None:
    keys = np.arange(40 * size, dtype=np.uint64)
    for place in (0, size - 1):
        found = permuted(np.full(len(keys), place), np.full(len(keys), size), keys)
        counts = np.bincount(found, minlength=size)
        chi_squared = ((counts - 40) ** 2 / 40).sum()
        # Five standard deviations above the mean of chi-squared with so many degrees of freedom.
        assert chi_squared < (size - 1) + 5 * np.sqrt(2 * size)


def test_neighbours_come_apart_in_a_keyed_permutation() -> None:
    size = 100_003
    found = permuted(np.arange(size), np.full(size, size), np.full(size, 7, np.uint64))
    # A third of the range is what two numbers drawn at random are apart on average.
    assert abs(np.abs(np.diff(found)).mean() / size - 1 / 3) < 0.01


def test_orders_differ_by_seed_and_epoch_and_repeat() -> None:
    for order in ("row", "block"):
        first, again, other, later = (
            one_pass([20] * 30, 50, 4, order=order, seed=seed, epoch=epoch).rows_of(0, range(4)).tolist()
            for seed, epoch in ((1, 0), (1, 0), (2, 0), (1, 1))
        )
        assert first == again
        assert first not in (other, later)
        assert other != later


def test_the_orders_stay_what_they_are() -> None:
    """The bits of jobs follow from these: a change breaks the promise to every job that is paused."""
    found = {
        order: checksum(one_pass([7, 30, 1, 12] * 10, 64, 4, order=order, seed=5).rows_of(2, range(4)))
        for order in ("shuffled", "row", "block")
    }
    assert found == {"shuffled": 4_188_281, "row": 14_437_722, "block": 11_844_979}


def test_a_data_set_without_blocks_is_shuffled_by_rows() -> None:
    keys = {"rows": 100, "batch": 10, "shards": 2, "seed": 3, "epoch": 1, "shuffle": True}
    by_block = Epoch.shuffled(**keys, data=Data(order="block"))
    assert by_block.rows(4, 1).tolist() == Epoch.shuffled(**keys, data=Data(order="row")).rows(4, 1).tolist()


def test_a_billion_rows_need_no_list_of_them() -> None:
    blocks = np.full(100_000, 10_000)
    keys = {"rows": 10**9, "batch": 1024, "shards": 8, "seed": 0, "epoch": 3, "shuffle": True}
    for order in ("row", "block"):
        epoch = Epoch.shuffled(**keys, data=Data(order=order), block_rows=blocks)
        rows = epoch.rows_of(epoch.steps - 2, range(8))
        assert len(set(rows.tolist())) == 1024
        assert 0 <= rows.min() < rows.max() < 10**9


def test_every_window_of_a_part_is_shuffled_in_its_own_way() -> None:
    order = BlockOrder(np.full(40, 10), taken=400, batch=20, shards=2, window=2, key=9)
    laid = np.concatenate([order[offset * 20 : offset * 20 + 10] for offset in range(20)])
    inside = [(laid[start : start + 20] % 10).tolist() for start in range(0, 200, 20)]
    assert len({tuple(part) for part in inside}) == len(inside)
