"""The canonical tree: what may be added to what, whoever owns which shard."""

import pytest
from canonical import combine
from hypothesis import given, settings
from hypothesis import strategies as st

from ringleader.comm.tree import TreeNode, tree_over
from ringleader.elastic.plan import owned


def written(a: str, b: str) -> str:
    return f"({a}+{b})"


def leaves(total: int) -> dict[int, str]:
    return {s: str(s) for s in range(total)}


def sum_by_owners(total: int, present: frozenset[int], world: int) -> str | None:
    """How the sum is written when owners push slices and one place completes their partial sums."""
    tree = tree_over(total, present)
    partials: list[tuple[TreeNode, str]] = []
    for rank in range(world):
        partials += stacked(
            tree, [(TreeNode(0, s), str(s)) for s in owned(rank, world, total) if s in present]
        )
    done = stacked(tree, partials)
    assert len(done) == (1 if present else 0)
    return done[0][1] if done else None


def stacked(tree, operands):
    stack, texts = [], []
    for node, text in operands:
        stack, adds = tree.push(stack, node)
        texts.append(text)
        for _ in range(adds):
            right = texts.pop()
            texts.append(written(texts.pop(), right))
    return list(zip(stack, texts, strict=True))


def test_eight_shards_add_as_a_balanced_tree():
    tree = tree_over(8, frozenset(range(8)))
    assert combine(tree, leaves(8), written) == "(((0+1)+(2+3))+((4+5)+(6+7)))"


def test_an_absent_shard_is_skipped_and_its_sibling_moves_up():
    tree = tree_over(5, frozenset({0, 2, 3, 4}))
    assert combine(tree, leaves(5), written) == "((0+(2+3))+4)"


def test_nothing_present_has_no_sum():
    assert combine(tree_over(4, frozenset()), {}, written) is None


def test_a_contiguous_range_is_its_maximal_aligned_subtrees():
    tree = tree_over(8, frozenset(range(8)))
    assert tree.partials(range(1, 8)) == (TreeNode(0, 1), TreeNode(1, 1), TreeNode(2, 1))
    assert tree.partials(range(8)) == (TreeNode(3, 0),)
    assert tree.partials(range(0)) == ()


@pytest.mark.parametrize("world", range(1, 9))
def test_eight_shards_need_at_most_two_partial_sums_a_worker(world):
    tree = tree_over(8, frozenset(range(8)))
    assert all(len(tree.partials(owned(r, world, 8))) <= 2 for r in range(world))


@settings(deadline=None)  # a busy machine is no counterexample
@given(st.integers(1, 40), st.integers(1, 12), st.data())
def test_the_association_depends_on_the_shards_alone_never_on_the_world(total, world, data):
    present = frozenset(data.draw(st.sets(st.integers(0, total - 1))))
    expected = combine(tree_over(total, present), leaves(total), written)
    assert sum_by_owners(total, present, world) == expected
