"""torch's check that a schedule is stepped after its optimizer: it knows of no update that other processes make."""

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from cast import Cast
from faults import FaultPlan
from test_leaving import RING, SERVER, job, rows, worker
from torch import nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import StepLR

from ringleader.train import Session
from ringleader.train.local import run_local


def made(session: Session) -> tuple[nn.Module, StepLR]:
    net = session.model(nn.Linear(5, 3))
    optimizer = session.optimizer(torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9))
    return net, StepLR(optimizer, 1, gamma=0.9)


def train(session: Session) -> None:
    net, schedule = made(session)
    for _ in range(3):
        for x, y in session.batches(rows()):
            session.step(F.cross_entropy(net(x), y))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            schedule.step()


@pytest.mark.parametrize("sync", [RING, SERVER], ids=["ring", "server"])
def test_who_has_made_no_update_steps_a_schedule_without_a_warning(
    sync: dict[str, Any], tmp_path: Path
) -> None:
    """A joiner that runs lines again, and any worker where a server steps."""
    torch.set_num_threads(1)
    faults = FaultPlan().kill(worker(sync, 1), at_step=9)
    play = Cast(job(sync, workers={"min": 2, "max": 2}), train, faults, artifacts=tmp_path).play()
    assert (play.outcome, len(play.plans) > 1) == ("succeeded", True), (play.reason, play.message)


def test_a_schedule_that_is_stepped_before_any_update_is_still_warned_of(tmp_path: Path) -> None:
    def train(session: Session) -> None:
        net, schedule = made(session)
        session.evaluate(rows(), lambda batch: {"size": net(batch[0])[:, 0]})
        with pytest.warns(UserWarning, match=r"before `optimizer.step\(\)`"):
            schedule.step()
        for x, y in session.batches(rows()):
            session.step(F.cross_entropy(net(x), y))

    run_local(job(RING), train, tmp_path)
