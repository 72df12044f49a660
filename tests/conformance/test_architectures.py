"""Every synchronous architecture: the bits of one process on any nodes, and between nodes what the formula says."""

from itertools import product

import pytest
import torch
from exchange_members import Member, momentum, on_members, plan_of, small_net, synchronous

from ringleader.comm.buckets import Buckets
from ringleader.comm.schedules.primitives.relayed import joined
from ringleader.comm.schedules.schedule import even_spans
from ringleader.comm.transports.inprocess import Hub
from ringleader.comm.tree import tree_over
from ringleader.exchange.registry import ARCHITECTURES, COPYING, share_out

SHARDS, STEPS, CAPACITY = 8, 3, 1 << 10
ABSENT = (frozenset(), frozenset({0, 1, 4}), frozenset(range(1, 8)))
KINDS = synchronous()
SERVED = [name for name, sync in KINDS.items() if sync.server_count]
NODES = {
    1: [((0, 1, 3), (2, 4)), ((0,), (1,), (2,), (3,), (4,)), ((0, 1, 2, 3, 4),)],
    2: [((0, 1, 3), (2, 4)), ((0, 4), (1, 2), (3,)), ((0, 1, 2), (3, 4))],
    3: [((0, 3), (1, 4), (2, 5)), ((0, 2, 4, 5), (1, 3)), ((0, 1, 2, 3, 4), (5,))],
}
"""By the number of servers, which are the last ranks: three workers on nodes, together, in turn, and apart."""


def adam(parameters):
    return torch.optim.Adam(parameters, lr=0.01)


def adamw(parameters):
    return torch.optim.AdamW(parameters, lr=0.01, weight_decay=0.1)


def trained(plan, architecture, nodes=(), **how):
    """The weights of every member; without `nodes` all share memory."""
    size = len(plan.members)
    hub = Hub(size)
    members = [hub.transport(rank, nodes) for rank in range(size)] if nodes and size > 1 else None
    absent = how.pop("absent", frozenset())
    act = lambda member: member.train(STEPS, absent)  # noqa: E731
    return on_members(plan, act, architecture=architecture, members=members, shared=not nodes, **how)


def test_every_synchronous_architecture_of_the_job_file_is_registered():
    assert set(KINDS) <= set(ARCHITECTURES)
    assert {"ring", "parameter_server", "parameter_server/ring", "ring/parameter_server"} <= set(KINDS)
    assert {name for name, sync in KINDS.items() if sync.servers_are_copies} == COPYING


@pytest.mark.parametrize("clip_norm", [None, 0.05])
@pytest.mark.parametrize("optimizer", [momentum, adam, adamw])
@pytest.mark.parametrize("name", KINDS)
def test_any_nodes_have_the_bits_of_one_process(name, optimizer, clip_norm):
    how = {"optimizer": optimizer, "clip_norm": clip_norm}
    alone = [trained(plan_of(1, SHARDS), "ring", ((0,),), absent=absent, **how)[0] for absent in ABSENT]
    for servers in NODES if KINDS[name].server_count else (0,):
        for turn, nodes in enumerate((*NODES[servers or 2], ())):
            workers = sum(map(len, NODES[servers][0])) - servers if servers else 5
            absent = (turn + servers) % len(ABSENT)
            nets = trained(plan_of(workers, SHARDS, servers), name, nodes, absent=ABSENT[absent], **how)
            assert len(nets) == workers + servers
            for net, key in product(nets, alone[absent]):
                assert torch.equal(net[key], alone[absent][key]), (nodes, key)


@pytest.mark.parametrize("name", SERVED)
def test_sums_in_any_order_are_equal_on_all_members(name):
    for servers, every in NODES.items():
        for nodes in every:
            workers = sum(map(len, nodes)) - servers
            nets = on_merged(plan_of(workers, workers, servers), name, nodes)
            assert all(torch.equal(nets[0][key], net[key]) for net in nets for key in net)


def on_merged(plan, name, nodes):
    hub = Hub(len(plan.members))
    members = [hub.transport(rank, nodes) for rank in range(hub.size)]
    return on_members(plan, lambda m: m.train(STEPS), architecture=name, members=members, same_bits=False)


def crossing(plan, name, nodes):
    """(left, entered): elements that crossed each node's link in one step, without words."""
    hub = Hub(len(plan.members))
    members = [hub.transport(rank, nodes) for rank in range(hub.size)]

    def step(member: Member) -> None:
        for number in range(2):
            member.gradient(number, frozenset(range(plan.shards)))
            member.exchange.finish(torch.zeros(0))
            if member.exchange.updates:
                member.optimizer.step()
            member.exchange.publish()

    on_members(plan, step, architecture=name, members=members, capacity_bytes=CAPACITY)
    home = {rank: node for node, ranks in enumerate(nodes) for rank in ranks}
    left, entered = [0] * len(nodes), [0] * len(nodes)
    for (source, target), nbytes in hub.bytes_between.items():
        if home[source] != home[target]:
            left[home[source]] += nbytes
            entered[home[target]] += nbytes
    return [n / 2 / 4 for n in left], [n / 2 / 4 for n in entered]


def sums_of(plan, nodes):
    """m: how many partial sums the rows of each node add up to."""
    tree = tree_over(plan.shards, frozenset(range(plan.shards)))
    return [
        len(joined(tree, (n for r in ranks for n in tree.partials(plan.shards_of(r))))) for ranks in nodes
    ]


def loads_of(servers):
    """Elements that each server owns."""
    parameters = list(small_net().parameters())
    owners = share_out(parameters, servers)
    return [sum(p.numel() for p, o in zip(parameters, owners, strict=True) if o == s) for s in range(servers)]


PLACED = [
    (4, 1, ((0, 1, 4), (2, 3))),
    (4, 2, ((0, 1, 4), (2, 3, 5))),
    (8, 2, ((0, 1, 2, 3, 8), (4, 5, 6, 7, 9))),
    (4, 2, ((0, 2, 4), (1, 3, 5))),
    (3, 2, ((0, 1, 3), (2, 4))),
    (6, 3, ((0, 1, 6), (2, 3, 7), (4, 5, 8))),
    (8, 4, ((0, 1, 8), (2, 3, 9), (4, 5, 10), (6, 7, 11))),
]


@pytest.mark.parametrize(("workers", "servers", "nodes"), PLACED)
@pytest.mark.parametrize("name", [name for name in SERVED if name not in COPYING])
def test_a_share_crosses_a_nodes_link_once_up_and_once_down_however_many_workers_it_has(
    name, workers, servers, nodes
):
    """A node sends m·S of each share that lives elsewhere and its own share's weights to every other node."""
    plan = plan_of(workers, SHARDS, servers)
    sums, loads = sums_of(plan, nodes), loads_of(servers)
    away = [sum(loads[r - workers] for r in range(workers, workers + servers) if r not in n) for n in nodes]
    at_home = [sum(loads) - a for a in away]
    others = len(nodes) - 1
    left, entered = crossing(plan, name, nodes)
    assert left == [m * a + others * h for m, a, h in zip(sums, away, at_home, strict=True)]
    foreign = [sum(sums) - m for m in sums]
    assert entered == [a + m * h for a, m, h in zip(away, foreign, at_home, strict=True)]


@pytest.mark.parametrize(("workers", "servers", "nodes"), [p for p in PLACED if p[1] == len(p[2])])
@pytest.mark.parametrize("name", sorted(COPYING))
def test_copies_exchange_what_an_all_reduce_between_one_rank_a_node_does(name, workers, servers, nodes):
    """(R-1)/R·(m+1)·n leave a node, and the word by which the servers wait for each other."""
    plan = plan_of(workers, SHARDS, servers)
    expected = [float(servers - 1)] * servers
    for bucket in Buckets(
        list(small_net().parameters()), capacity_bytes=CAPACITY, alone_bytes=4 * CAPACITY
    ).buckets:
        for k, (m, (start, stop)) in enumerate(
            zip(sums_of(plan, nodes), even_spans(bucket.length, servers), strict=True)
        ):
            expected[k] += m * (bucket.length - (stop - start)) + (servers - 1) * (stop - start)
    left, _ = crossing(plan, name, nodes)
    assert left == expected


ADDING_UP = [
    (workers, servers, nodes)
    for workers, servers, nodes in PLACED
    if servers == len(nodes) and set(sums_of(plan_of(workers, SHARDS, servers), nodes)) == {1}
]


@pytest.mark.parametrize(("workers", "servers", "nodes"), ADDING_UP)
@pytest.mark.parametrize("name", [name for name in SERVED if name not in COPYING])
def test_what_a_backup_gets_of_the_sum_it_does_not_get_as_weights(name, workers, servers, nodes):
    """So no more crosses the links than without backups, but for the words by which servers wait for each other, and
    for a third and fourth node that a root serves and whose rows do not add up with its own."""
    alone, backed = (plan_of(workers, SHARDS, servers, backups=b, parts=servers) for b in (0, 1))
    words = servers * (servers - 1)
    more = sum(crossing(backed, name, nodes)[0]) - sum(crossing(alone, name, nodes)[0]) - words
    assert more == 0 if servers < 4 else 0 < more <= sum(loads_of(servers))
