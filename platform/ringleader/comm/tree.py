"""The canonical order of addition: a fixed binary tree over the shards 0..L-1.

Node (level j, index i) covers the shards [i*2^j, (i+1)*2^j), cut off at L. A shard without rows is absent: it is
skipped and never added as zeros, so a node with one present child is that child. How the sum associates therefore
depends on L and the present shards alone, never on who holds what. Each add commutes, so its operands may swap places.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate


@dataclass(frozen=True, slots=True, order=True)
class TreeNode:
    """One node of the tree; a leaf has level 0 and the shard's number as its index."""

    level: int
    index: int

    def covers(self, total: int) -> range:
        """The shards below this node in a tree over `total` shards."""
        return range(min(self.index << self.level, total), min((self.index + 1) << self.level, total))


@dataclass(frozen=True, slots=True)
class Tree:
    """The tree over `total` shards of which `present` have rows. Made by `tree_over`.

    Attributes:
        total: the number of logical shards L.
        present: the shards that are summed.
        before: (L+1) the number of present shards before each shard.
    """

    total: int
    present: frozenset[int]
    before: tuple[int, ...]

    def holds(self, node: TreeNode) -> bool:
        """Whether any present shard lies below `node`."""
        covered = node.covers(self.total)
        return self.before[covered.stop] > self.before[covered.start]

    def is_root(self, node: TreeNode) -> bool:
        return node.index == 0 and (1 << node.level) >= self.total

    def push(self, stack: Sequence[TreeNode], node: TreeNode) -> tuple[list[TreeNode], int]:
        """Push the next complete node on a stack of complete nodes in ascending order.

        Returns:
            the stack after every possible merge, and how many times the two top nodes were added to get there.
        """
        after, adds = list(stack), 0
        while not self.is_root(node):
            sibling = TreeNode(node.level, node.index ^ 1)
            # An absent sibling is skipped: the node's sum is its parent's as it stands.
            if self.holds(sibling):
                # The sibling's sum is not here: the node stays a partial sum until it comes.
                if not after or after[-1] != sibling:
                    break
                after.pop()
                adds += 1
            node = TreeNode(node.level + 1, node.index >> 1)
        after.append(node)
        return after, adds

    def partials(self, shards: Iterable[int]) -> tuple[TreeNode, ...]:
        """The fewest nodes whose sums an owner of contiguous, ascending `shards` can make alone."""
        stack: list[TreeNode] = []
        for shard in shards:
            if shard in self.present:
                stack, _ = self.push(stack, TreeNode(0, shard))
        return tuple(stack)


# Nearly all batches have the same shards with rows: all of them.
@lru_cache(maxsize=256)
def tree_over(total: int, present: frozenset[int]) -> Tree:
    """The tree over `total` shards with only `present` of them in the sum."""
    counts = accumulate((shard in present for shard in range(total)), initial=0)
    return Tree(total, present, tuple(counts))
