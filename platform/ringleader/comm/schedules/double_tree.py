"""The schedule `double_tree`: each half of the bucket climbs a binary tree of its own and comes down again, in pieces.

The trees are chosen so that a rank that adds in one is a leaf in the other: in the second, rank r stands where P-1-r
stands in the first if P is even, where r-1 does if it is odd (there one rank adds in both). So everybody sends 2S at
most, in about 2 lg P hops. Sanders, Speck and Träff, "Two-tree algorithms for full bandwidth broadcast,
reduction and scan", 2009.

Ranks inside such a tree add their own row between their children's sums, which the canonical tree never does: it is
canonical for one or two ranks, and where ranks that hold nothing leave such a sum.
"""

from collections.abc import Iterator

from ringleader.comm.schedules.primitives import rooted
from ringleader.comm.schedules.primitives.order import SumOrder, along_tree
from ringleader.comm.schedules.schedule import RankPart, Schedule, Step


def canonical(part: RankPart) -> bool:
    return all(along_tree(part, climb.order) for climb in _climbs(part))


def steps(part: RankPart) -> Iterator[Step]:
    yield from rooted.steps(part, _climbs(part))


def sent(part: RankPart) -> int:
    return rooted.sent(part, _climbs(part))


def _climbs(part: RankPart) -> list[rooted.TreeSum]:
    world, middle = part.world, part.length // 2
    mirrored = [world - 1 - r if world % 2 == 0 else (r + 1) % world for r in range(world)]
    return [
        rooted.TreeSum(_binary(list(range(world))), (0, middle)),
        rooted.TreeSum(_binary(mirrored), (middle, part.length)),
    ]


def _binary(ranks: list[int]) -> SumOrder:
    """Place 0 above a binary tree in which place m·2^j, m odd, has those 2^(j-1) away below it; odd ones are leaves."""
    world = len(ranks)

    def below(place: int, reach: int) -> SumOrder:
        order = SumOrder(ranks[place])
        if reach:
            order = order.plus(below(place - reach, reach // 2))
        # The world may end inside the right half: the nearest place that exists has the rest below it.
        while reach and place + reach >= world:
            reach //= 2
        return order.plus(below(place + reach, reach // 2)) if reach else order

    top = 1 << ((world - 1).bit_length() - 1) if world > 1 else 0
    return SumOrder(ranks[0], (below(top, top // 2),) if top else ())


DOUBLE_TREE = Schedule("double_tree", canonical=canonical, steps=steps, sent=sent)
