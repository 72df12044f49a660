"""Pushes and pulls that go through nodes: right sums, canonical bits, and each node's link crossed once."""

import itertools
import random

import pytest
from replay import Replay, node_sum

from ringleader.comm.schedules import RankPart, Send
from ringleader.comm.schedules.primitives import relayed, replicated
from ringleader.comm.schedules.primitives.relayed import Relay, by_one, by_workers
from ringleader.comm.tree import tree_over
from ringleader.elastic.plan import owned

LENGTHS = (0, 1, 3, 40)
LAYOUTS = [
    ((0, 1, 4), (2, 3)),
    ((0, 1), (2, 3), (4, 5)),
    ((0, 2, 4), (1, 3)),
    ((0, 1, 2), (3,), (4, 5, 6)),
    ((0, 1, 2, 3, 4),),
    ((0,), (1,), (2,), (3,)),
    ((0, 1, 2, 3), (4,)),
]
"""Ranks on nodes; the last ones are servers."""
ABSENT = (set(), {0, 5, 6, 7}, set(range(1, 8)), set(range(8)))
SHARDS = 8


def parts_of(world, servers, length, present, chunk=5):
    tree = tree_over(SHARDS, frozenset(present))
    workers = world - servers
    rows = [tree.partials(owned(r, workers, SHARDS)) if r < workers else () for r in range(world)]
    return [RankPart(rank, length, tuple(rows), tree, chunk) for rank in range(world)]


def replayed(programs, parts, values, seed):
    """The rows at the end; rows that a rank takes as it needs them begin with rubbish."""
    rows = []
    for program, part in zip(programs, parts, strict=True):
        held = [node_sum(n, part, values) for n in part.rows[part.rank]]
        most = max([0, *(getattr(step, "place", 0) for step in program)])
        rows.append(held + [[-(10**9)] * part.length for _ in range(most + 1 - len(held))])
    replay = Replay(programs, rows, seed)
    replay.run()
    return replay.rows


def relay_of(layout, root, workers, kind):
    """One worker of each node collects, or all of them do; at home the root itself, or all."""
    if kind == "one":
        return Relay(root, tuple(by_one(ranks, root) for ranks in layout))
    return Relay(root, tuple(by_workers(ranks, root, workers) for ranks in layout))


def crossing(programs, home):
    """Elements that leave each node, by node."""
    left = dict.fromkeys(home.values(), 0)
    for rank, program in enumerate(programs):
        for step in program:
            if isinstance(step, Send) and home[step.peer] != home[rank]:
                left[home[rank]] += step.span[1] - step.span[0]
    return left


@pytest.mark.parametrize("kind", ["one", "all"])
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_a_root_gets_the_exact_sum_through_the_nodes_and_everybody_gets_its_row_back(layout, kind):
    world = sum(map(len, layout))
    home = {rank: number for number, ranks in enumerate(layout) for rank in ranks}
    cases = itertools.product(LENGTHS, ABSENT, (1, 2))
    for seed, (length, absent, servers) in enumerate(cases):
        workers = world - servers
        root = world - 1 - seed % servers
        present = set(range(SHARDS)) - absent
        values = {s: [random.Random(seed + s).randrange(1000) + i for i in range(length)] for s in present}
        total = [sum(values[s][i] for s in present) for i in range(length)]
        parts = parts_of(world, servers, length, present)
        relay = relay_of(layout, root, workers, kind)
        pushes = [list(relayed.push(p, relay)) for p in parts]
        pulls = [list(relayed.pull(p, relay)) for p in parts]
        rows = replayed([[*a, *b] for a, b in zip(pushes, pulls, strict=True)], parts, values, seed)
        assert [r[0] for r in rows] == [total] * world

        here = home[root]
        sums = [
            len(relayed.joined(parts[0].tree, (n for r in ranks for n in parts[0].rows[r])))
            for ranks in layout
        ]
        left = crossing(pushes, home)
        assert left == {k: 0 if k == here else sums[k] * length for k in left}
        assert crossing(pulls, home) == {k: (len(layout) - 1) * length if k == here else 0 for k in left}


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_every_root_of_a_region_gets_the_exact_sum(layout):
    world = sum(map(len, layout))
    for seed, (length, absent, servers) in enumerate(itertools.product(LENGTHS, ABSENT, (1, 2, 3))):
        workers = world - servers
        present = set(range(SHARDS)) - absent
        values = {s: [random.Random(seed + s).randrange(1000) + i for i in range(length)] for s in present}
        total = [sum(values[s][i] for s in present) for i in range(length)]
        parts = parts_of(world, servers, length, present)
        regions = [
            relay_of(((*range(i, workers, servers), workers + i),), workers + i, workers, "one")
            for i in range(servers)
        ]
        programs = [[*replicated.push(p, regions), *replicated.pull(p, regions)] for p in parts]
        rows = replayed(programs, parts, values, seed)
        assert [r[0] for r in rows] == [total] * world
