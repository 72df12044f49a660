"""The schedule `binary_blocks`: halving and doubling for any world, in blocks of 2^k ranks, one a binary digit of P.

The ranks form blocks of falling size (13 = 8 + 4 + 1). Each block reduces and scatters by itself; then sums go up from
the smallest block to the largest, span by span, results come back down, and each block gathers. A rank of a block of B
sends 2(1 - 1/B) S inside, and S/B towards each of its neighbouring blocks. With P = 2^k it is `halving_doubling`.
Rabenseifner, "Optimization of collective reduction operations", 2004, section on the binary blocks algorithm.

Blocks lie one after the other, as the tree cuts a world that is no power of two: it is canonical for every P with one
shard, or 2^m shards, a rank.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ringleader.comm.schedules.halving import (
    HalvingBlock,
    all_gather,
    gathered,
    reduce_scatter,
    scattered,
    take,
)
from ringleader.comm.schedules.primitives.order import SumOrder, along_tree, binomial, holds, own_sum
from ringleader.comm.schedules.schedule import (
    PARTIALS,
    RESULTS,
    RankPart,
    Receive,
    Schedule,
    Send,
    Span,
    Step,
    chunks,
    size,
)


def canonical(part: RankPart) -> bool:
    *larger, smallest = [binomial([SumOrder(rank) for rank in block]) for block in _blocks(part.world)]
    order = smallest
    for block in reversed(larger):
        # From the smallest block up, as sums travel: each larger block adds what came to its own sum.
        order = block.plus(order)
    return along_tree(part, order)


def steps(part: RankPart) -> Iterator[Step]:
    yield from own_sum(part)
    seat = _seat(part)
    levels = seat.block.levels(part)
    yield from reduce_scatter(part, levels)
    mine = holds(part, seat.ranks)
    for peer in seat.below:
        yield from take(part, peer, seat.span, mine=mine, theirs=seat.smaller_hold)
    # The block above takes nothing from blocks that hold nothing, as it does not add zeros.
    if mine or seat.smaller_hold:
        yield from _sends(part, seat.above, PARTIALS)
    for peer, span in seat.above:
        for chunk in chunks(span, part.chunk):
            yield Receive(peer, 0, chunk, RESULTS)
    yield from _sends(part, [(peer, seat.span) for peer in seat.below], RESULTS)
    yield from all_gather(part, levels)


def sent(part: RankPart) -> int:
    """The elements of the module's formula; a block scatters, and sends up, only what a rank in it or below it
    holds."""
    seat = _seat(part)
    levels = seat.block.levels(part)
    up = bool(seat.above) and (holds(part, seat.ranks) or seat.smaller_hold)
    return scattered(levels) + gathered(levels) + size(seat.span) * (up + len(seat.below))


@dataclass(frozen=True, slots=True)
class _Seat:
    """The position of a rank among the blocks.

    Attributes:
        ranks, block: its own block.
        span: the span that it holds when its block has scattered.
        above: the ranks of the next larger block that share that span, with their spans; none in the largest.
        below: the rank of the next smaller block whose span contains its own; none in the smallest.
        smaller_hold: whether any rank of the smaller blocks holds anything.
    """

    ranks: range
    block: HalvingBlock
    span: Span
    above: tuple[tuple[int, Span], ...]
    below: tuple[int, ...]
    smaller_hold: bool


def _seat(part: RankPart) -> _Seat:
    blocks = _blocks(part.world)
    at = next(i for i, ranks in enumerate(blocks) if part.rank in ranks)
    own = blocks[at]
    lane = _lanes(own).index(part.rank)
    above: list[tuple[int, Span]] = []
    below: list[int] = []
    if at > 0:
        larger, ratio = blocks[at - 1], len(blocks[at - 1]) // len(own)
        ranks = _lanes(larger)[lane * ratio : (lane + 1) * ratio]
        above = [(rank, _block(larger).span(part, rank - larger.start)) for rank in ranks]
    if at + 1 < len(blocks):
        smaller = blocks[at + 1]
        below = [_lanes(smaller)[lane * len(smaller) // len(own)]]
    rest = range(own.stop, part.world)
    span = _block(own).span(part, part.rank - own.start)
    return _Seat(own, _block(own), span, tuple(above), tuple(below), holds(part, rest))


def _blocks(world: int) -> list[range]:
    """The blocks, largest first: ranks [0, 8), [8, 12), [12, 13) for 13."""
    blocks, start = [], 0
    # One block for each bit of the number of ranks, so that no two have the same size.
    for bit in reversed(range(world.bit_length())):
        if world >> bit & 1:
            blocks.append(range(start, start + (1 << bit)))
            start += 1 << bit
    return blocks


def _block(ranks: range) -> HalvingBlock:
    return HalvingBlock(tuple((rank,) for rank in ranks))


def _lanes(ranks: range) -> list[int]:
    """The ranks of a block in the order of the spans with which they end."""
    return sorted(ranks, key=lambda rank: _block(ranks).lane(rank - ranks.start))


def _sends(part: RankPart, to: Sequence[tuple[int, Span]], channel: int) -> Iterator[Step]:
    for peer, span in to:
        for chunk in chunks(span, part.chunk):
            yield Send(peer, 0, chunk, channel)


BINARY_BLOCKS = Schedule("binary_blocks", canonical=canonical, steps=steps, sent=sent)
