"""Schedules that the forecasts call near are tried: all members take the one that was soonest, and it costs little."""

from dataclasses import replace
from math import inf

import pytest
import torch
from test_comm_choice import LAN
from test_comm_simulator import part_of

from ringleader.comm.choosing.choice import choose
from ringleader.comm.choosing.trial import BUDGET_S, MOST, TURNS, near, try_out
from ringleader.comm.schedules import SCHEDULES
from ringleader.comm.simulator import ClusterCosts

PART = part_of(4, 1 << 18)


class Cluster:
    """Sums take as long as one says; those that are `late` so many times as long from one time until another."""

    def __init__(self, **seconds: float) -> None:
        self.now = 0.0
        self.sums: list[str] = []
        self.late: dict[str, float] = {}
        self.late_from = self.late_until = 0.0
        self._seconds = seconds

    def way(self, _):
        return self.sum

    def sum(self, name: str) -> None:
        self.sums.append(name)
        late = self.late.get(name, 1.0) if self.late_from <= self.now < self.late_until else 1.0
        self.now += late * self._seconds.get(name, 1e-3)

    def tried(
        self, *parts, costs: ClusterCosts = LAN, tell=torch.clone, canonical: bool = False
    ) -> ClusterCosts:
        return try_out(
            parts,
            costs,
            canonical=canonical,
            element_bytes=4,
            way=self.way,
            tell=tell,
            clock=lambda: self.now,
        )


def names(canonical: bool = False) -> list[str]:
    return near(PART, LAN, canonical=canonical, element_bytes=4)


@pytest.mark.parametrize("canonical", [False, True])
def test_the_soonest_is_chosen_whatever_the_forecast_says(canonical):
    assert len(names(canonical)) > 1
    for name in names(canonical):
        costs = Cluster(**{name: 5e-4}).tried(PART, canonical=canonical)
        assert choose(PART, costs, canonical=canonical) == name
        assert choose(replace(PART, rank=3, length=PART.length - 1), costs, canonical=canonical) == name


def test_what_was_not_tried_is_chosen_by_its_forecast():
    costs = Cluster(**{names()[-1]: 5e-4}).tried(PART)
    for other in (part_of(4, 1), part_of(3, PART.length)):
        assert choose(other, costs, canonical=False) == choose(other, LAN, canonical=False)
    assert choose(PART, costs, canonical=True) == choose(PART, LAN, canonical=True)


def test_of_schedules_that_take_the_same_steps_one_is_tried():
    two = part_of(2, 1 << 18)
    steps = [
        tuple(tuple(SCHEDULES[name].steps(replace(two, rank=r))) for r in range(2))
        for name in near(two, LAN, canonical=False, element_bytes=4)
    ]
    assert len(set(steps)) == len(steps) <= MOST


def test_what_the_others_measured_counts_as_much_as_what_this_member_did():
    first, second, *_ = names()
    alone = Cluster(**{first: 5e-4}).tried(PART)
    assert choose(PART, alone, canonical=False) == first

    def with_another(values):
        return values + torch.tensor(
            [9.0 if n == first else 0.0 for n in names()] + [1.0], dtype=torch.float64
        )

    costs = Cluster(**{first: 5e-4, second: 6e-4}).tried(PART, tell=with_another)
    assert choose(PART, costs, canonical=False) == second


def test_what_disturbs_the_soonest_for_some_turns_does_not_decide():
    soonest, *others = names()
    cluster = Cluster(**{soonest: 1e-3}, **dict.fromkeys(others, 1.2e-3))
    cluster.late, cluster.late_until = {soonest: 1.5}, BUDGET_S / 4
    assert choose(PART, cluster.tried(PART), canonical=False) == soonest


def test_who_takes_more_than_twice_as_long_is_left_out_and_the_others_have_its_time():
    soonest, second, *slower = names()
    cluster = Cluster(**{soonest: 1e-3, second: 1.9e-3}, **dict.fromkeys(slower, 2.1e-3))
    cluster.tried(PART)
    assert {cluster.sums.count(name) for name in slower} == {1 + TURNS}
    assert cluster.sums.count(second) > 5 * TURNS
    assert cluster.now > 0.9 * BUDGET_S


def test_a_machine_that_is_busy_once_some_are_left_out_decides_between_the_others():
    soonest, second, *slower = names()
    cluster = Cluster(**{soonest: 1e-3, second: 1.5e-3}, **dict.fromkeys(slower, 2.1e-3))
    cluster.late = dict.fromkeys(names(), 9.0)
    cluster.late_from, cluster.late_until = BUDGET_S / 4, inf
    assert choose(PART, cluster.tried(PART), canonical=False) == soonest
    assert {cluster.sums.count(name) for name in slower} == {1 + TURNS}


@pytest.mark.parametrize("seconds", [1e-5, 1e-3, 3e-2, 1.0])
def test_a_trial_costs_the_budget_and_each_schedule_twice_at_most(seconds):
    cluster = Cluster(**dict.fromkeys(names(), seconds))
    cluster.tried(PART, part_of(4, 1 << 10), part_of(4, (1 << 10) - 1))
    assert cluster.now <= BUDGET_S + 2 * (MOST + 1) * seconds + 1e-9
