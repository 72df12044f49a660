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

from ringleader.comm.schedules.direct import complete, hand_over, owner_reduce
from ringleader.comm.schedules.primitives.order import own_sum
from ringleader.comm.schedules.schedule import (
    RESULTS,
    Add,
    RankPart,
    Receive,
    Schedule,
    Send,
    Span,
    Step,
    chunks,
    even_spans,
    size,
)
from ringleader.comm.tree import TreeNode, tree_over


def canonical(part: RankPart) -> bool:
    return all(len(_sum(part, group)) <= 1 for group in part.nodes)


def steps(part: RankPart) -> Iterator[Step]:
    """Piece after piece: while one crosses the links, the next is added up inside and the one before is handed out."""
    if not canonical(part):
        yield from own_sum(part)
    pieces = _pieces(part)
    # Two turns more than pieces: the last one is exchanged a turn after it was collected, and spread in the next.
    for k in range(len(pieces) + 2):
        if k < len(pieces):
            yield from pieces[k].collect(turn=k % 2)
        if 1 <= k <= len(pieces):
            yield from pieces[k - 1].exchange(turn=(k - 1) % 2)
        if k >= 2:
            yield from pieces[k - 2].spread()


def sent(part: RankPart) -> int:
    """Of every piece: own sums of others' lanes; the own lane's sum but for the own part; results, see `_Piece`."""
    return sum(piece.sent() for piece in _pieces(part))


@dataclass(frozen=True, slots=True)
class _Seat:
    """The position of a rank in its node and among the nodes.

    Attributes:
        group, member: the ranks of its node, and its index among them.
        owners: the ranks that collect the same lane, one a node; none for a rank behind the K-th of its node.
        inside: its part in the sums inside the node.
        between: its part in the sums of a lane, over the nodes.
    """

    group: tuple[int, ...]
    member: int
    owners: tuple[int, ...]
    inside: RankPart
    between: RankPart

    @staticmethod
    def of(part: RankPart) -> "_Seat":
        nodes = _in_order(part)
        number = next(i for i, group in enumerate(nodes) if part.rank in group)
        group = nodes[number]
        member = group.index(part.rank)
        owners = tuple(other[member] for other in nodes) if member < _lanes(part) else ()
        inside = _over(part, member, tuple(part.rows[rank] for rank in group))
        between = _over(part, number, tuple(_sum(part, group) for group in nodes))
        return _Seat(group, member, owners, inside, between)


@dataclass(frozen=True, slots=True)
class _Piece:
    """A piece of the bucket, as one rank treats it.

    Attributes:
        collected: for each rank of its node the lane that it collects, empty for those behind the K-th.
        parts: the part of this rank's lane that each of the owners sums.
    """

    seat: _Seat
    collected: tuple[Span, ...]
    parts: tuple[Span, ...]

    @staticmethod
    def of(seat: _Seat, span: Span, lanes: int) -> "_Piece":
        collected = _split(span, lanes) + ((span[1], span[1]),) * (len(seat.group) - lanes)
        parts = _split(collected[seat.member], len(seat.owners)) if seat.owners else ()
        return _Piece(seat, collected, parts)

    def collect(self, turn: int) -> Iterator[Step]:
        """Sum the node's rows over this rank's lane, and hand the sum over to the lane's owners."""
        seat = self.seat
        yield from _among(seat.group, owner_reduce(seat.inside, self.collected, range(0)), below=0)
        if seat.owners:
            steps = hand_over(seat.between, self.parts, range(seat.between.world))
            yield from _among(seat.owners, steps, self._below(turn))

    def exchange(self, turn: int) -> Iterator[Step]:
        """Complete the sum of this rank's part of the lane, and send it to the other nodes."""
        seat = self.seat
        if seat.owners:
            steps = complete(seat.between, self.parts, range(seat.between.world))
            yield from _among(seat.owners, steps, self._below(turn))

    def spread(self) -> Iterator[Step]:
        """Send the lane's results to every rank of the node, and receive those of the other lanes."""
        rank, group = self.seat.group[self.seat.member], self.seat.group
        others = [(peer, lane) for peer, lane in zip(group, self.collected, strict=True) if peer != rank]
        # Receives first, for the same reason as in `hand_over`.
        for peer, lane in others:
            for chunk in chunks(lane, self.seat.inside.chunk):
                yield Receive(peer, 0, chunk, RESULTS)
        for chunk in chunks(self.collected[self.seat.member], self.seat.inside.chunk):
            for peer, _ in others:
                yield Send(peer, 0, chunk, RESULTS)

    def sent(self) -> int:
        """Elements; the own part's result goes to the other owners, the lane's to the node."""
        seat = self.seat
        whole, lane = sum(map(size, self.collected)), size(self.collected[seat.member])
        total = len(seat.inside.rows[seat.member]) * (whole - lane) + (len(seat.group) - 1) * lane
        if not seat.owners:
            return total
        mine = size(self.parts[seat.between.rank])
        return (
            total + len(seat.between.rows[seat.between.rank]) * (lane - mine) + (len(seat.owners) - 1) * mine
        )

    def _below(self, turn: int) -> int:
        """The number of slots below this piece's own: two pieces are on their way between the nodes while a third is
        added up inside, and each has its own slots."""
        inside, between = (
            part.window * sum(map(len, part.rows)) for part in (self.seat.inside, self.seat.between)
        )
        return inside + turn * between


def _pieces(part: RankPart) -> list[_Piece]:
    """The pieces of the bucket, such that each owner's part of one is one message."""
    seat, lanes = _Seat.of(part), _lanes(part)
    spans = chunks((0, part.length), part.chunk * lanes * len(part.nodes))
    return [_Piece.of(seat, span, lanes) for span in spans]


def _lanes(part: RankPart) -> int:
    # Each lane has an owner on every node, also on the one with the fewest ranks.
    return min(map(len, part.nodes))


def _split(span: Span, count: int) -> tuple[Span, ...]:
    return tuple((span[0] + a, span[0] + b) for a, b in even_spans(size(span), count))


def _in_order(part: RankPart) -> list[tuple[int, ...]]:
    """The nodes' ranks, in the order in which their sums are added up along the tree."""

    def first(group: tuple[int, ...]) -> int:
        held = _sum(part, group)
        return held[0].covers(part.tree.total).start if held else part.tree.total

    # By shards and not by rank: a node whose first rank holds nothing may come before one of earlier shards.
    return sorted(part.nodes, key=first) if canonical(part) else list(part.nodes)


def _over(part: RankPart, rank: int, rows: tuple[tuple[TreeNode, ...], ...]) -> RankPart:
    if canonical(part):
        return replace(part, rank=rank, rows=rows, groups=())
    # Off the tree anyway: every holder counts as one leaf, in rank order.
    held = [i for i, nodes in enumerate(rows) if nodes]
    leaves = tuple((TreeNode(0, i),) if nodes else () for i, nodes in enumerate(rows))
    return replace(part, rank=rank, rows=leaves, groups=(), tree=tree_over(len(rows), frozenset(held)))


def _sum(part: RankPart, group: tuple[int, ...]) -> tuple[TreeNode, ...]:
    """The partial sums that a node's ranks hold together, added up along the tree as far as it goes."""
    stack: list[TreeNode] = []
    for rank in group:
        for node in part.rows[rank]:
            stack, _ = part.tree.push(stack, node)
    return tuple(stack)


def _among(ranks: tuple[int, ...], steps: Iterator[Step], below: int) -> Iterator[Step]:
    """The steps among some ranks, with their peers' numbers in the world and their slots behind `below` others."""

    def at(place: int) -> int:
        return place if place >= 0 else place - below

    for step in steps:
        match step:
            case Send() | Receive():
                yield replace(step, peer=ranks[step.peer], place=at(step.place))
            case Add(into, source, span):
                yield Add(at(into), at(source), span)
            case _:
                yield step


TWO_LEVEL = Schedule("two_level", canonical=canonical, steps=steps, sent=sent)
