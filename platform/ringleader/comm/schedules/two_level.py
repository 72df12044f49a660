"""The schedule `two_level`: reduce inside each node, then between the nodes, then hand out inside each node.

With N nodes of at least K ranks the bucket has K lanes. The k-th rank of every node collects its node's sum over lane
k, the k-th ranks of all nodes sum that lane among themselves, each as the owner of a part of it, and every node spreads
the results. 2(N-1)/N of the bucket cross a node's link in each direction, however many ranks it has; a ring takes
2(P-1)/P, and that only if its neighbours are on one node wherever they can be. Cho et al., "BlueConnect: decomposing
all-reduce for deep learning on heterogeneous network hierarchy", 2019. One node with all ranks: it sends as `direct`.

It is canonical where what each node holds adds up to one node of the tree. Then a rank sends all its partial sums into
its node; otherwise it adds them up first.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from ringleader.comm.schedules.direct import owner_reduce
from ringleader.comm.schedules.order import own_sum
from ringleader.comm.schedules.schedule import (
    RESULTS,
    Part,
    Receive,
    Schedule,
    Send,
    Span,
    Step,
    chunks,
    even_spans,
    size,
)
from ringleader.comm.tree import Node, tree_over


def canonical(part: Part) -> bool:
    return all(len(_sum(part, group)) <= 1 for group in part.nodes)


def steps(part: Part) -> Iterator[Step]:
    own = _Place.of(part)
    if not canonical(part):
        yield from own_sum(part)
    inside = own.inside(part)
    yield from _among(own.group, owner_reduce(inside, own.collected, listeners=range(0)))
    if own.lane is not None:
        between = own.between(part)
        yield from _among(own.owners, owner_reduce(between, own.parts, listeners=range(between.world)))
    yield from _spread(part, own)


def sent(part: Part) -> int:
    """Own sums of others' lanes; the own lane's sum but for the own part, and that part's result; the lane's result."""
    own = _Place.of(part)
    rows = len(own.inside(part).rows[own.member])
    total = rows * (part.length - size(own.collected[own.member]))
    if own.lane is None:
        return total
    node, lane, mine = own.group_number, size(own.lane), size(own.parts[own.group_number])
    scattered = len(own.between(part).rows[node]) * (lane - mine)
    return total + scattered + (len(own.owners) - 1) * mine + (len(own.group) - 1) * lane


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a rank stands.

    Attributes:
        group, member: the ranks of its node, and which of them it is.
        group_number: which node that is.
        collected: for each of these ranks the lane that it collects, empty for those behind the K-th.
        owners: the ranks that collect the same lane, one a node.
        lane: that lane; None for a rank that collects none.
        parts: what each of the owners sums of the lane.
    """

    group: tuple[int, ...]
    member: int
    group_number: int
    collected: tuple[Span, ...]
    owners: tuple[int, ...]
    lane: Span | None
    parts: tuple[Span, ...]

    @staticmethod
    def of(part: Part) -> "_Place":
        number = next(i for i, group in enumerate(part.nodes) if part.rank in group)
        group = part.nodes[number]
        member = group.index(part.rank)
        lanes = even_spans(part.length, min(map(len, part.nodes)))
        collected = lanes + ((0, 0),) * (len(group) - len(lanes))
        if member >= len(lanes):
            return _Place(group, member, number, collected, (), None, ())
        lane = lanes[member]
        owners = tuple(other[member] for other in part.nodes)
        parts = tuple((lane[0] + a, lane[0] + b) for a, b in even_spans(size(lane), len(owners)))
        return _Place(group, member, number, collected, owners, lane, parts)

    def inside(self, part: Part) -> Part:
        """The sum inside the node, over its ranks; along the tree where that is canonical, else over whole ranks."""
        rows = tuple(part.rows[rank] for rank in self.group)
        return _over(part, self.member, rows)

    def between(self, part: Part) -> Part:
        """The sum of a lane, over the nodes."""
        rows = tuple(_sum(part, group) for group in part.nodes)
        return _over(part, self.group_number, rows)


def _over(part: Part, rank: int, rows: tuple[tuple[Node, ...], ...]) -> Part:
    if canonical(part):
        return replace(part, rank=rank, rows=rows, groups=())
    held = [i for i, nodes in enumerate(rows) if nodes]
    leaves = tuple((Node(0, i),) if nodes else () for i, nodes in enumerate(rows))
    return replace(part, rank=rank, rows=leaves, groups=(), tree=tree_over(len(rows), frozenset(held)))


def _sum(part: Part, group: tuple[int, ...]) -> tuple[Node, ...]:
    """What a node's ranks hold together, added up along the tree as far as it goes."""
    stack: list[Node] = []
    for rank in group:
        for node in part.rows[rank]:
            stack, _ = part.tree.push(stack, node)
    return tuple(stack)


def _among(ranks: tuple[int, ...], steps: Iterator[Step]) -> Iterator[Step]:
    """Steps among some ranks, with their peers' numbers in the world."""
    for step in steps:
        match step:
            case Send() | Receive():
                yield replace(step, peer=ranks[step.peer])
            case _:
                yield step


def _spread(part: Part, own: _Place) -> Iterator[Step]:
    others = [(peer, lane) for peer, lane in zip(own.group, own.collected, strict=True) if peer != part.rank]
    for peer, lane in others:
        for chunk in chunks(lane, part.chunk):
            yield Receive(peer, 0, chunk, RESULTS)
    for chunk in chunks(own.lane or (0, 0), part.chunk):
        for peer, _ in others:
            yield Send(peer, 0, chunk, RESULTS)


TWO_LEVEL = Schedule("two_level", canonical=canonical, steps=steps, sent=sent)
