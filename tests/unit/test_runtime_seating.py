"""Ranks follow hosts, servers stand beside workers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringleader.runtime.supervisor.bundle_order import seat

nodes = st.lists(st.sampled_from("abcd"), min_size=1, max_size=12)


@given(nodes, st.integers(0, 12))
def test_every_bundle_has_one_place(on: list[str], workers: int) -> None:
    assert sorted(seat(on, workers)) == list(range(len(on)))


@given(nodes, st.integers(0, 12))
def test_the_workers_of_a_node_hold_consecutive_ranks(on: list[str], workers: int) -> None:
    ranks = [on[bundle] for bundle in seat(on, workers)[:workers]]
    changes = [node for rank, node in enumerate(ranks) if rank == 0 or ranks[rank - 1] != node]
    assert len(changes) == len(set(changes))


@given(nodes, st.integers(0, 12))
def test_no_node_has_two_workers_more_than_another_that_has_room(on: list[str], workers: int) -> None:
    ranks = [on[bundle] for bundle in seat(on, workers)[:workers]]
    full = {node for node in on if ranks.count(node) == on.count(node)}
    counts = [ranks.count(node) for node in set(on) - full]
    assert not counts or max(map(ranks.count, on)) - min(counts) <= 1


@given(nodes, st.data())
def test_bundles_of_another_shape_are_the_servers_alone(on: list[str], data: st.DataObject) -> None:
    workers = data.draw(st.integers(0, len(on)))
    bundles = seat(on, workers, alike=False)
    assert sorted(bundles[:workers]) == list(range(workers))
    assert sorted(bundles[workers:]) == list(range(workers, len(on)))
    ranks = [on[bundle] for bundle in bundles[:workers]]
    changes = [node for rank, node in enumerate(ranks) if rank == 0 or ranks[rank - 1] != node]
    assert len(changes) == len(set(changes)), "the workers of a node hold consecutive ranks"


@pytest.mark.parametrize(
    ("on", "workers", "servers"),
    [("aabb", "ab", "ab"), ("abab", "ab", "ab"), ("aba", "ab", "a"), ("aaa", "aa", "a")],
)
def test_servers_are_given_the_nodes_in_turn(on: str, workers: str, servers: str) -> None:
    bundles = "".join(on[bundle] for bundle in seat(on, len(workers)))
    assert (bundles[: len(workers)], bundles[len(workers) :]) == (workers, servers)
