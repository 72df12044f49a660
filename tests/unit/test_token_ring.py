"""Tokens among threads: late links, members lost at any of their operations, halts. Every item counts once."""

import random
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from exchange_members import on_nodes
from rooms import open_room
from token_members import SHARDS, Member, World, generation
from torch import nn
from torch.nn import Parameter

from ringleader.errors import ExchangeBroken, StepMisuse
from ringleader.spec import JobSpec
from ringleader.train.modes.batch_loop import BatchLoop
from ringleader.train.modes.items import ItemSet
from ringleader.train.modes.loop_position import LoopPosition
from ringleader.train.modes.token_ring.token_exchange import WEIGHTS
from ringleader.train.modes.token_ring.topology import ring_order
from ringleader.train.modes.token_ring.weight_spans import WeightSpans
from ringleader.train.modes.token_ring.worker_tokens import WorkerTokens
from ringleader.train.rows.loader_processes import LoaderProcesses
from ringleader.train.rows.order.cursor import Epoch
from ringleader.train.state.progress import Progress


def check(members: list[Member]) -> None:
    """Everybody holds every item once, in every span, and knows every item's report."""
    world = members[0].world
    expected = torch.zeros(world.spans, world.width)
    expected[:, : world.end] = 1.0
    for member in members:
        assert torch.equal(member.weights.detach(), expected)
        assert {item: row[0] for item, row in member.news.reports.items()} == {
            item: float(item) for item in range(world.end)
        }


@pytest.mark.parametrize("staleness", [None, 0, 2])
@pytest.mark.parametrize(("size", "spans"), [(1, 2), (2, 1), (2, 3), (3, 3), (4, 2), (4, 9)])
def test_an_undisturbed_ring_adds_every_item_once(size: int, spans: int, staleness: int | None) -> None:
    world = World(steps=6, spans=spans, staleness=staleness)
    members = [Member(world, healed=rank > 0) for rank in range(size)]
    ended, _ = generation(members, seed=size * spans)
    assert all(ended)
    check(members)
    assert set(world.computed.values()) == {1}


@pytest.mark.parametrize("seed", range(40))
def test_a_member_lost_at_any_operation_costs_no_item_and_doubles_none(seed: int) -> None:
    draw = random.Random(seed)
    world = World(steps=6, spans=draw.randint(1, 4), staleness=draw.choice([None, 0, 1]))
    members = [Member(world, healed=rank > 0) for rank in range(draw.randint(2, SHARDS))]
    for _ in range(6):
        size = len(members)
        victims = draw.sample(range(size), draw.randint(0, min(2, size - 1)))
        lost = {rank: draw.randint(0, 120) for rank in victims}
        ended, links = generation(members, seed=draw.randint(0, 1 << 30), lost=lost)
        if all(ended):
            break
        members = [m for m, link in zip(members, links, strict=True) if not link.lost and m.spans.known]
        if not members:
            return  # who held the tokens was lost before anybody else had them
        if len(members) < SHARDS and draw.random() < 0.5:
            members.append(Member(world, healed=True))
    else:
        assert all(generation(members, seed=seed)[0])
    check(members)


@pytest.mark.parametrize("seed", range(8))
def test_a_halt_ends_a_stretch_with_equal_weights_and_the_next_goes_on(seed: int) -> None:
    world = World(steps=20, spans=3, staleness=0, halt_at=6)
    members = [Member(world, healed=rank > 0) for rank in range(3)]
    assert all(generation(members, seed=seed)[0])
    assert all(member.halted for member in members)
    for member in members:
        assert torch.equal(member.weights, members[0].weights)
        assert set(member.weights.unique().tolist()) <= {0.0, 1.0}
    assert sum(world.computed.values()) < world.end
    world.halt_at = -1
    assert all(generation([*members, Member(world, healed=True)], seed=seed)[0])
    check(members)
    assert set(world.computed.values()) == {1}


@pytest.mark.parametrize("groups", [(), ((0, 2), (1, 3))])
def test_a_round_costs_each_member_the_weights_once_and_crosses_each_border_once(
    groups: tuple[tuple[int, ...], ...],
) -> None:
    """One item of one member: one round brings it to everybody. Quiet rounds carry no weights."""
    world = World(steps=1, spans=4)
    members = [Member(world, healed=False) for _ in range(4)]
    for member in members[1:]:
        member._compute = lambda item, spans: None  # type: ignore[method-assign]
    _, links = generation(members, groups=groups)
    nbytes = world.spans * world.width * 4
    assert [link.weight_bytes for link in links] == [nbytes] * 4
    for here, there in zip(groups, reversed(groups), strict=True):
        assert sum(links[rank].bytes_with(WEIGHTS, there) for rank in here) == nbytes
    assert min(link.hops for link in links) > world.spans


def test_a_round_crosses_the_border_between_two_nodes_once_each_way() -> None:
    """Shared memory inside a node, gloo between them, nodes interleaved in rank order."""
    store = open_room()
    world = World(steps=1, spans=3)
    members = [Member(world, healed=False) for _ in range(3)]
    for member in members[1:]:
        member._compute = lambda item, spans: None  # type: ignore[method-assign]
    ended, links = generation(members, transports=on_nodes((0, 1, 0), store.port))
    assert all(ended)
    nbytes = world.spans * world.width * 4
    assert links[0].groups == ((0, 2), (1,))
    assert [link.weight_bytes for link in links] == [nbytes] * 3
    assert links[0].bytes_with(WEIGHTS, (1,)) == 0
    assert links[2].bytes_with(WEIGHTS, (1,)) == nbytes
    assert links[1].bytes_with(WEIGHTS, (0, 2)) == nbytes
    for member in members[1:]:
        assert torch.equal(member.weights, members[0].weights)


def test_the_ring_follows_the_nodes() -> None:
    assert ring_order((), 3) == [0, 1, 2]
    assert ring_order(((0, 2, 4), (1, 3)), 5) == [0, 2, 4, 1, 3]


def test_weights_of_several_types_are_refused_by_name() -> None:
    with pytest.raises(StepMisuse, match=r"torch.float32 on cpu, torch.float64 on cpu"):
        WeightSpans([Parameter(torch.zeros(3)), Parameter(torch.zeros(3, dtype=torch.float64))], 2)


def test_parameters_live_in_the_spans_and_keep_their_values() -> None:
    net = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 1))
    before = [p.detach().clone() for p in net.parameters()]
    spans = WeightSpans(list(net.parameters()), 3)
    assert all(torch.equal(p, old) for p, old in zip(net.parameters(), before, strict=True))
    with torch.no_grad():
        net[0].weight.add_(1.0)
    spans.owe([0], 0.5, range(3))
    assert torch.allclose(net[0].weight, before[0] + 0.5)
    assert len(spans) == 3


def one_span() -> WeightSpans:
    spans = WeightSpans([Parameter(torch.zeros(16))], 1)
    spans.begin([])
    spans.open()
    return spans


def test_an_item_is_settled_when_its_token_has_been_round_and_not_before() -> None:
    """The one who adds it could be lost before anybody else has seen it."""
    spans = one_span()
    spans.owe([0], 1.0, [0])
    spans.add(0, spans.generation)
    assert 0 in spans.held[0].items
    assert 0 not in spans.everywhere()
    spans.passing(0)
    assert 0 not in spans.everywhere()
    spans.arrive(0, 1, None, spans.generation)
    assert 0 in spans.everywhere()


def test_a_thread_of_a_generation_before_changes_nothing() -> None:
    spans = one_span()
    old, memory = spans.generation, spans.incoming(0)
    spans.owe([0], 1.0, [0])
    spans.open()
    memory.fill_(7.0)
    with pytest.raises(ExchangeBroken, match="over"):
        spans.arrive(0, 5, ItemSet(3), old)
    with pytest.raises(ExchangeBroken, match="over"):
        spans.add(0, old)
    spans.arrive(0, 1, ItemSet(), spans.generation)
    assert not (spans.held[0].weights == 7.0).any()


def test_a_healed_worker_takes_every_token_from_others() -> None:
    """Its donor's weights hold what the donor owes: they are nobody's copy of a token."""
    group: Any = SimpleNamespace(
        spec=JobSpec.parse({"name": "a", "entrypoint": "m:f", "sync": "token_ring"}),
        trained=SimpleNamespace(parameters=[Parameter(torch.ones(20))]),
        progress=Progress(heals=1),
        inside=LoopPosition(),
    )
    tokens = WorkerTokens(group)
    epoch = Epoch.shuffled(rows=8, batch=4, shards=1, seed=0, epoch=0, shuffle=False)
    tokens.begin(BatchLoop(0, 0, "", epoch, None, None, 0, None, LoaderProcesses(0)))
    assert [copy.version for copy in tokens.spans.copies()] == [-1]
    group.progress.heals = 2
    tokens.spans.owe([0], 1.0, [0])
    tokens.begin(BatchLoop(0, 0, "", epoch, None, None, 0, None, LoaderProcesses(0)))
    assert [(copy.version, copy.owed) for copy in tokens.spans.copies()] == [(-1, frozenset())]
