"""What a server hands out where items are leased: its newest weights, and of tables the rows that a worker lacks."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ringleader.comm.buckets import Bucket
from ringleader.sync.row_messages import message_bytes, packed
from ringleader.train.group import Group
from ringleader.train.touching import Touched


class Stock:
    """The part of one server in one loop.

    Args:
        tables: the numbers by their place among all tables.

    Attributes:
        part: its buckets, those of the running generation.
        tables: the numbers of its parameters whose gradients are rows.
        touched: the rows that have changed in this loop.
    """

    def __init__(self, group: Group, part: Sequence[Bucket], tables: Mapping[int, int]) -> None:
        self.touched = Touched({number: group.parameters[number] for number in tables.values()})
        self.part = part
        self.tables = tuple(tables.values())
        self._group = group
        self._places = tuple(tables)

    def copy_weights(self, rows: Sequence[Tensor]) -> None:
        """Into (length,) tensors, one for each bucket."""
        group = self._group
        assert group.exchange is not None
        views: list[Tensor] = []
        weights: list[Tensor] = []
        for bucket, row in zip(self.part, rows, strict=True):
            views += group.exchange.buckets.views(bucket, row)
            weights += [group.parameters[n].detach() for n in bucket.members]
        if views:
            torch._foreach_copy_(views, weights)

    def rows_since(self, version: int) -> tuple[Tensor, tuple[int, ...]]:
        """(bytes,) uint8 of the rows that have changed since, and how many of each of the job's tables."""
        news = self.touched.news(version)
        counts = [0] * len(self._group.tables)
        for place, (_, rows) in zip(self._places, news, strict=True):
            counts[place] = rows.count
        self.travelled([rows.count for _, rows in news])
        return packed(news), tuple(counts)

    def travelled(self, counts: Sequence[int]) -> None:
        """So many rows of each of this server's tables came or go."""
        parameters = self._group.parameters
        nbytes = message_bytes(counts, [parameters[number] for number in self.tables])
        assert self._group.exchange is not None
        self._group.exchange.buckets.tables.wire_bytes += nbytes
