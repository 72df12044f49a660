"""What a worker of the token ring holds between generations: its copies of the tokens, their news, its own position."""

import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ringleader.elastic.items import Items
from ringleader.elastic.tokens import Copy, Standing
from ringleader.sync import Exchange
from ringleader.sync.circulation import Circulation
from ringleader.sync.levelling import gather, level
from ringleader.sync.news import Known, News
from ringleader.sync.spans import Spans
from ringleader.train.group import Group
from ringleader.train.settling import absent
from ringleader.train.steps import Loop
from ringleader.train.word import BATCHES


@dataclass(frozen=True, slots=True)
class Told:
    """What a member says when a generation begins."""

    copies: list[Copy]
    known: Known
    offset: int


class Tokens:
    """The tokens of one worker.

    Attributes:
        spans: the weights; the parameters live in them.
        news: reports of items that are not recorded yet, and the newest buffers.
    """

    def __init__(self, group: Group) -> None:
        self._group = group
        self._loop = -1
        self._heals = 0
        self._buffers_of = -1
        self.news = News()
        sync = group.spec.sync
        self.spans = Spans(group.parameters, sync.tokens or group.spec.workers.max)

    def begin(self, loop: Loop) -> None:
        """Lists are those of this loop; a member that was healed has no copy of its own, nor owes anything."""
        if self._loop != loop.number:
            self.spans.begin(absent(loop.epoch))
            self.news.clear()
            self._loop, self._buffers_of = loop.number, -1
        if self._heals != self._group.heals:
            self.spans.forget()
            self._heals, self._buffers_of = self._group.heals, -1
            self._go_on(loop, self._group.inside)
            self._group.inside = {}

    def position(self, call: int) -> dict[str, Any]:
        """What the tokens list while all copies are equal, for a checkpoint.

        Args:
            call: the number of the running loop, or -1.
        """
        return {"call": call, "items": self.spans.everywhere().encode(), "known": self.news.all()}

    def _go_on(self, loop: Loop, inside: dict[str, Any]) -> None:
        """The attempt begins with a checkpoint: its weights are the tokens, which hold the items listed there."""
        if not inside:
            return
        here = inside["call"] == loop.number
        self.spans.stand(Items.decode(inside["items"]) if here else Items(0, absent(loop.epoch)))
        if here:
            self.news.join([inside["known"]])

    def meet(self, exchange: Exchange, loop: Loop) -> list[Standing]:
        """All members have the newest copies, the same news and the same position. Raises ExchangeBroken."""
        group = self._group
        assert group.seat is not None
        self._check(exchange, loop)
        self.begin(loop)
        self.spans.open()
        everybody = gather(exchange, Told(self.spans.copies(), self.news.all(), group.calls.offset))
        self._catch_up(exchange, loop, [told.offset for told in everybody])
        self.news.join([told.known for told in everybody])
        self.news.drop(group.calls.offset * group.spec.shards)
        standings = level(exchange, self.spans, [told.copies for told in everybody])
        self.freshen()
        return standings

    def circulate(self, exchange: Exchange) -> Circulation:
        """The tokens begin to go round."""
        seat = self._group.seat
        assert seat is not None
        groups = seat.transport.groups if seat.transport is not None else ()
        circulation = Circulation(exchange.communicator, groups, self.spans, self.news)
        circulation.start()
        return circulation

    def freshen(self) -> None:
        """Between two slices: the newest weights and buffers are those to compute with."""
        self.spans.take_over()
        item, buffers = self.news.newest_buffers()
        if buffers is not None and item > self._buffers_of:
            self._group.buffers.commit(buffers)
            self._buffers_of = item
        self._group.buffers.rewind()

    def keep_buffers(self, item: int) -> None:
        """A slice of the first shard is done: what its forward left is the newest, unless it was computed again."""
        buffers = self._group.buffers
        buffers.keep_left()
        left = buffers.encode()
        if left is not None and item > self._buffers_of:
            self.news.left(item, left)

    def _check(self, exchange: Exchange, loop: Loop) -> None:
        """All members are at the same call. Raises CallMismatch."""
        group = self._group
        assert group.seat is not None
        word = group.layout.write(
            rank=group.seat.rank,
            call=loop.number,
            kind=BATCHES + loop.index,
            step=group.calls.base,
            pending=False,
        )
        group.check(exchange.meet(word))

    def _catch_up(self, exchange: Exchange, loop: Loop, offsets: Sequence[int]) -> None:
        """Members that have settled fewer steps take the records and the position of the one that is furthest."""
        group = self._group
        assert group.seat is not None
        rank, furthest = group.seat.rank, max(range(len(offsets)), key=lambda r: (offsets[r], -r))
        behind = [r for r in range(len(offsets)) if offsets[r] < offsets[furthest]]
        if rank == furthest:
            payload = pickle.dumps((group.samples, group.loss, group.reporter.state()))
            for receiver in behind:
                exchange.send_state(receiver, torch.from_numpy(np.frombuffer(payload, dtype=np.uint8).copy()))
        elif rank in behind:
            sent = exchange.receive_state(furthest).numpy().tobytes()
            group.samples, group.loss, records = pickle.loads(sent)  # noqa: S301 - members trust each other
            group.reporter.catch_up(records)
            group.step += offsets[furthest] - group.calls.offset
            group.calls.offset = offsets[furthest]
