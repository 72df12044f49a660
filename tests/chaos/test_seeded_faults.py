"""Seeded random faults over ring and servers: every play ends with the bits of the undisturbed run."""

import os
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from cast import Cast
from faults import ANY, FaultPlan
from integration import test_token_ring_faults as tokens
from integration.test_group_faults import STEPS, TWO, check, job, train

from ringleader.train.local import run_local

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(3600)]
PLAYS = int(os.environ.get("CHAOS_PLAYS", "30"))
PHASES = ("forward", "exchange", "committed", "parked", "evaluate")
FIRST = ("w0", "w1", "w2")


def faults(draw: random.Random, *, circling: bool = False) -> FaultPlan:
    """One to three kills at any phase of any step, and perhaps a resize; of those who begin one is left, whoever else
    has not come yet.

    Args:
        circling: members are at different steps: a kill's is counted in times that the phase was reached.
    """
    plan, most = FaultPlan(), len(FIRST)
    struck: set[str] = set()
    for _ in range(draw.randint(1, 3)):
        victim, step, phase = f"w{draw.randint(0, 4)}", draw.randrange(STEPS), draw.choice(PHASES)
        at = {"at_step": ANY, "past": step} if circling else {"at_step": step}
        plan = plan.kill(victim, phase=phase, **at)
        struck.add(victim)
    if draw.random() < 0.5:
        most = draw.randint(1, 4)
        plan = plan.resize(at_step=draw.randrange(1, STEPS), workers_min=1, workers_max=most)
    return faults(draw, circling=circling) if struck.issuperset(FIRST[:most]) else plan


@pytest.mark.parametrize(
    "sync",
    ["ring", "parameter_server", TWO, "local_sgd"],
    ids=["ring", "one server", "two servers", "local SGD"],
)
def test_random_faults_cost_no_bit_no_step_and_no_row(sync: Any, tmp_path: Path) -> None:
    seed = int(os.environ.get("CHAOS_SEED", "0")) or random.SystemRandom().randrange(1 << 32)
    draw = random.Random(seed)
    torch.set_num_threads(1)
    undisturbed, _ = run_local(job(sync=sync), train, tmp_path)
    for number in range(PLAYS):
        plan = faults(draw)
        print(f"seed {seed} play {number}: {plan}")
        play = Cast(job(sync=sync), train, plan, tmp_path).play()
        check(play, undisturbed.digest)


def test_random_faults_cost_the_token_ring_no_step_and_no_row(tmp_path: Path) -> None:
    """Members of a token ring are at different steps: faults are counted in times that a phase was reached."""
    seed = int(os.environ.get("CHAOS_SEED", "0")) or random.SystemRandom().randrange(1 << 32)
    draw = random.Random(seed)
    for number in range(PLAYS):
        plan = faults(draw, circling=True)
        print(f"seed {seed} play {number}: {plan}")
        tokens.check(Cast(tokens.ring(), train, plan, tmp_path).play())
