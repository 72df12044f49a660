"""The order in which a schedule adds up whole ranks, and whether it is the canonical tree's.

Schedules that add what ranks hold instead of completing the tree at one owner send one row a rank, whatever it holds.
The price: they are canonical only for parts in which every sum they make is a node of the tree.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from ringleader.comm.schedules.schedule import Add, RankPart, Step, Zero
from ringleader.comm.tree import TreeNode


@dataclass(frozen=True, slots=True)
class SumOrder:
    """A rank's own row, to which the sums of `then` are added one after the other."""

    rank: int
    then: tuple["SumOrder", ...] = ()

    def ranks(self) -> Iterator[int]:
        yield self.rank
        for later in self.then:
            yield from later.ranks()

    def plus(self, *more: "SumOrder") -> "SumOrder":
        return SumOrder(self.rank, self.then + more)


def binomial(orders: Sequence[SumOrder]) -> SumOrder:
    """Neighbours first, then pairs, then fours: the canonical tree's shape over the orders, ending at the first."""

    def at(i: int) -> SumOrder:
        below, step = orders[i], 1
        while i + step < len(orders) and not i & step:
            below, step = below.plus(at(i + step)), step * 2
        return below

    return at(0)


def along_tree(part: RankPart, order: SumOrder) -> bool:
    """Whether every rank's own sum and every sum of the order is one node of the tree, or of nothing at all."""
    return _node(part, order) is not None


def _node(part: RankPart, order: SumOrder) -> Sequence[TreeNode] | None:
    """The one node that the order sums up to; no node where nothing is held, None off the tree."""
    nodes: Sequence[TreeNode] = part.rows[order.rank]
    for later in order.then:
        more = _node(part, later)
        if more is None or len(nodes) > 1:
            return None
        for node in more:
            nodes, _ = part.tree.push(nodes, node)
    return nodes if len(nodes) <= 1 else None


def holds(part: RankPart, ranks: Iterable[int]) -> bool:
    """Whether any of the ranks has something to add."""
    # Those that have not are skipped, never added as zeros: -0.0 + 0.0 has other bits than -0.0.
    return any(part.rows[rank] for rank in ranks)


def own_sum(part: RankPart) -> Iterator[Step]:
    """Add this rank's rows up in row 0; fill it with zeros where no rank at all holds anything."""
    whole = (0, part.length)
    if not holds(part, range(part.world)):
        yield Zero(0, whole)
    for row in range(1, len(part.rows[part.rank])):
        yield Add(0, row, whole)
