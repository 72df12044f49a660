"""The schedule `halving_doubling`: reduce-scatter by recursive halving, all-gather by recursive doubling.

For P = 2^k ranks 2 lg P exchanges and 2(P-1)/P of the bucket per rank, as few bytes as a ring in far fewer hops. Any
other world: the first P - 2^k pairs of neighbours act as one rank each. One of the two hands its whole bucket to the
other before, and gets the result after. Rabenseifner, "Optimization of collective reduction operations", 2004; Thakur,
Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH", 2005, section 4.5.

Neighbours meet first, so it is canonical wherever every run of members that meets another holds one node of the tree:
with P = 2^k and 2^m shards a rank, and in those other worlds whose pairs fit (3, 6 and 7 ranks with one shard each, for
example; not 5).
"""

from collections.abc import Iterator

from ringleader.comm.schedules.halving import HalvingLevel, all_gather, gathered, reduce_scatter, scattered
from ringleader.comm.schedules.primitives import paired
from ringleader.comm.schedules.schedule import RankPart, Schedule, Step


def steps(part: RankPart) -> Iterator[Step]:
    yield from paired.steps(part, _exchange)


def sent(part: RankPart) -> int:
    """2(S - S/2^k) over the halves, and S between the two of a pair; ranks that hold nothing scatter nothing."""
    return paired.sent(part, lambda levels: scattered(levels) + gathered(levels))


def _exchange(part: RankPart, levels: list[HalvingLevel]) -> Iterator[Step]:
    yield from reduce_scatter(part, levels)
    yield from all_gather(part, levels)


HALVING_DOUBLING = Schedule("halving_doubling", canonical=paired.canonical, steps=steps, sent=sent)
