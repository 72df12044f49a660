"""The simulator against closed formulas: alpha a message, beta a byte, gamma a byte added."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from ringleader.comm.schedules import SCHEDULES, RankPart, Receive, Schedule, Send, Step
from ringleader.comm.schedules.schedule import never
from ringleader.comm.schedules.star import pull, push
from ringleader.comm.simulator import ClusterCosts, LinkCost, simulate
from ringleader.comm.tree import TreeNode, tree_over

ALPHA, BETA, GAMMA = 3e-5, 2e-9, 5e-10
UNIFORM = ClusterCosts(LinkCost(ALPHA, BETA), LinkCost(ALPHA, BETA), GAMMA)
FREE_ADDS = ClusterCosts(LinkCost(ALPHA, BETA), LinkCost(ALPHA, BETA), 0.0)
SLOW_NETWORK = ClusterCosts(LinkCost(0.0, 0.0), LinkCost(ALPHA, BETA), 0.0)
ELEMENTS = 16 * 840
"""Divisible by every world here, and small enough that no schedule cuts it into pieces."""
BYTES = 4 * ELEMENTS
POWERS = [2, 4, 8, 16]


def part_of(world: int, length: int = ELEMENTS, groups=()) -> RankPart:
    tree = tree_over(world, frozenset(range(world)))
    return RankPart(0, length, tuple((TreeNode(0, r),) for r in range(world)), tree, groups=groups)


def exactly(seconds: float):
    """Equal but for the rounding of a few hundred additions of doubles."""
    return pytest.approx(seconds, rel=1e-9)


@pytest.mark.parametrize("world", [2, 3, 5, 8, 16])
def test_a_ring_takes_its_hops_one_after_the_other(world):
    span = 4 * (ELEMENTS // world)
    part = part_of(world, ELEMENTS // world * world)
    hops = 2 * (world - 1) * (ALPHA + BETA * span) + (world - 1) * GAMMA * span
    assert simulate(SCHEDULES["ring"], part, UNIFORM).finish_s == tuple([exactly(hops)] * world)


@pytest.mark.parametrize("world", [2, 3, 5, 8, 16])
def test_direct_is_two_rounds_of_messages_that_each_sender_sends_one_after_the_other(world):
    span = 4 * (ELEMENTS // world)
    part = part_of(world, ELEMENTS // world * world)
    rounds = 2 * (world - 1) * (ALPHA + BETA * span)
    assert simulate(SCHEDULES["direct"], part, FREE_ADDS).seconds == exactly(rounds)


@pytest.mark.parametrize("world", [2, 3, 5, 8, 16])
def test_gather_is_one_such_round_of_whole_buckets(world):
    round_ = (world - 1) * (ALPHA + BETA * BYTES)
    assert simulate(SCHEDULES["gather"], part_of(world), FREE_ADDS).seconds == exactly(round_)


@pytest.mark.parametrize("world", POWERS)
def test_a_tree_takes_the_whole_bucket_up_and_down_its_levels(world):
    levels = world.bit_length() - 1
    up_and_down = levels * (2 * (ALPHA + BETA * BYTES) + GAMMA * BYTES)
    assert simulate(SCHEDULES["tree"], part_of(world), UNIFORM).seconds == exactly(up_and_down)


@pytest.mark.parametrize("name", ["halving_doubling", "binary_blocks"])
@pytest.mark.parametrize("world", POWERS)
def test_halving_and_doubling_need_two_hops_a_level_and_a_rings_bytes(name, world):
    levels, share = world.bit_length() - 1, (world - 1) / world
    expected = 2 * levels * ALPHA + 2 * share * BETA * BYTES + share * GAMMA * BYTES
    assert simulate(SCHEDULES[name], part_of(world), UNIFORM).seconds == exactly(expected)


@pytest.mark.parametrize("world", POWERS)
def test_doubling_needs_one_hop_a_level_with_the_whole_bucket(world):
    levels = world.bit_length() - 1
    expected = levels * (ALPHA + BETA * BYTES + GAMMA * BYTES)
    assert simulate(SCHEDULES["doubling"], part_of(world), UNIFORM).seconds == exactly(expected)


def test_pieces_overlap_on_their_way_through_a_tree():
    bytes_each = 4 << 20
    forecast = simulate(SCHEDULES["tree"], part_of(8, 1 << 20), UNIFORM)
    assert forecast.seconds < 0.6 * 3 * (2 * (ALPHA + BETA * bytes_each) + GAMMA * bytes_each)


@pytest.mark.parametrize("world", [3, 4, 8])
def test_a_ring_of_many_pieces_leaves_no_link_idle_and_hides_its_adds(world):
    pieces, piece = 5, part_of(1).chunk
    forecast = simulate(SCHEDULES["ring"], part_of(world, world * pieces * piece), UNIFORM)
    messages = 2 * (world - 1) * pieces
    assert forecast.seconds == exactly(messages * (ALPHA + BETA * 4 * piece))


def test_two_levels_hide_what_happens_inside_the_nodes_but_for_a_first_and_a_last_piece():
    costs = ClusterCosts(LinkCost(0.0, BETA / 4), LinkCost(0.0, BETA), GAMMA)
    pieces = 8
    nbytes = 4 * pieces * 4 * part_of(1).chunk
    forecast = simulate(SCHEDULES["two_level"], part_of(4, nbytes // 4, groups=((0, 1), (2, 3))), costs)
    all_inside = nbytes * (BETA / 4 + GAMMA / 2)
    assert BETA * nbytes < forecast.seconds < BETA * nbytes + 2 * all_inside / pieces


@pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=list(SCHEDULES))
@pytest.mark.parametrize("world", [1, 2, 5, 8])
def test_with_one_rank_a_node_its_link_carries_what_the_formula_says(schedule, world):
    alone = tuple((rank,) for rank in range(world))
    part = part_of(world, groups=alone)
    forecast = simulate(schedule, part, UNIFORM)
    sent = [schedule.sent(RankPart(r, part.length, part.rows, part.tree, groups=alone)) for r in range(world)]
    assert list(forecast.left_bytes) == [4 * elements for elements in sent]
    assert sum(forecast.entered_bytes) == sum(forecast.left_bytes)


@pytest.mark.parametrize(
    ("name", "groups", "crossings"),
    [
        ("two_level", ((0, 1), (2, 3)), 1.0),
        ("two_level", ((0, 2), (1, 3)), 1.0),
        ("ring", ((0, 1), (2, 3)), 1.5),
        ("ring", ((0, 2), (1, 3)), 3.0),
        ("direct", ((0, 1), (2, 3)), 2.0),
    ],
)
def test_how_often_the_bucket_crosses_the_link_of_each_of_two_nodes(name, groups, crossings):
    forecast = simulate(SCHEDULES[name], part_of(4, groups=groups), SLOW_NETWORK)
    assert forecast.left_bytes == (crossings * BYTES, crossings * BYTES)
    assert forecast.entered_bytes == forecast.left_bytes


def test_the_ranks_of_a_node_share_its_link():
    """Two lanes, each a part of a quarter bucket there and its result: four messages one after the other."""
    part = part_of(4, groups=((0, 1), (2, 3)))
    assert simulate(SCHEDULES["two_level"], part, SLOW_NETWORK).seconds == exactly(4 * ALPHA + BETA * BYTES)


def test_a_link_serves_the_ranks_of_its_node_in_turn():
    """Ranks 0 and 1 send two messages each over their node's link, to rank 2 and to rank 3."""

    def steps(part: RankPart) -> Iterator[Step]:
        for first in (0, part.length // 2):
            span = (first, first + part.length // 2)
            yield Send(part.rank + 2, 0, span, 0) if part.rank < 2 else Receive(part.rank - 2, 0, span, 0)

    pairs = Schedule("pairs", never, steps, lambda _: 0)
    forecast = simulate(pairs, part_of(4, groups=((0, 1), (2, 3))), SLOW_NETWORK)
    message = ALPHA + BETA * BYTES / 2
    assert forecast.finish_s == tuple(exactly(n * message) for n in (3, 4, 3, 4))


@pytest.mark.parametrize("half", [push, pull])
def test_a_stars_root_receives_and_sends_one_message_at_a_time(half):
    star = Schedule("star", never, lambda part: half(part, 0), lambda _: 0)
    finish = simulate(star, part_of(5), FREE_ADDS).finish_s
    assert sorted(finish[1:]) == [exactly(n * (ALPHA + BETA * BYTES)) for n in (1, 2, 3, 4)]
    assert finish[0] == max(finish)


def test_messages_inside_a_node_use_no_link():
    forecast = simulate(SCHEDULES["direct"], part_of(4), UNIFORM)
    assert (forecast.left_bytes, forecast.entered_bytes) == ((0,), (0,))


def test_a_schedule_whose_ranks_wait_for_ever_is_named():
    def steps(part: RankPart) -> Iterator[Step]:
        yield Receive((part.rank + 1) % part.world, 0, (0, part.length), 0)

    with pytest.raises(ValueError, match=r"deaf: ranks \[0, 1, 2\] wait for ever"):
        simulate(Schedule("deaf", never, steps, lambda _: 0), part_of(3), UNIFORM)


def test_messages_inside_a_crowded_node_begin_one_after_the_other():
    """Everyone to everyone among three: six messages, each of which holds up those behind it."""
    crowded = replace(UNIFORM, crowded=LinkCost(2 * ALPHA, 0.0))
    forecast = simulate(SCHEDULES["gather"], part_of(3, 1), crowded)
    assert forecast.seconds == pytest.approx(5 * 2 * ALPHA + ALPHA + (BETA + GAMMA) * 4)
    apart = simulate(SCHEDULES["gather"], part_of(3, 1, groups=((0,), (1,), (2,))), crowded)
    assert (
        apart.seconds
        == simulate(SCHEDULES["gather"], part_of(3, 1, groups=((0,), (1,), (2,))), UNIFORM).seconds
    )
