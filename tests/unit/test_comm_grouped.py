"""The canonical sum in two rounds, over threads: the bits of the tree, and messages that match by their order alone."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from canonical import combine
from torch import Tensor

from ringleader.comm.executor import Scratch
from ringleader.comm.grouped import canonical_sum
from ringleader.comm.schedules import RankPart
from ringleader.comm.transports.inprocess import Hub
from ringleader.comm.transports.nccl import apart
from ringleader.comm.transports.transport import Messages
from ringleader.comm.tree import tree_over

SHARDS = 8


def owned(rank: int, world: int) -> range:
    return range(rank * SHARDS // world, (rank + 1) * SHARDS // world)


def rounds(hub: Hub, rank: int) -> Callable[[Messages, Messages], None]:
    """One tag for all: a pair's messages match in the order in which both name them."""
    transport = hub.transport(rank)

    def together(sends: Messages, receives: Messages) -> None:
        works = [transport.irecv(values, peer, 0) for values, peer in receives]
        works += [transport.isend(values, peer, 0) for values, peer in sends]
        for work in works:
            work.wait()

    return together


@pytest.mark.parametrize("world", range(2, 9))
@pytest.mark.parametrize("length", [1, 5, 1000])
@pytest.mark.parametrize("absent", [frozenset(), frozenset({0, 1}), frozenset(range(1, 8))], ids=len)
def test_every_rank_ends_with_the_bits_of_the_tree(world: int, length: int, absent: frozenset[int]):
    present = frozenset(range(SHARDS)) - absent
    tree = tree_over(SHARDS, present)
    values = {k: torch.randn(length, generator=torch.Generator().manual_seed(k)) for k in present}
    expected = combine(tree, values, torch.add)
    nodes = tuple(tree.partials(owned(rank, world)) for rank in range(world))
    hub = Hub(world)

    def one(rank: int) -> Tensor:
        rows = [partial(tree, values, node) for node in nodes[rank]] or [torch.full((length,), torch.nan)]
        canonical_sum(RankPart(rank, length, nodes, tree), rows, Scratch(), rounds(hub, rank))
        return rows[0]

    with ThreadPoolExecutor(world) as pool:
        for total in pool.map(one, range(world)):
            assert torch.equal(total, expected)


def partial(tree, values, node) -> Tensor:
    """What a member that owns all shards below the node has added up alone."""
    below = {k: v for k, v in values.items() if k in node.covers(SHARDS)}
    return combine(tree_over(SHARDS, frozenset(below)), below, torch.add).clone()


@pytest.mark.parametrize(
    ("devices", "answer"),
    [(["a", "b"], True), (["a", "a"], False), (["a", ""], False), (["", ""], False), (["a"], True)],
)
def test_members_go_over_nccl_where_each_has_a_device_of_its_own(devices: list[str], answer: bool):
    assert apart(devices) is answer
