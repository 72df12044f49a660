"""The logical shards of a batch: the same fixed parts, however many rows it has."""


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
