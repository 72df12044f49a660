"""Every registered schedule: right sums, exact bytes, canonical bits where it says so."""

import random
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from replay import Replay, node_sum, parts_of

from ringleader.comm.executor import Scratch, execute
from ringleader.comm.schedules import SCHEDULES
from ringleader.comm.schedules.star import pull, push
from ringleader.comm.transports.inprocess import Hub
from ringleader.comm.tree import combine, tree_over

WORLDS = range(1, 10)
LENGTHS = (0, 1, 3, 7, 40)
every_schedule = pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=list(SCHEDULES))
CANONICAL = [s for s in SCHEDULES.values() if s.canonical]


def everyone(shards: int) -> frozenset[int]:
    return frozenset(range(shards))


def integer_rows(parts, values):
    """Each rank's rows as lists; a rank without partial sums has a row 0 of rubbish."""
    return [[node_sum(n, p, values) for n in p.rows[p.rank]] or [[-(10**9)] * p.length] for p in parts]


def replayed(programs, parts, values, seed):
    replay = Replay(programs, integer_rows(parts, values), seed)
    replay.run()
    return replay


@every_schedule
@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("length", LENGTHS)
def test_every_rank_ends_with_the_exact_sum_and_sends_what_the_formula_says(schedule, world, length):
    for shards, absent in ((world, set()), (12, set()), (12, {0, 5, 6, 7}), (13, set(range(1, 13)))):
        seed = 1000 * world + length
        values = {
            s: [random.Random(seed + s).randrange(1000) + i for i in range(length)] for s in range(shards)
        }
        present = everyone(shards) - absent
        parts = parts_of(world, shards, length, present, chunk=5)
        replay = replayed([list(schedule.steps(p)) for p in parts], parts, values, seed)
        total = [sum(values[s][i] for s in present) for i in range(length)]
        assert [rows[0] for rows in replay.rows] == [total] * world
        assert replay.sent == [schedule.sent(p) for p in parts]


@pytest.mark.parametrize("name", ["direct", "ring"])
@pytest.mark.parametrize("world", WORLDS)
def test_one_row_a_rank_costs_twice_p_minus_one_over_p_of_the_bucket(name, world):
    length = 12 * 35 * world
    parts = parts_of(world, world, length, everyone(world), chunk=64)
    assert [SCHEDULES[name].sent(p) for p in parts] == [2 * (world - 1) * length // world] * world


@pytest.mark.parametrize("world", WORLDS)
def test_a_star_sums_at_its_root_and_hands_the_result_out(world):
    shards, length, root = 8, 11, world - 1
    values = {s: [s * 100 + i for i in range(length)] for s in range(shards)}
    parts = parts_of(world, shards, length, everyone(shards), chunk=4)
    rows = replayed([[*push(p, root), *pull(p, root)] for p in parts], parts, values, seed=world).rows
    assert [r[0] for r in rows] == [[sum(values[s][i] for s in range(shards)) for i in range(length)]] * world


def on_threads(schedule, parts, rows_of):
    """The result of every rank over an in-process transport, and the bytes sent."""
    hub = Hub(len(parts))

    def one(part):
        rows = rows_of(part)
        steps = tuple(schedule.steps(part))
        execute(steps, rows, Scratch(), hub.transport(part.rank), tag=0)
        return rows[0]

    with ThreadPoolExecutor(len(parts)) as pool:
        return list(pool.map(one, parts)), hub.bytes_sent


@every_schedule
@pytest.mark.parametrize("world", range(1, 9))
@pytest.mark.parametrize("length", [0, 1, 3, 10007])
def test_tensors_over_threads_sum_exactly(schedule, world, length):
    parts = parts_of(world, world, length, everyone(world), chunk=1000)
    values = [torch.arange(length, dtype=torch.float32) * (rank + 1) for rank in range(world)]
    results, sent = on_threads(schedule, parts, lambda p: [values[p.rank].clone()])
    expected = torch.arange(length, dtype=torch.float32) * (world * (world + 1) // 2)
    assert all(torch.equal(r, expected) for r in results)
    assert sent == [4 * schedule.sent(p) for p in parts]


@pytest.mark.parametrize("schedule", CANONICAL, ids=[s.name for s in CANONICAL])
@pytest.mark.parametrize("absent", [set(), {0}, {3, 4}, {0, 1, 2, 3, 5}])
def test_a_canonical_schedule_gives_the_same_bits_at_every_world(schedule, absent):
    shards, length = 8, 1003
    torch.manual_seed(7)
    slices = {s: torch.randn(length) * 10.0 ** (s % 5) for s in range(shards)}
    tree = tree_over(shards, everyone(shards) - absent)
    expected = combine(tree, slices, torch.add)

    def rows_of(part):
        nodes = part.rows[part.rank]
        sums = [
            combine(tree_over(shards, part.tree.present & set(n.covers(shards))), slices, torch.add)
            for n in nodes
        ]
        return [s.clone() for s in sums] or [torch.full((length,), float("nan"))]

    for world in range(1, 9):
        parts = parts_of(world, shards, length, tree.present, chunk=100)
        results, _ = on_threads(schedule, parts, rows_of)
        assert all(torch.equal(r, expected) for r in results), f"world {world} has other bits"


def test_the_in_process_native_sum_equals_the_exact_one():
    hub = Hub(3)

    def one(rank):
        values = torch.full((5,), float(rank + 1))
        hub.transport(rank).native_all_reduce(values).wait()
        return values

    with ThreadPoolExecutor(3) as pool:
        assert all(torch.equal(v, torch.full((5,), 6.0)) for v in pool.map(one, range(3)))
