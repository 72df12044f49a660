"""Which buckets and tables one server of several has to do with where items are leased."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch.nn import Parameter

from ringleader.comm.buckets import Bucket, Buckets

HeldBy = Sequence[Sequence[int]]
"""For each part of the parameters the servers that hold it, see `Plan.held_by`."""


@dataclass(frozen=True, slots=True)
class ServerShare:
    """Of one server.

    Attributes:
        tables: by their place among all tables.
        numbers: of the same, among all parameters.
    """

    buckets: tuple[Bucket, ...]
    tables: dict[int, Parameter]
    numbers: dict[int, int]

    @classmethod
    def held(cls, buckets: Buckets, held_by: HeldBy, server: int) -> "ServerShare":
        """What the server updates."""
        return cls._of(buckets, lambda part: server in held_by[part])

    @classmethod
    def shown(cls, buckets: Buckets, held_by: HeldBy, server: int) -> "ServerShare":
        """What workers pull from it: each part from the first server that holds it."""
        return cls._of(buckets, lambda part: server == held_by[part][0])

    @classmethod
    def whole(cls, buckets: Buckets) -> "ServerShare":
        """Everything, of a worker that is its own server."""
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
