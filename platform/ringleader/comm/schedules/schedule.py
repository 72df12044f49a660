"""Schedules as plain data, without tensors: who sends which span to whom, and what is added."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from ringleader.comm.tree import Tree, TreeNode

PARTIALS, RESULTS = 0, 1
"""The two channels of an exchange. A pair's messages on one channel match in the order of their steps."""

Span = tuple[int, int]
"""[start, stop) of elements."""


@dataclass(frozen=True, slots=True)
class Send:
    """Start sending a span of a place. Waits for every `Receive` that touches it; does not wait to be received."""

    peer: int
    place: int
    span: Span
    channel: int


@dataclass(frozen=True, slots=True)
class Receive:
    """Start receiving a span. The memory is not read or written again before a later step that names it has waited."""

    peer: int
    place: int
    span: Span
    channel: int


@dataclass(frozen=True, slots=True)
class Add:
    """into += source, element by element over the span. Waits for every transfer that touches either."""

    into: int
    source: int
    span: Span


@dataclass(frozen=True, slots=True)
class Zero:
    """Fill the span with zeros: a member without a partial sum in an order that is not canonical."""

    place: int
    span: Span


Step = Send | Receive | Add | Zero


@dataclass(frozen=True, slots=True)
class RankPart:
    """One rank's part in the sum of a bucket.

    A place >= 0 is a row of the bucket; place -1-k is slot k of scratch memory, which holds one chunk at a time and is
    named with that chunk's span. Every rank has row 0, and the result ends there.

    Attributes:
        rank: the rank whose steps these are.
        length: elements in the bucket.
        rows: for each rank, the tree nodes whose sums lie in its rows 0, 1, ... in ascending order.
        tree: the canonical order.
        chunk: elements in one message at most; by default 1 MB of float32, a hundredth of a second at 1 Gbit/s, so
            that what has arrived is added and passed on while the rest is on its way.
        window: chunks of one peer's partial sums that may be on their way at once.
        groups: the ranks of each node, in rank order; empty: all ranks are on one node.
    """

    rank: int
    length: int
    rows: tuple[tuple[TreeNode, ...], ...]
    tree: Tree
    chunk: int = 1 << 18
    window: int = 2
    groups: tuple[tuple[int, ...], ...] = ()

    @property
    def nodes(self) -> tuple[tuple[int, ...], ...]:
        """The ranks of each node."""
        return self.groups or (tuple(range(self.world)),)

    @property
    def world(self) -> int:
        return len(self.rows)

    @property
    def peers(self) -> tuple[int, ...]:
        """All other ranks, starting behind this one, so that not everybody sends to the same peer first."""
        return tuple((self.rank + k) % self.world for k in range(1, self.world))


@dataclass(frozen=True, slots=True)
class Schedule:
    """One way of summing a bucket over all ranks.

    Attributes:
        name: its name in the job file.
        canonical: whether the result's bits depend on the tree alone, for a given part; equal for all its ranks.
        steps: the steps of one rank, in order.
        sent: the elements that a rank sends, as a closed formula for the planner; the tests count the steps against it.
    """

    name: str
    canonical: Callable[[RankPart], bool]
    steps: Callable[[RankPart], Iterator[Step]]
    sent: Callable[[RankPart], int]


def always(_: RankPart) -> bool:
    """Canonical, whatever each rank holds."""
    return True


def never(_: RankPart) -> bool:
    return False


def even_spans(length: int, world: int) -> tuple[Span, ...]:
    """The spans of all ranks: rank r owns [r*n//P, (r+1)*n//P)."""
    # Both ends are rounded alike: spans meet without a gap whatever the length, and some may be empty.
    return tuple((r * length // world, (r + 1) * length // world) for r in range(world))


def chunks(span: Span, chunk: int) -> Iterator[Span]:
    """Cut a span into pieces of at most `chunk` elements."""
    for start in range(span[0], span[1], chunk):
        yield start, min(start + chunk, span[1])


def size(span: Span) -> int:
    return span[1] - span[0]


def fold(tree: Tree, operands: Sequence[tuple[TreeNode, int]]) -> list[tuple[int, int]]:
    """The adds that complete the tree.

    Args:
        operands: (node, place) of every partial sum, in ascending order of the nodes; one of them at place 0.

    Returns:
        (into, source) pairs in order; the sum ends at place 0.
    """
    stack: list[TreeNode] = []
    places: list[int] = []
    adds: list[tuple[int, int]] = []
    for node, place in operands:
        stack, merges = tree.push(stack, node)
        places.append(place)
        for _ in range(merges):
            right, left = places.pop(), places.pop()
            # The sum has to end at place 0, so the operand that lies there is never the source.
            into, source = (right, left) if right == 0 else (left, right)
            adds.append((into, source))
            places.append(into)
    return adds
