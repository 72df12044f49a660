"""The collection of partial sums: what others send is added to a rank's own rows, along the tree as far as it goes.

A rank that collects everything ends with the whole sum; one that collects a node's rows ends with that node's few
partial sums, each in a row of its own, from which it can be sent on.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from ringleader.comm.schedules.schedule import PARTIALS, Add, RankPart, Receive, Span, Step, Zero
from ringleader.comm.tree import Tree, TreeNode

Source = Callable[[Span], int]
"""The rank that sends a piece."""

NOWHERE = -1


def joined(tree: Tree, nodes: Iterable[TreeNode]) -> tuple[TreeNode, ...]:
    """The fewest nodes that the sums of `nodes` add up to along the tree, in ascending order."""
    stack: list[TreeNode] = []
    for node in sorted(nodes, key=_first_leaf):
        stack, _ = tree.push(stack, node)
    return tuple(stack)


@dataclass(slots=True)
class _Operand:
    """One partial sum; `source` is None for an own row. `place` is its row for all pieces, or NOWHERE: it lies in
    slots."""

    node: TreeNode
    source: Source | None
    place: int = NOWHERE
    slot: int = NOWHERE

    def take_row(self, row: int) -> None:
        self.place = row

    def take_slot(self, slot: int) -> None:
        self.slot = slot


class Collection:
    """One rank's collection over some pieces of a bucket; a window of pieces is received ahead of the adding.

    Args:
        part: gives the own rows, the tree and the window.
        foreign: (node, sender) of every partial sum of others; one sender's in ascending order of its nodes.
        pieces: the spans to collect, in ascending order.

    Attributes:
        results: (node, row) of every sum, in ascending order of the nodes, with rows beyond the own ones where needed.
            If all adds up to one node, its sum lies in row 0.
    """

    def __init__(
        self, part: RankPart, foreign: Sequence[tuple[TreeNode, Source]], pieces: Sequence[Span]
    ) -> None:
        self._part = part
        self._pieces = pieces
        own = [_Operand(node, None, row) for row, node in enumerate(part.rows[part.rank])]
        others = [_Operand(node, source) for node, source in foreign]
        self._operands = sorted(own + others, key=lambda o: _first_leaf(o.node))
        self._adds: list[tuple[_Operand, _Operand]] = []
        self.results: list[tuple[TreeNode, int]] = []
        spare = len(own)
        for node, operand in self._fold():
            if operand.place == NOWHERE:
                # Nothing of its own is in this sum: the first foreign row is taken straight into a spare one.
                operand.take_row(spare)
                spare += 1
            self.results.append((node, operand.place))
        waiting = [o for o in self._operands if o.place == NOWHERE]
        for slot, operand in enumerate(waiting):
            operand.take_slot(slot)
        self._slots = len(waiting)

    def open(self) -> Iterator[Step]:
        """Begin to receive; to be called before any step that waits."""
        for k in range(min(self._part.window, len(self._pieces))):
            yield from self._receive(k)

    def complete(self, k: int) -> Iterator[Step]:
        """Add up piece k, then begin to receive the piece that takes its slots."""
        piece = self._pieces[k]
        # Nobody holds anything: row 0 is reused memory, and has what an earlier step left.
        if not self._part.tree.present:
            yield Zero(0, piece)
        for into, source in self._adds:
            yield Add(self._place(into, k), self._place(source, k), piece)
        if k + self._part.window < len(self._pieces):
            yield from self._receive(k + self._part.window)

    def _receive(self, k: int) -> Iterator[Step]:
        for operand in self._operands:
            if operand.source is not None:
                piece = self._pieces[k]
                yield Receive(operand.source(piece), self._place(operand, k), piece, PARTIALS)

    def _place(self, operand: _Operand, k: int) -> int:
        if operand.place != NOWHERE:
            return operand.place
        return -1 - (k % self._part.window * self._slots + operand.slot)

    def _fold(self) -> list[tuple[TreeNode, _Operand]]:
        """Fill in the adds; returns the nodes that are left, and the operand in whose memory each sum ends."""
        stack: list[TreeNode] = []
        sums: list[_Operand] = []
        for operand in self._operands:
            stack, merges = self._part.tree.push(stack, operand.node)
            sums.append(operand)
            for _ in range(merges):
                right, left = sums.pop(), sums.pop()
                into, source = (left, right) if _rank(left) <= _rank(right) else (right, left)
                self._adds.append((into, source))
                sums.append(into)
        return list(zip(stack, sums, strict=True))


def _rank(operand: _Operand) -> tuple[bool, int]:
    """The sort key of a sum's place: it ends in the lowest row among its operands."""
    return operand.place == NOWHERE, operand.place


def _first_leaf(node: TreeNode) -> int:
    return node.index << node.level
