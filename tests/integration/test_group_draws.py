"""Optimizers that draw from the global stream, in processes: the bits of one process, or the result says why not."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from cast import Cast
from faults import FaultPlan
from integration.test_group_faults import TWO, job, register, run_epochs
from torch import nn

from ringleader.train import Session
from ringleader.train.local import run_local
from ringleader.train.state.update_randomness import IN_PARTS

STRICT = TWO | {"consistency": "ssp", "staleness": 0}


def noise(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.grad is not None:
                parameter.grad += 0.1 * torch.randn_like(parameter.grad)


def train_noisily(session: Session) -> None:
    run_epochs(session, register(session, noise))


def train_in_parts(session: Session, *, noisy: bool) -> None:
    net = session.model(nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.3), nn.Linear(8, 2)))
    optimizer = session.optimizer(torch.optim.SGD(net.parameters(), lr=0.1))
    if noisy:
        optimizer.register_step_pre_hook(noise)
    run_epochs(session, net)


@pytest.mark.parametrize("sync", ["ring", "parameter_server"])
def test_where_whoever_updates_updates_all_draws_cost_no_bit(sync: str, tmp_path: Path) -> None:
    torch.set_num_threads(1)
    alone = run_local(job(), train_noisily, tmp_path / "alone")[0]
    play = Cast(job(sync=sync), train_noisily, FaultPlan().kill("w1", at_step=4), tmp_path / "cast").play()
    assert play.outcome == "succeeded", play.message
    assert play.digest == alone.digest
    assert {(f.reproducible, f.reproducible_why) for f in play.finished.values()} == {(True, "")}


@pytest.mark.parametrize("sync", [TWO, STRICT], ids=["sync", "ssp"])
def test_draws_of_several_servers_are_said_by_every_member(sync: dict[str, Any], tmp_path: Path) -> None:
    for noisy, told in ((False, (True, "")), (True, (False, IN_PARTS))):
        play = Cast(job(sync=sync), partial(train_in_parts, noisy=noisy), artifacts=tmp_path).play()
        assert play.outcome == "succeeded", play.message
        assert {(f.reproducible, f.reproducible_why) for f in play.finished.values()} == {told}
