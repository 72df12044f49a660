"""An average of the weights is committed state, with the bits of one made by hand in one process."""

from pathlib import Path
from typing import Any

import pytest
import torch
from faults import FaultPlan
from test_leaving import RING, job, made, rows, worker
from test_steps import MODES, hits, refused
from threaded_cast import ThreadedCast
from torch import nn
from torch.nn import functional as F
from undisturbed import undisturbed

from ringleader.train import Session

torch.set_num_threads(1)


def averaging(session: Session) -> None:
    net, data = made(session), rows()
    average = session.ema(net, 0.8)
    for _ in range(2):
        for x, y in session.batches(data):
            session.step(F.cross_entropy(net(x), y))
        session.evaluate(data, lambda batch: {"hit": (average(batch[0]).argmax(1) == batch[1]).float()})
    average.load_into(net)


def averaging_by_hand(session: Session) -> None:
    net, data = made(session), rows()
    averages = [parameter.detach().clone() for parameter in net.parameters()]

    def update() -> None:
        for mean, parameter in zip(averages, net.parameters(), strict=True):
            mean.lerp_(parameter.detach(), 1.0 - 0.8)

    session.on_commit(update)
    for _ in range(2):
        for x, y in session.batches(data):
            session.step(F.cross_entropy(net(x), y))
        with torch.no_grad():
            for mean, parameter in zip(averages, net.parameters(), strict=True):
                kept = parameter.clone()
                parameter.copy_(mean)
                mean.copy_(kept)
        hits(session, net, data)
        with torch.no_grad():
            for mean, parameter in zip(averages, net.parameters(), strict=True):
                kept = parameter.clone()
                parameter.copy_(mean)
                mean.copy_(kept)
    with torch.no_grad():
        for mean, parameter in zip(averages, net.parameters(), strict=True):
            parameter.copy_(mean)


@pytest.mark.parametrize("at", [0, 3, 5, 6, 9, 11])
@pytest.mark.parametrize("sync", MODES.values(), ids=MODES)
def test_an_average_of_weights_is_that_by_hand_in_one_process(
    sync: dict[str, Any], at: int, tmp_path: Path
) -> None:
    by_hand, told = undisturbed(job(sync), averaging_by_hand)
    faults = FaultPlan().kill(worker(sync, 1), at_step=at, phase="committed" if at == 5 else "forward")
    play = ThreadedCast(job(sync), averaging, faults, artifacts=tmp_path).play()
    assert play.outcome == "succeeded", (play.reason, play.message)
    assert play.digest == by_hand.digest
    assert play.values[-1][1]["hit"] == told.values[12]["hit"]


def test_an_average_of_an_unregistered_model_is_refused(tmp_path: Path) -> None:
    def train(session: Session) -> None:
        made(session)
        session.ema(nn.Linear(2, 2), 0.9)

    assert "session.ema got a model that is not registered" in refused(train, RING, tmp_path)


@pytest.mark.parametrize("decay", [1.0, -0.1, float("nan"), "0.9", None])
def test_a_decay_that_is_no_share_is_refused(decay: Any, tmp_path: Path) -> None:
    def train(session: Session) -> None:
        session.ema(made(session), decay)

    assert f"session.ema got decay={decay!r}" in refused(train, RING, tmp_path)
