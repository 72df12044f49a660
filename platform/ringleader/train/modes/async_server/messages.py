"""Messages between workers and servers where items are leased: requests, replies, pushes, receipts.

Each is one float64 vector of a length fixed for the job; whole numbers up to 2^53 are exact in it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from enum import IntEnum
from math import isnan, nan
from typing import Any

import torch
from torch import Tensor

PUSH, RECEIPT, ASK, ANSWER, TAKEN = 10, 11, 12, 13, 14
"""Message tags, between those of the side and those of the buckets."""

REPORT = 16
"""float64 entries of a slice's report, see `train.generation.control_word.SliceReport`."""

OVER, NOT_YET = -1, -2
"""Codes in place of an item: there are no more; there is none now, but newer weights."""

END, UPDATE, CLOSE = -1, -2, -3
"""Codes in place of an item that server 0 has taken: it takes no more in this generation; it makes the update that is
due; the loop has ended."""


class RequestKind(IntEnum):
    """The kind of a request: an item, the newest weights of a part, to end the loop for all, or a farewell."""

    ITEM = 0
    WEIGHTS = 1
    BREAK = 2
    LEAVE = 3


@dataclass(frozen=True, slots=True)
class PullRequest:
    """A worker's request.

    Attributes:
        have: the version of this server's weights that it has; -1 for none.
        least: the version that they must have at least.
        stop: the update after which the loop shall end; -1: none.
    """

    wish: RequestKind
    have: int
    least: int = 0
    stop: int = -1

    def encode(self) -> Tensor:
        return _vector([self.wish, self.have, self.least, self.stop])

    @classmethod
    def decode(cls, words: Tensor) -> "PullRequest":
        wish, *rest = (int(word) for word in words.tolist())
        return cls(RequestKind(wish), *rest)


@dataclass(frozen=True, slots=True)
class PullReply:
    """A server's reply; the weights follow where they are `fresh`.

    Attributes:
        item: the item to compute, `OVER` or `NOT_YET`; -1 where only weights were asked for.
        clock: the update it is meant for.
        version: of the weights.
        step: global steps committed.
        loss: of the newest one.
        rows: of each table, how many follow the weights of the buckets.
    """

    item: int
    clock: int
    version: int
    fresh: bool
    step: int
    loss: float | None
    rows: tuple[int, ...] = ()

    def encode(self) -> Tensor:
        # NaN stands for no step yet: a committed loss is always finite.
        loss = nan if self.loss is None else self.loss
        return _vector([self.item, self.clock, self.version, self.fresh, self.step, loss, *self.rows])

    @classmethod
    def decode(cls, words: Tensor) -> "PullReply":
        *numbers, loss = words[:_ANSWER].tolist()
        item, clock, version, fresh, step = (int(number) for number in numbers)
        rows = tuple(int(count) for count in words[_ANSWER:].tolist())
        return cls(item, clock, version, bool(fresh), step, None if isnan(loss) else loss, rows)


@dataclass(frozen=True, slots=True)
class PushHeader:
    """The header of a push, ahead of its gradient. `leaving`: no gradient follows, and no push will.

    Attributes:
        version: of the server's weights that it was computed on.
        stop: the loop shall end.
        buffers: whether the buffers that the forward left follow the gradient.
        names: bytes of the metrics' names, which come last; 0 where they were told before.
        report: (REPORT,) float64.
        used: (parameters,) float64, which ones the backward reached.
        sums: (blocks,) float64 squares of the whole gradient by blocks, for the norm that clips; or none.
        rows: of each table, how many come last of all.
        exposed_s: of the `since_s` seconds since this worker's push before, those in which it waited for the exchange.
        loading_s: those in which it waited for a batch.
    """

    leaving: bool
    item: int
    clock: int
    version: int
    stop: bool
    buffers: bool
    names: int
    report: Tensor
    used: Tensor
    sums: Tensor
    rows: tuple[int, ...] = ()
    exposed_s: float = 0.0
    since_s: float = 0.0
    loading_s: float = 0.0

    def encode(self) -> Tensor:
        head = [self.leaving, self.item, self.clock, self.version, self.stop, self.buffers, self.names]
        times = _vector([self.exposed_s, self.since_s, self.loading_s])
        return torch.cat([_vector(head), times, self.report, self.used, self.sums, _vector(self.rows)])

    @classmethod
    def decode(cls, words: Tensor, layout: "MessageLayout") -> "PushHeader":
        leaving, *numbers, stop, buffers, names = (int(word) for word in words[:_PUSH].tolist())
        sizes = [_TIMES, REPORT, layout.parameters, layout.blocks, layout.tables]
        times, report, used, sums, counts = torch.split(words[_PUSH:], sizes)
        item, clock, version = numbers
        rows = tuple(int(count) for count in counts.tolist())
        head = (bool(leaving), item, clock, version, bool(stop), bool(buffers), names)
        return cls(*head, report, used, sums, rows, *times.tolist())


def _set_state(header: PushHeader, state: Sequence[Any]) -> None:
    # A checkpoint of a version before has pushes without the newest fields.
    for number, field in enumerate(fields(header)):
        object.__setattr__(header, field.name, state[number] if number < len(state) else field.default)


# Not in the class: `dataclass` of Python 3.11.2 puts its own in place of what stands there.
PushHeader.__setstate__ = _set_state  # type: ignore[attr-defined]


# Fixed, because a receiver posts its buffer before it knows what comes.
_ASK, _PUSH, _TIMES, _ANSWER = 4, 7, 3, 6


@dataclass(frozen=True, slots=True)
class MessageLayout:
    """The lengths of messages, fixed for a job.

    Attributes:
        parameters: how many there are.
        blocks: of the norms that clip; 0 where nobody needs them.
        buffers: bytes of the models' buffers.
        tables: parameters whose gradients are rows.
        starts: whether the buffers that a forward left come with those that it began with, ahead of any others.
    """

    parameters: int
    blocks: int
    buffers: int
    tables: int = 0
    starts: bool = False

    def ask(self) -> Tensor:
        return torch.empty(_ASK, dtype=torch.float64)

    def answer(self) -> Tensor:
        return torch.empty(_ANSWER + self.tables, dtype=torch.float64)

    def push(self) -> Tensor:
        length = _PUSH + _TIMES + REPORT + self.parameters + self.blocks + self.tables
        return torch.empty(length, dtype=torch.float64)

    def receipt(self) -> Tensor:
        """(1,) the verdict."""
        return torch.empty(1, dtype=torch.float64)

    def leaving(self) -> PushHeader:
        # Of full length: the thread that hears it has posted a receive for any push.
        nothing = torch.zeros(REPORT, dtype=torch.float64)
        used, sums = (torch.zeros(n, dtype=torch.float64) for n in (self.parameters, self.blocks))
        return PushHeader(True, -1, -1, -1, False, False, 0, nothing, used, sums, (0,) * self.tables)


def _vector(values: Sequence[float]) -> Tensor:
    # Exact for whole numbers below 2**53, so that items, versions and counts need no message of their own.
    return torch.tensor(values, dtype=torch.float64)
