"""The buckets and tables that belong to one server of several, where items are leased."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch.nn import Parameter

from ringleader.comm.buckets import Bucket, Buckets

HeldBy = Sequence[Sequence[int]]
"""For each part of the parameters the servers that hold it, see `Plan.held_by`."""


@dataclass(frozen=True, slots=True)
class ServerShare:
    """One server's share of the parameters.

    Attributes:
        tables: by their place among all tables.
        numbers: of the same, among all parameters.
    """

    buckets: tuple[Bucket, ...]
    tables: dict[int, Parameter]
    numbers: dict[int, int]

    @classmethod
    def held(cls, buckets: Buckets, held_by: HeldBy, server: int) -> "ServerShare":
        """The share that the server updates."""
        return cls._of(buckets, lambda part: server in held_by[part])

    @classmethod
    def shown(cls, buckets: Buckets, held_by: HeldBy, server: int) -> "ServerShare":
        """The share that workers pull from it: each part from the first server that holds it."""
        # Where a plan leaves a lost server out, the next holder publishes: this order alone promotes it.
        return cls._of(buckets, lambda part: server == held_by[part][0])

    @classmethod
    def whole(cls, buckets: Buckets) -> "ServerShare":
        """The share of a worker that is its own server: everything."""
        return cls._of(buckets, lambda _: True)

    @classmethod
    def _of(cls, buckets: Buckets, has: Callable[[int], bool]) -> "ServerShare":
        tables = {
            place: (number, table)
            for place, (number, table) in enumerate(buckets.tables)
            if has(buckets.owners[number])
        }
        return cls(
            tuple(b for b in buckets.buckets if has(b.owner)),
            {place: table for place, (_, table) in tables.items()},
            {place: number for place, (number, _) in tables.items()},
        )
