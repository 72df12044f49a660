"""The sizes of a pass's batches, where they change on the way, and the spans of a batch's logical shards."""

from collections.abc import Sequence

from ringleader.spec.batch import Batch

Changes = Sequence[tuple[int, int]]
"""(offset, rows), ascending: from that batch of the pass on a global batch has so many rows."""


def batch_at(offset: int, batch: int, changes: Changes = ()) -> tuple[int, int]:
    """The first row of the batch at `offset`, and the rows of a whole one.

    Args:
        batch: rows of the first one.
    """
    start, since = 0, 0
    for at, rows in changes:
        if at > offset:
            break
        start, since, batch = start + (at - since) * batch, at, rows
    return start + (offset - since) * batch, batch


def steps_in_epoch(rows: int, batch: int, *, drop_last: bool = False, changes: Changes = ()) -> int:
    """Steps of one pass: the last batch may be short, and is left out only where the program says so."""
    since = 0
    for at, size in changes:
        if (at - since) * batch >= rows:
            break
        rows, since, batch = rows - (at - since) * batch, at, size
    return since + (rows // batch if drop_last else -(-rows // batch))


def steps_ahead(batch: Batch, step: int, rows: int, epochs: int, *, drop_last: bool = False) -> int:
    """Steps that so many passes take behind `step` committed ones."""
    first = step
    for _ in range(epochs):
        size, changes = batch.size_at(step), batch.changes_behind(step)
        step += steps_in_epoch(rows, size, drop_last=drop_last, changes=changes)
    return step - first


def shard_span(shard: int, rows: int, shards: int) -> tuple[int, int]:
    """Shard k of n rows is [k*n//L, (k+1)*n//L); it may be empty. The parts stay, however many rows a batch has."""
    return shard * rows // shards, (shard + 1) * rows // shards


def present_shards(rows: int, shards: int) -> frozenset[int]:
    """The shards that have rows in a batch of `rows`."""
    if rows >= shards:
        return frozenset(range(shards))
    return frozenset(
        k for k in range(shards) if shard_span(k, rows, shards)[0] < shard_span(k, rows, shards)[1]
    )
