"""Every registered schedule: right sums, exact bytes, canonical bits where it says so."""

import itertools
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from math import lcm
from pkgutil import iter_modules
from typing import get_args

import pytest
import torch
from canonical import combine
from formulas import FORMULAS
from replay import Replay, layouts, node_sum, parts_of

from ringleader.comm import schedules
from ringleader.comm.executor import Scratch, execute
from ringleader.comm.schedules import SCHEDULES, Schedule, Send
from ringleader.comm.schedules.schedule import always
from ringleader.comm.schedules.star import pull, push
from ringleader.comm.transports.inprocess import Hub
from ringleader.comm.tree import tree_over
from ringleader.spec.sync_keys import CANONICAL, Algorithm

WORLDS = range(1, 17)
LENGTHS = (0, 1, 3, 40)
MILLION = 1 << 20
every_schedule = pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=list(SCHEDULES))


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
def test_every_rank_ends_with_the_exact_sum_and_sends_what_the_formula_says(schedule, world):
    cases = ((world, set()), (12, {0, 5, 6, 7}), (13, set(range(1, 13))), (4, {0, 1, 2, 3}))
    for length, (shards, absent) in itertools.product(LENGTHS, cases):
        seed = 1000 * world + length
        values = {
            s: [random.Random(seed + s).randrange(1000) + i for i in range(length)] for s in range(shards)
        }
        present = everyone(shards) - absent
        total = [sum(values[s][i] for s in present) for i in range(length)]
        seen = []
        for groups in layouts(world):
            parts = parts_of(world, shards, length, present, chunk=5, groups=groups)
            programs = [list(schedule.steps(p)) for p in parts]
            if programs in seen:
                continue
            seen.append(programs)
            replay = replayed(programs, parts, values, seed)
            assert [rows[0] for rows in replay.rows] == [total] * world
            assert replay.sent == [schedule.sent(p) for p in parts]


@every_schedule
@pytest.mark.parametrize("world", WORLDS)
def test_every_rank_sends_what_the_cited_text_says(schedule, world):
    """With one row a rank, on any nodes: S has all worlds as divisors, so that no span is rounded."""
    length = lcm(*WORLDS)
    for groups in layouts(world):
        parts = parts_of(world, world, length, everyone(world), chunk=length, groups=groups)
        sent = [sum(s.span[1] - s.span[0] for s in schedule.steps(p) if isinstance(s, Send)) for p in parts]
        assert sent == [FORMULAS[schedule.name](rank, world, length, groups) for rank in range(world)]


@pytest.mark.parametrize("world", WORLDS)
def test_nobody_sends_more_than_twice_the_bucket_in_two_trees(world):
    parts = parts_of(world, world, 840, everyone(world), chunk=64)
    sent = [SCHEDULES["double_tree"].sent(p) for p in parts]
    assert sum(sent) == 2 * (world - 1) * 840
    assert max(sent) <= 2 * 840


@pytest.mark.parametrize("world", [4, 6, 8, 12, 16])
def test_two_nodes_exchange_the_bucket_once_however_many_ranks_they_have(world):
    halves = (tuple(range(world // 2)), tuple(range(world // 2, world)))
    parts = parts_of(world, world, 840, everyone(world), chunk=64, groups=halves)
    crossing = [
        step.span[1] - step.span[0]
        for part in parts
        for step in SCHEDULES["two_level"].steps(part)
        if isinstance(step, Send) and (step.peer in halves[0]) != (part.rank in halves[0])
    ]
    assert sum(crossing) == 2 * 840


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
@pytest.mark.parametrize("world", WORLDS)
def test_tensors_over_threads_sum_exactly(schedule, world):
    """Integers of at most 8 + 14 bits: float32 adds them exactly in any order."""
    for length in (0, 1, 3, 10007):
        parts = parts_of(world, world, length, everyone(world), chunk=1000, groups=layouts(world)[-1])
        values = [torch.arange(length, dtype=torch.float32) * (rank + 1) for rank in range(world)]
        results, sent = on_threads(schedule, parts, lambda p, of=values: [of[p.rank].clone()])
        expected = torch.arange(length, dtype=torch.float32) * (world * (world + 1) // 2)
        assert all(torch.equal(r, expected) for r in results), f"wrong sums of {length} elements"
        assert sent == [4 * schedule.sent(p) for p in parts]


@every_schedule
@pytest.mark.parametrize("world", WORLDS)
def test_a_million_elements_sum_exactly(schedule, world):
    """In 16 bits, which wrap alike in any order and are half as much to move."""
    parts = parts_of(world, world, MILLION, everyone(world), chunk=1 << 18, groups=layouts(world)[-1])
    values = torch.arange(MILLION).to(torch.int16)
    results, sent = on_threads(schedule, parts, lambda p: [values * (p.rank + 1)])
    expected = values * (world * (world + 1) // 2)
    assert all(torch.equal(r, expected) for r in results)
    assert sent == [2 * schedule.sent(p) for p in parts]


def bits_of_a_sum(schedule, world, shards, length, absent, groups=()):
    """What the ranks end with, and the canonical sum, of values that no two orders add alike.

    Returns:
        whether the schedule says that they are the same, and whether they are.
    """
    tree = tree_over(shards, everyone(shards) - absent)
    parts = parts_of(world, shards, length, tree.present, chunk=100, groups=groups)
    verdicts = {schedule.canonical(p) for p in parts}
    assert len(verdicts) == 1, "the ranks differ over whether their sum is canonical"
    generator = torch.Generator().manual_seed(7)
    # Signed zeros in one column: a zero added for an absent shard would turn -0.0 into 0.0.
    slices = {s: torch.randn(length, generator=generator) * 10.0 ** (s % 5) for s in range(shards)}
    for values in slices.values():
        values[0] = -0.0

    def rows_of(part):
        below = [tree_over(shards, tree.present & set(n.covers(shards))) for n in part.rows[part.rank]]
        sums = [combine(t, slices, torch.add) for t in below]
        return [s.clone() for s in sums] or [torch.full((length,), float("nan"))]

    results, _ = on_threads(schedule, parts, rows_of)
    expected = combine(tree, slices, torch.add)
    same = all(torch.equal(r.view(torch.int32), expected.view(torch.int32)) for r in results)
    return verdicts.pop(), same


@every_schedule
@pytest.mark.parametrize("world", WORLDS)
def test_a_canonical_schedule_gives_the_same_bits_at_every_world(schedule, world):
    chance = random.Random(world)
    for shards in (8, 16, world):
        several = set(chance.sample(range(shards), shards // 3))
        for absent in (set(), {0} if shards > 1 else set(), several):
            groups = chance.choice(layouts(world))
            says, same = bits_of_a_sum(schedule, world, shards, 503, absent, groups)
            assert same or not says, f"{shards} shards without {absent} on {groups} have other bits"


def on_nodes(ranks: list[int]) -> Iterator[tuple[tuple[int, ...], ...]]:
    """Every way of placing the ranks on nodes, which are in the order of their first ranks."""
    if not ranks:
        yield ()
        return
    first, *others = ranks
    for count in range(len(others) + 1):
        for beside in itertools.combinations(others, count):
            left = [rank for rank in others if rank not in beside]
            for rest in on_nodes(left):
                yield ((first, *beside), *rest)


@every_schedule
@pytest.mark.parametrize("absent", [set(), {0, 1}, {0, 1, 4}, {2, 6, 7}], ids=str)
def test_a_canonical_schedule_gives_the_same_bits_on_any_nodes(schedule, absent):
    """Also where a node's first rank holds nothing, and its sum comes behind those of nodes with later ranks."""
    said = 0
    for groups in on_nodes(list(range(5))):
        says, same = bits_of_a_sum(schedule, 5, 8, 53, absent, groups)
        assert same or not says, f"without {absent} on {groups} the bits are others"
        said += says
    assert said or schedule.name not in CANONICAL


CANONICAL_WORLDS = {
    "binary_blocks": set(WORLDS),
    "direct": set(WORLDS),
    "double_tree": {1, 2},
    "doubling": {1, 2, 3, 4, 6, 7, 8, 12, 14, 15, 16},
    "gather": set(WORLDS),
    "halving_doubling": {1, 2, 3, 4, 6, 7, 8, 12, 14, 15, 16},
    "ring": set(),
    "tree": set(WORLDS),
    "two_level": set(WORLDS),
}


@every_schedule
def test_the_worlds_with_one_shard_a_rank_in_which_a_schedule_is_canonical(schedule):
    parts = {world: parts_of(world, world, 40, everyone(world), chunk=5)[0] for world in WORLDS}
    said = {world for world, part in parts.items() if schedule.canonical(part)}
    assert said == CANONICAL_WORLDS[schedule.name]


@pytest.mark.parametrize("name", [n for n, worlds in CANONICAL_WORLDS.items() if worlds >= {1, 2, 4, 8, 16}])
def test_a_power_of_two_with_aligned_shards_is_canonical(name):
    for world, each in itertools.product((1, 2, 4, 8, 16), (1, 2, 4)):
        shards = world * each
        pairs = tuple((r, r + 1) for r in range(0, world, 2)) if world > 1 else ()
        part = parts_of(world, shards, 40, everyone(shards), chunk=5, groups=pairs)[0]
        assert SCHEDULES[name].canonical(part), f"{world} ranks with {each} shards each"


def test_nodes_that_hold_shards_in_turn_do_not_sum_in_two_levels_along_the_tree():
    in_turn = parts_of(4, 4, 40, everyone(4), chunk=5, groups=((0, 2), (1, 3)))
    assert not SCHEDULES["two_level"].canonical(in_turn[0])


def test_every_schedule_of_the_package_is_registered():
    modules = [import_module(f"{schedules.__name__}.{m.name}") for m in iter_modules(schedules.__path__)]
    made = [value for module in modules for value in vars(module).values() if isinstance(value, Schedule)]
    assert {schedule.name: schedule for schedule in made} == SCHEDULES


def test_the_job_file_admits_every_schedule_and_knows_which_never_change_the_bits():
    assert set(get_args(Algorithm)) == {"auto", "native", *SCHEDULES}
    assert {"auto", *(n for n, s in SCHEDULES.items() if s.canonical is always)} == CANONICAL
