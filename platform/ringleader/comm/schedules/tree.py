"""The schedule `tree`: sums climb a binomial tree to rank 0, and the result comes back down it.

2 lg P hops one after the other, S to the parent and S to each child: for buckets so small that hops, not bytes, take
the time; larger ones travel in pieces. Thakur, Rabenseifner and Gropp, "Optimization of collective communication
operations in MPICH", 2005, the binomial trees of broadcast and reduce.

The binomial tree adds neighbours, then pairs, as the canonical tree does: it is canonical for every P with one shard,
or 2^m shards, a rank, and wherever else every aligned run of 2^j ranks holds one node.
"""

from collections.abc import Iterator

from ringleader.comm.schedules.primitives import rooted
from ringleader.comm.schedules.primitives.order import SumOrder, along_tree, binomial
from ringleader.comm.schedules.schedule import RankPart, Schedule, Step


def canonical(part: RankPart) -> bool:
    return along_tree(part, _order(part))


def steps(part: RankPart) -> Iterator[Step]:
    yield from rooted.steps(part, _climbs(part))


def sent(part: RankPart) -> int:
    return rooted.sent(part, _climbs(part))


def _climbs(part: RankPart) -> list[rooted.TreeSum]:
    return [rooted.TreeSum(_order(part), (0, part.length))]


def _order(part: RankPart) -> SumOrder:
    return binomial([SumOrder(rank) for rank in range(part.world)])


TREE = Schedule("tree", canonical=canonical, steps=steps, sent=sent)
