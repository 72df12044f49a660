"""The contents of an update: pushed gradients, added as they come, and the reports of their slices."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ringleader.comm.rows import SparseRows, added
from ringleader.comm.tree import Tree, TreeNode
from ringleader.train.generation.control_word import MAX_METRICS, SliceReport
from ringleader.train.modes.async_server.messages import REPORT, PushHeader
from ringleader.train.modes.async_server.server.buffer_history import BufferMove

assert REPORT == 4 + MAX_METRICS

BucketRows = list[Tensor]


@dataclass(frozen=True, slots=True)
class PushedGradient:
    """A server's part of an item's gradient, or of a sum.

    Attributes:
        dense: (length,) of each of its buckets.
        tables: the touched rows of each of its tables.
    """

    dense: BucketRows
    tables: Sequence[SparseRows]


def report_words(report: SliceReport) -> Tensor:
    """(REPORT,) float64: weight, loss, checksum, the metrics' names' checksum, values; as exact as a control word."""
    # By way of float32, as in a control word: the means then have the bits of synchronous servers.
    words = torch.zeros(REPORT, dtype=torch.float32)
    words[0], words[1], words[2], words[3] = report.weight, report.loss, report.checksum, report.names
    for slot, value in enumerate(report.values):
        words[4 + slot] = value
    return words.to(torch.float64)


@dataclass(frozen=True, slots=True)
class ReportMeans:
    """Several slices' reports as one: weighted means by metric slot."""

    weight: float
    loss: float
    values: list[float]

    @classmethod
    def of(cls, pushes: Sequence[PushHeader]) -> "ReportMeans":
        """Combine the pushes' reports in ascending order of items, whoever came first."""
        table = torch.stack([push.report for push in sorted(pushes, key=lambda push: push.item)])
        weights = table[:, 0]
        total = float(weights.sum())
        means = (table[:, 1:] * weights[:, None]).sum(dim=0) / max(total, 1e-300)
        return cls(total, float(means[0]), means[3:].tolist())


class GradientSum:
    """One update's gradients, summed as they come.

    Args:
        tree: fold along it, a node as soon as both its children are there, so that bits do not depend on who came
            first. None: in the order of arrival.
        give_back: takes memory that is free again.

    Attributes:
        pushes: those that are in.
        moves: the changes that their slices made to the buffers, by item.
    """

    def __init__(self, tree: Tree | None, give_back: Callable[[BucketRows], None]) -> None:
        self.pushes: list[PushHeader] = []
        self.moves: dict[int, BufferMove] = {}
        self._tree = tree
        self._give_back = give_back
        self._nodes: dict[TreeNode, PushedGradient] = {}

    @property
    def used(self) -> list[bool]:
        """Per parameter: whether any slice gave it a gradient."""
        return [count > 0 for count in torch.stack([push.used for push in self.pushes]).sum(dim=0).tolist()]

    @property
    def total(self) -> PushedGradient:
        """The sum, once all are in."""
        (total,) = self._nodes.values()
        return total

    def add(self, push: PushHeader, leaf: int, gradient: PushedGradient, move: BufferMove | None) -> None:
        """Add a gradient; `leaf` is its place in the tree."""
        self.pushes.append(push)
        if move is not None:
            self.moves[push.item] = move
        node = TreeNode(0, leaf) if self._tree is not None else _ROOT
        # Up the tree as long as the sibling is there; one without shards is passed over, as in the ring.
        while self._tree is not None and not self._tree.is_root(node):
            sibling = TreeNode(node.level, node.index ^ 1)
            if self._tree.holds(sibling):
                if sibling not in self._nodes:
                    break
                gradient = self._joined(self._nodes.pop(sibling), gradient)
            node = TreeNode(node.level + 1, node.index >> 1)
        if node in self._nodes:
            gradient = self._joined(self._nodes.pop(node), gradient)
        self._nodes[node] = gradient

    def let_go(self) -> None:
        """Free the memory of the sum, which is in the weights or is dropped."""
        for gradient in self._nodes.values():
            self._give_back(gradient.dense)

    def _joined(self, into: PushedGradient, other: PushedGradient) -> PushedGradient:
        for row, addend in zip(into.dense, other.dense, strict=True):
            # A sum of two has the same bits in either order: along a tree it does not matter which came first.
            row.add_(addend)
        self._give_back(other.dense)
        return PushedGradient(
            into.dense, [added(*both) for both in zip(into.tables, other.tables, strict=True)]
        )


_ROOT = TreeNode(0, 0)
