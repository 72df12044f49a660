"""The schedule `doubling`: recursive doubling, whole buckets with the neighbour first, then at distance 2, 4, ...

lg P hops, half of what any other schedule needs that does not send everything to everybody, and lg P · S per rank: for
small buckets. In a world that is no power of two, the first P - 2^k pairs of neighbours act as one rank each, as in
`halving_doubling`, for two hops more. Thakur, Rabenseifner and Gropp, "Optimization of collective communication
operations in MPICH", 2005, section 4.5.

Both ends of an exchange add the same two sums, so all end with the same bits. Canonical as `halving_doubling`.
"""

from collections.abc import Iterator

from ringleader.comm.schedules.halving import HalvingLevel, added, awaited
from ringleader.comm.schedules.primitives import paired
from ringleader.comm.schedules.schedule import PARTIALS, RankPart, Schedule, Send, Step, chunks


def steps(part: RankPart) -> Iterator[Step]:
    yield from paired.steps(part, _exchange)


def sent(part: RankPart) -> int:
    """S at every level at which this side holds anything, and S between the two of a pair."""
    return paired.sent(part, lambda levels: part.length * sum(level.mine for level in levels))


def _exchange(part: RankPart, levels: list[HalvingLevel]) -> Iterator[Step]:
    whole = (0, part.length)
    for level in levels:
        # Into scratch memory if this side holds anything: row 0 is what it sends meanwhile.
        yield from awaited(part, level.partner, whole, mine=level.mine, theirs=level.theirs)
        for chunk in chunks(whole, part.chunk) if level.mine else ():
            yield Send(level.partner, 0, chunk, PARTIALS)
        yield from added(part, whole, mine=level.mine, theirs=level.theirs)


DOUBLING = Schedule("doubling", canonical=paired.canonical, steps=steps, sent=sent)
