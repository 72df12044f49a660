"""Choosing by measured costs: all members find the same costs, choose alike, and the sums stay what they were."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from types import SimpleNamespace

import pytest
import torch
from exchange_members import on_members, on_nodes, plan_of
from rooms import open_room

from ringleader.comm.choosing.choice import choose
from ringleader.comm.choosing.probe import ProbeSender, probe
from ringleader.comm.schedules import RankPart
from ringleader.comm.simulator import ClusterCosts, LinkCost
from ringleader.comm.tree import TreeNode, tree_over

SHARDS = 8
NODES = [(0, 0, 1, 1), (0, 1, 0, 1), (0, 1, 1)]


@pytest.fixture
def store_port() -> Iterator[int]:
    store = open_room()
    yield store.port
    del store


def part(world: int, length: int, groups: tuple[tuple[int, ...], ...] = ()) -> RankPart:
    rows = tuple((TreeNode(0, r),) for r in range(world))
    return RankPart(0, length, rows, tree_over(world, frozenset(range(world))), groups=groups)


@pytest.mark.parametrize("nodes", NODES)
def test_members_of_several_nodes_measure_the_same_costs_and_train_to_the_same_bits(nodes, store_port):
    (alone,) = on_members(plan_of(1, SHARDS), lambda m: m.train(3))

    def measured(member) -> tuple[ClusterCosts, dict[str, torch.Tensor]]:
        return member.exchange.measure(), member.train(3)

    found = on_members(plan_of(len(nodes), SHARDS), measured, members=on_nodes(nodes, store_port))
    assert len({costs for costs, _ in found}) == 1
    costs = found[0][0]
    assert costs.between.latency_s > 0
    assert costs.add_s_per_byte > 0
    assert costs.tried
    for _, net in found:
        assert all(torch.equal(alone[name], net[name]) for name in alone)


def test_links_are_measured_once_and_anew_where_somebody_knows_less_or_something_else(store_port):
    known = ClusterCosts(LinkCost(1.0, 2.0), LinkCost(3.0, 4.0), 5.0)
    other, generations = replace(known, add_s_per_byte=6.0), count(1)

    def found(*before: ClusterCosts | None) -> set[ClusterCosts | None]:
        members = on_nodes((0, 1, 1), store_port, next(generations))
        plan = plan_of(3, SHARDS)
        return set(on_members(plan, lambda m: m.exchange.measure(before[m.rank]), members=members))

    assert found(known, known, known) == {known}
    for before in ((known, None, known), (known, other, known)):
        (measured,) = found(*before)
        assert measured not in {None, known, other}


def test_where_the_members_sum_in_shared_memory_nothing_is_measured():
    found = on_members(plan_of(2, SHARDS), lambda m: m.exchange.measure(), shared=True)
    assert found == [None, None]


def test_a_probe_tells_the_links_that_it_timed(monkeypatch: pytest.MonkeyPatch):
    """The link between nodes takes four times as long a message as the one inside."""
    now = 0.0

    def to_and_fro(peer: int, values: torch.Tensor, rounds: int) -> None:
        nonlocal now
        now += rounds * 2 * (2e-3 if peer == 1 else 8e-3)

    def shift(ranks: tuple[int, ...], values: torch.Tensor, rounds: int) -> None:
        nonlocal now
        assert ranks == (0, 1)
        now += rounds * 5e-3

    monkeypatch.setattr("ringleader.comm.choosing.probe.time", SimpleNamespace(perf_counter=lambda: now))
    costs = probe(0, ((0, 1), (2, 3)), 4, ProbeSender(to_and_fro, shift, lambda values: values))
    found = [link.latency_s for link in (costs.inside, costs.between, costs.crowded)]
    assert found == pytest.approx([2e-3, 8e-3, 5e-3 - 2e-3], abs=1e-6)  # a small message has bytes, too


def test_who_sends_at_once_is_the_largest_node_and_one_rank_writes_it_down():
    told: list[torch.Tensor] = []

    def tell(values: torch.Tensor) -> torch.Tensor:
        told.append(values.clone())
        return values

    alone = ProbeSender(lambda peer, values, rounds: None, lambda ranks, values, rounds: None, tell)
    asked: list[int] = []
    for rank in range(4):
        told.clear()
        probe(rank, ((0,), (1, 2, 3)), 4, alone)
        asked.append(int(told[-1].count_nonzero()))
    # Rank 0: the way between nodes (2 sizes) and adds. Rank 1: alone and all at once (2 sizes each).
    assert asked == [3, 4, 0, 0]


@pytest.mark.parametrize("world", [3, 4])
def test_where_ranks_share_cores_few_messages_win_and_elsewhere_few_hops(world):
    apart = ClusterCosts(LinkCost(1e-4, 1e-9), LinkCost(1e-4, 1e-9), 1e-10)
    crowded = replace(apart, crowded=LinkCost(1e-4, 3e-10))
    assert choose(part(world, 256), apart, canonical=False) == {3: "gather", 4: "doubling"}[world]
    # 2(P-1) messages instead of P·lg P or P(P-1)
    assert choose(part(world, 256), crowded, canonical=False) == {3: "doubling", 4: "tree"}[world]


def test_slow_links_between_nodes_call_for_two_levels_and_tiny_buckets_for_few_hops():
    slow = ClusterCosts(LinkCost(5e-6, 1e-10), LinkCost(1e-4, 8e-9), 1e-10)
    groups = ((0, 1), (2, 3))
    assert choose(part(4, 6_500_000, groups), slow, canonical=False) == "two_level"
    # Two hops between the nodes, one message on each link at a time.
    assert choose(part(4, 64, groups), slow, canonical=False) == "tree"
