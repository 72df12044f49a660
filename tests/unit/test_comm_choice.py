"""The choice of a schedule by simulated time."""

from dataclasses import replace

import pytest
from test_comm_simulator import part_of

from ringleader.comm.choosing.choice import DOUBT, HOPELESS, choose, forecasts
from ringleader.comm.schedules import SCHEDULES
from ringleader.comm.simulator import ClusterCosts, LinkCost, simulate

LAN = ClusterCosts(inside=LinkCost(2e-5, 2e-10), between=LinkCost(1e-4, 8e-9), add_s_per_byte=1e-10)
"""Shared memory inside, 1 Gbit/s between."""


@pytest.mark.parametrize("world", [2, 3, 4, 7, 16])
@pytest.mark.parametrize("length", [1, 256, 1 << 16, 1 << 23])
def test_the_choice_has_about_the_least_time_and_of_several_the_fewest_messages(world, length):
    part = part_of(world, length)
    found = forecasts(part, LAN, canonical=False)
    near = [n for n, f in found.items() if f.seconds <= DOUBT * min(g.seconds for g in found.values())]
    few = min(found[name].messages for name in near)
    tied = [(found[name].seconds, name) for name in near if found[name].messages == few]
    assert choose(part, LAN, canonical=False) == min(tied)[1]


@pytest.mark.parametrize("world", range(1, 17))
def test_only_canonical_schedules_are_chosen_where_the_bits_may_not_change(world):
    part = part_of(world, 1 << 18)
    admitted = forecasts(part, LAN, canonical=True)
    assert set(admitted) <= {name for name, s in SCHEDULES.items() if s.canonical(part)}
    assert choose(part, LAN, canonical=True) in admitted


@pytest.mark.parametrize("world", [6, 16, 24])
def test_only_hopeless_schedules_are_not_played_to_their_end(world):
    part = replace(part_of(world, 1 << 18), chunk=1 << 16)
    found = forecasts(part, LAN, canonical=False)
    every = {name: simulate(schedule, part, LAN).seconds for name, schedule in SCHEDULES.items()}
    assert {name: forecast.seconds for name, forecast in found.items()}.items() <= every.items()
    assert all(seconds > HOPELESS * min(every.values()) for n, seconds in every.items() if n not in found)
    assert world < 24 or len(found) < len(every)


@pytest.mark.parametrize("canonical", [True, False])
def test_all_ranks_choose_alike(canonical):
    part = part_of(6, 12345, groups=((0, 1, 2), (3, 4, 5)))
    choices = {choose(replace(part, rank=r), LAN, canonical=canonical) for r in range(6)}
    assert len(choices) == 1


def test_buckets_of_about_one_size_share_an_answer():
    """Up to the next power of two: the answer is that of the larger size."""
    for length, about in ((0, 1), (129, 256), (40_000, 1 << 16), ((1 << 22) + 1, 1 << 23)):
        assert choose(part_of(6, length), LAN, canonical=False) == choose(
            part_of(6, about), LAN, canonical=False
        )


def test_a_small_bucket_takes_few_hops_and_a_large_one_few_bytes():
    assert choose(part_of(16, 16), LAN, canonical=True) == "doubling"
    assert choose(part_of(16, 1 << 20), LAN, canonical=True) == "binary_blocks"
    assert choose(part_of(3, 1 << 23), LAN, canonical=True) == "direct"
    assert choose(part_of(13, 1 << 23), LAN, canonical=False) == "ring"


@pytest.mark.parametrize("groups", [((0, 1), (2, 3)), ((0, 2), (1, 3))])
def test_a_large_bucket_crosses_a_slow_network_in_two_levels(groups):
    assert choose(part_of(4, 1 << 23, groups=groups), LAN, canonical=False) == "two_level"


def test_free_bytes_and_free_adds_leave_the_hops_to_decide():
    only_hops = ClusterCosts(LinkCost(1.0, 0.0), LinkCost(1.0, 0.0), 0.0)
    assert choose(part_of(8, 1000), only_hops, canonical=True) == "doubling"
    assert forecasts(part_of(8, 1000), only_hops, canonical=False)["tree"].seconds == 6.0
