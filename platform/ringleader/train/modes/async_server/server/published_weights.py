"""The weights that a server hands out where items are leased: its newest ones, and of tables the rows that a worker
lacks."""

from collections.abc import Sequence

import torch
from torch import Tensor

from ringleader.exchange.sparse_messages import message_bytes, packed
from ringleader.train.generation.member import Member
from ringleader.train.modes.async_server.server.changed_rows import ChangedRows
from ringleader.train.modes.async_server.server_share import ServerShare


class PublishedWeights:
    """One server's weights in one loop.

    Attributes:
        held: the share that it updates, in the buckets of the running generation.
        shown: the part of it that workers pull.
        tables: the numbers of its parameters whose gradients are rows.
        touched: the rows that have changed in this loop.
    """

    def __init__(self, member: Member, held: ServerShare, shown: ServerShare) -> None:
        self.touched = ChangedRows({number: member.parameters[number] for number in held.numbers.values()})
        self.held, self.shown = held, shown
        self.tables = tuple(held.numbers.values())
        self._member = member

    def open(self, held: ServerShare, shown: ServerShare) -> None:
        """Begin a generation: where its plan leaves a lost server out, its backup shows parts that it only updated
        before."""
        self.held, self.shown = held, shown

    def copy_weights(self, rows: Sequence[Tensor]) -> None:
        """Copy the newest weights into (length,) tensors, one for each bucket."""
        member = self._member
        views: list[Tensor] = []
        weights: list[Tensor] = []
        for bucket, row in zip(self.shown.buckets, rows, strict=True):
            views += member.generation.exchange.buckets.views(bucket, row)
            weights += [member.parameters[n].detach() for n in bucket.members]
        if views:
            torch._foreach_copy_(views, weights)

    def rows_since(self, version: int) -> tuple[Tensor, tuple[int, ...]]:
        """(bytes,) uint8 of the rows that have changed since that version, and how many of each of the job's tables."""
        shown = self.shown
        news = self.touched.news(version, shown.numbers.values())
        counts = [0] * len(self._member.tables)
        for place, (_, rows) in zip(shown.numbers, news, strict=True):
            counts[place] = rows.count
        self._travelled([rows.count for _, rows in news], shown)
        return packed(news), tuple(counts)

    def came(self, counts: Sequence[int]) -> None:
        """Count received rows, so many of each of the tables that this server updates, as traffic."""
        self._travelled(counts, self.held)

    def _travelled(self, counts: Sequence[int], share: ServerShare) -> None:
        nbytes = message_bytes(counts, list(share.tables.values()))
        self._member.generation.exchange.buckets.tables.sent(nbytes)
