"""The data cursor is a pure function of step and spec, and every row has exactly one place."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ringleader.train.rows.order.batch_sizes import present_shards, shard_span
from ringleader.train.rows.order.cursor import Epoch, checksum

SIZES = st.integers(1, 300)


@given(rows=SIZES, batch=SIZES, shards=st.integers(1, 40), seed=st.integers(0, 5))
def test_an_epoch_takes_every_row_exactly_once(rows: int, batch: int, shards: int, seed: int) -> None:
    epoch = Epoch.shuffled(rows=rows, batch=batch, shards=shards, seed=seed, epoch=0, shuffle=True)
    taken = [epoch.rows(offset, shard) for offset in range(epoch.steps) for shard in range(shards)]
    assert sorted(np.concatenate(taken).tolist()) == list(range(rows))


@given(rows=st.integers(0, 300), shards=st.integers(1, 40))
def test_present_shards_are_those_with_rows(rows: int, shards: int) -> None:
    spans = [shard_span(k, rows, shards) for k in range(shards)]
    assert present_shards(rows, shards) == {k for k, (low, high) in enumerate(spans) if high > low}
    assert spans[0][0] == 0
    assert spans[-1][1] == rows


def test_the_last_batch_is_short_and_not_dropped_by_itself() -> None:
    epoch = Epoch.shuffled(rows=10, batch=4, shards=2, seed=0, epoch=0, shuffle=False)
    assert [epoch.batch_rows(offset) for offset in range(epoch.steps)] == [4, 4, 2]
    assert epoch.rows(2, 1).tolist() == [9]


@given(rows=SIZES, batch=SIZES, shards=st.integers(1, 40), seed=st.integers(0, 5))
def test_without_its_short_last_batch_an_epoch_takes_whole_batches_of_distinct_rows(
    rows: int, batch: int, shards: int, seed: int
) -> None:
    order = {"rows": rows, "batch": batch, "shards": shards, "seed": seed, "epoch": 1, "shuffle": True}
    whole, dropped = Epoch.shuffled(**order), Epoch.shuffled(**order, drop_last=True)
    assert dropped.steps == rows // batch
    assert all(dropped.batch_rows(offset) == batch for offset in range(dropped.steps))
    assert dropped.order.tolist() == whole.order.tolist()[: dropped.steps * batch]


def test_epochs_differ_in_order_and_repeat_for_the_same_seed() -> None:
    def order(seed: int, index: int) -> list[int]:
        return Epoch.shuffled(rows=50, batch=8, shards=2, seed=seed, epoch=index, shuffle=True).order.tolist()

    assert order(3, 0) == order(3, 0)
    assert order(3, 0) != order(3, 1)
    assert order(3, 0) != order(4, 0)


def test_a_checksum_is_exact_in_float32_and_sees_one_changed_row() -> None:
    rows = np.arange(1000, dtype=np.int64)
    other = rows.copy()
    other[500] = 7
    assert checksum(rows) != checksum(other)
    assert int(np.float32(checksum(rows))) == checksum(rows)
