"""Sums that climb a tree of ranks and results that come down it, piece by piece: the steps of `tree` and
`double_tree`."""

from collections.abc import Iterator
from dataclasses import dataclass

from ringleader.comm.schedules.primitives.order import SumOrder, holds, own_sum
from ringleader.comm.schedules.schedule import (
    PARTIALS,
    RESULTS,
    Add,
    RankPart,
    Receive,
    Send,
    Span,
    Step,
    chunks,
    size,
)

PIECES = 16
SMALLEST_PIECE = 1 << 14
"""A span travels in up to 16 pieces, so that the tree's levels work at the same time, none below 64 KB of float32."""


@dataclass(frozen=True, slots=True)
class TreeSum:
    """One span and the tree that it climbs: a rank adds its children's sums, in their order, and passes the sum on."""

    order: SumOrder
    span: Span


def steps(part: RankPart, climbs: list[TreeSum]) -> Iterator[Step]:
    """One rank's steps along all the trees at once, ordered by beat.

    At depth d, piece k is added and sent up at beat k - d and sent down at beat k + d; it is awaited from the children
    a window of beats before, from the parent one beat before. So whatever a step waits for has an earlier beat
    elsewhere, and nobody waits in a circle; and two ranks that are parent and child in both trees name their messages
    in one order.
    """
    yield from own_sum(part)
    if not holds(part, range(part.world)):
        return
    beats: list[tuple[int, int, int, Iterator[Step]]] = []
    slots = 0
    for number, climb in enumerate(climbs):
        branch = _branch(part, climb, slots)
        # Each tree has slots of its own: pieces of all of them are on their way at once.
        slots += len(branch.carrying) * part.window
        for k in range(len(branch.pieces)):
            beats.append((k - branch.depth, 0, number, branch.up(k)))
            beats.append((k + branch.depth, 1, number, branch.down(k)))
            beats.append((k + branch.depth - 1, 2, number, branch.await_result(k)))
            beats.append((k - branch.depth - part.window, 3, number, branch.await_sums(k)))
    for *_, steps_of_beat in sorted(beats, key=lambda beat: beat[:3]):
        yield from steps_of_beat


def sent(part: RankPart, climbs: list[TreeSum]) -> int:
    """Every span once to the parent, if there is a sum to send, and once to each child."""
    if not holds(part, range(part.world)):
        return 0
    branches = [_branch(part, climb, 0) for climb in climbs]
    return sum(size(b.span) * (len(b.children) + (b.parent is not None and b.holding)) for b in branches)


class _Branch:
    """This rank's place in one tree."""

    def __init__(self, part: RankPart, span: Span, seat: "_Seat", slots: int) -> None:
        below = seat.order
        self.span = span
        self.parent = seat.parent
        self.depth = seat.depth
        self.children = [child.rank for child in below.then]
        self.carrying = [child.rank for child in below.then if holds(part, child.ranks())]
        self.holding = holds(part, below.ranks())
        piece = max(SMALLEST_PIECE, -(-size(span) // PIECES))
        self.pieces = list(chunks(span, min(part.chunk, piece)))
        self._window = part.window
        self._slots = slots
        # Without a row of its own this rank takes the first child's sum straight into row 0.
        self._into_row = 0 if part.rows[part.rank] else 1

    def await_sums(self, k: int) -> Iterator[Step]:
        for i, child in enumerate(self.carrying):
            yield Receive(child, self._place(k, i), self.pieces[k], PARTIALS)

    def up(self, k: int) -> Iterator[Step]:
        for i in range(self._into_row, len(self.carrying)):
            yield Add(0, self._place(k, i), self.pieces[k])
        if self.parent is not None and self.holding:
            yield Send(self.parent, 0, self.pieces[k], PARTIALS)

    def await_result(self, k: int) -> Iterator[Step]:
        if self.parent is not None:
            yield Receive(self.parent, 0, self.pieces[k], RESULTS)

    def down(self, k: int) -> Iterator[Step]:
        """Send the result to the children, the largest subtree first: it has the longest way to go."""
        for child in reversed(self.children):
            yield Send(child, 0, self.pieces[k], RESULTS)

    def _place(self, k: int, i: int) -> int:
        if i < self._into_row:
            return 0
        return -1 - (self._slots + k % self._window * len(self.carrying) + i)


def _branch(part: RankPart, climb: TreeSum, slots: int) -> _Branch:
    seat = next(seat for seat in _walk(_Seat(climb.order, None, 0)) if seat.order.rank == part.rank)
    return _Branch(part, climb.span, seat, slots)


@dataclass(frozen=True, slots=True)
class _Seat:
    """A rank in a tree, with the sums below it, the rank above it, and its distance from the root."""

    order: SumOrder
    parent: int | None
    depth: int


def _walk(seat: _Seat) -> Iterator[_Seat]:
    yield seat
    for child in seat.order.then:
        yield from _walk(_Seat(child, seat.order.rank, seat.depth + 1))
