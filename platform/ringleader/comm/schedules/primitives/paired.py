"""Any world as 2^k members: if ranks are left over, the first members are pairs, of which one rank stands aside."""

from collections.abc import Callable, Iterator

from ringleader.comm.schedules.halving import HalvingBlock, HalvingLevel, take
from ringleader.comm.schedules.primitives.order import SumOrder, along_tree, binomial, holds, own_sum
from ringleader.comm.schedules.schedule import PARTIALS, RESULTS, RankPart, Receive, Send, Step, chunks

Exchange = Callable[[RankPart, list[HalvingLevel]], Iterator[Step]]


def canonical(part: RankPart) -> bool:
    """Whether pairs, and then runs of 2, 4, ... members, hold one node of the tree each."""
    members = paired(part.world).members
    return along_tree(part, binomial([SumOrder(m[0], tuple(SumOrder(r) for r in m[1:])) for m in members]))


def steps(part: RankPart, exchange: Exchange) -> Iterator[Step]:
    """The exchange among the members. A rank that stands aside hands its bucket over before and gets the result
    after."""
    yield from own_sum(part)
    first, *aside = member_of(part)
    if part.rank != first:
        yield from _stand_aside(part, first)
        return
    whole = (0, part.length)
    for peer in aside:
        yield from take(part, peer, whole, mine=holds(part, [first]), theirs=holds(part, [peer]))
    yield from exchange(part, paired(part.world).levels(part))
    for peer in aside:
        for chunk in chunks(whole, part.chunk):
            yield Send(peer, 0, chunk, RESULTS)


def sent(part: RankPart, exchanged: Callable[[list[HalvingLevel]], int]) -> int:
    """The elements of the exchange, and S from each of a pair to the other."""
    first, *aside = member_of(part)
    if part.rank != first:
        return part.length if holds(part, [part.rank]) else 0
    return exchanged(paired(part.world).levels(part)) + part.length * len(aside)


def paired(world: int) -> HalvingBlock:
    """The world as the largest 2^k of members."""
    count = 1 << (world.bit_length() - 1)
    pairs = world - count
    together = tuple((2 * i, 2 * i + 1) for i in range(pairs))
    return HalvingBlock(together + tuple((rank,) for rank in range(2 * pairs, world)))


def member_of(part: RankPart) -> tuple[int, ...]:
    """The ranks of this rank's member: the one that takes part, then the one that stands aside."""
    return next(member for member in paired(part.world).members if part.rank in member)


def _stand_aside(part: RankPart, partner: int) -> Iterator[Step]:
    pieces = list(chunks((0, part.length), part.chunk))
    for chunk in pieces if holds(part, [part.rank]) else ():
        yield Send(partner, 0, chunk, PARTIALS)
    for chunk in pieces:
        yield Receive(partner, 0, chunk, RESULTS)
