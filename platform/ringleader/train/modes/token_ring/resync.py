"""The beginning of a generation of the token ring: what members know is gathered, and all get the newest copies."""

from collections.abc import Sequence
from typing import TypeVar

import torch
from torch import Tensor

from ringleader.comm.communicator import EXPRESS
from ringleader.comm.objects import packed, unpacked
from ringleader.comm.schedules import Receive, Send, Step
from ringleader.comm.schedules.schedule import chunks
from ringleader.exchange.exchange import Exchange
from ringleader.exchange.side_channel import RESYNC
from ringleader.train.modes.token_ring.regeneration import ABSENT, RegeneratedToken, TokenCopy, regenerate
from ringleader.train.modes.token_ring.weight_spans import WeightSpans

T = TypeVar("T")

CHUNK = 1 << 20
"""Elements of a copy in one message."""
PARTS, COPIES = 0, 1
"""Channels of LEVEL."""


def gather(exchange: Exchange, part: T, *types: type) -> list[T]:
    """The `part` of every member, by rank; made of plain values and of these types. Raises ExchangeBroken."""
    communicator = exchange.communicator
    if communicator is None:
        return [part]
    mine = packed(part, communicator.seal)
    rank, size = communicator.rank, communicator.size
    # Lengths first: a receiver posts memory of the right size.
    lengths = torch.zeros(size, dtype=torch.float64)
    lengths[rank] = mine.numel()
    rows = [torch.empty(int(n), dtype=torch.uint8) for n in exchange.all_reduce(lengths)]
    rows[rank] = mine
    others = [peer for peer in range(size) if peer != rank]
    steps: list[Step] = [Send(peer, rank, (0, mine.numel()), PARTS) for peer in others]
    steps += [Receive(peer, peer, (0, rows[peer].numel()), PARTS) for peer in others]
    _run(exchange, steps, rows)
    return [unpacked(row, communicator.seal, *types) for row in rows]


def resync(
    exchange: Exchange, spans: WeightSpans, copies: Sequence[Sequence[TokenCopy]]
) -> list[RegeneratedToken]:
    """Give every member to whom tokens come the newest copy of every token.

    Args:
        copies: of every member, by rank.

    Raises:
        ExchangeBroken: what has come until then stays.
    """
    regenerated = [regenerate([known[number] for known in copies]) for number in range(len(spans))]
    for number, token in enumerate(regenerated):
        # Members to whom no tokens come are at ABSENT, and never behind.
        behind = [r for r, known in enumerate(copies) if ABSENT < known[number].version < token.version]
        spans.adopt(number, token, brought=_bring(exchange, spans, number, token.source, behind))
    return regenerated


def _bring(exchange: Exchange, spans: WeightSpans, number: int, source: int, behind: Sequence[int]) -> bool:
    """Send or receive one copy. Returns whether it was received."""
    communicator = exchange.communicator
    if communicator is None:
        return False
    row = spans.incoming(number)
    steps: list[Step] = []
    pieces = list(chunks((0, row.numel()), CHUNK))
    if communicator.rank == source:
        row = spans.held[number].weights
        steps = [Send(peer, 0, piece, COPIES) for piece in pieces for peer in behind]
    elif communicator.rank in behind:
        steps = [Receive(source, 0, piece, COPIES) for piece in pieces]
    if steps:
        _run(exchange, steps, [row])
    return communicator.rank in behind


def _run(exchange: Exchange, steps: Sequence[Step], rows: Sequence[Tensor]) -> None:
    communicator = exchange.communicator
    assert communicator is not None, "a member that is alone levels nothing"
    ticket = communicator.submit(steps, rows, tag=RESYNC, phase="level", bucket=None, lane=EXPRESS)
    communicator.wait([ticket])
