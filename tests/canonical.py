"""The canonical sum by its definition: what every way of adding has to equal."""

from collections.abc import Callable, Mapping
from typing import TypeVar

from ringleader.comm.tree import Tree, TreeNode

Value = TypeVar("Value")


def combine(tree: Tree, values: Mapping[int, Value], add: Callable[[Value, Value], Value]) -> Value | None:
    """The sum along the tree; None when nothing is present.

    Args:
        values: one value for each present shard.
        add: the elementwise addition.
    """

    def at(node: TreeNode) -> Value | None:
        if not tree.holds(node):
            return None
        if node.level == 0:
            return values[node.index]
        left = at(TreeNode(node.level - 1, node.index * 2))
        right = at(TreeNode(node.level - 1, node.index * 2 + 1))
        if left is None or right is None:
            return right if left is None else left
        return add(left, right)

    return at(TreeNode(max(tree.total - 1, 0).bit_length(), 0))
