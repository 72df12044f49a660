"""Attributes of modules that a score sets: training goes on as without it, whoever has computed the score."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from faults import FaultPlan
from test_leaving import RING, job, rows, worker
from test_steps import MODES, check
from threaded_cast import ThreadedCast
from torch import Tensor, nn
from torch.nn import functional as F

from ringleader.train import Session
from ringleader.train.local import run_local

torch.set_num_threads(1)
Score = dict[str, Tensor]


class Net(nn.Module):
    """A net with an activation, a temperature, a table by length, and features for people to look at."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.drop, self.last = nn.Linear(5, 8), nn.Dropout(0.0), nn.Linear(8, 3)
        self.act: Callable[[Tensor], Tensor] = torch.tanh
        self.temperature = 1.0
        self.table = torch.ones(1, 1)
        self.shown = torch.zeros(0)

    def soften(self) -> None:
        self.temperature = 2.0

    def scaled(self, x: Tensor) -> Tensor:
        if len(self.table) < len(x):
            self.table = torch.ones(len(x), 1)
        return x * self.table[: len(x)]

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.drop(self.act(self.first(self.scaled(x))))) / self.temperature


def made(session: Session) -> Net:
    net = session.model(Net())
    with torch.no_grad():  # threads share the default generator
        for parameter in net.parameters():
            parameter.copy_(torch.linspace(-0.5, 0.7, parameter.numel()).view_as(parameter))
    session.optimizer(torch.optim.SGD(net.parameters(), lr=0.05))
    return net


def by_function(net: Net, batch: Any) -> Score:
    net.act = torch.sigmoid
    return {"hit": net(batch[0])[:, 0]}


def behind_the_scores(net: Net, batch: Any) -> Score:
    """The next rows are scored as these."""
    hit = net(batch[0])[:, 0]
    net.act = torch.sigmoid
    return {"hit": hit}


def by_a_method(net: Net, batch: Any) -> Score:
    net.soften()
    return {"hit": net(batch[0])[:, 0]}


def by_a_name(net: Net, batch: Any) -> Score:
    setattr(net, "temperature", 3.0)  # noqa: B010 - a program may write it so
    return {"hit": net(batch[0])[:, 0]}


def of_a_layer(net: Net, batch: Any) -> Score:
    net.drop.p = 0.75
    return {"hit": net(batch[0])[:, 0]}


def by_a_layer(net: Net, batch: Any) -> Score:
    net.act = nn.ReLU()
    return {"hit": net(batch[0])[:, 0]}


def put_back_by_itself(net: Net, batch: Any) -> Score:
    net.act, act = torch.sigmoid, net.act
    hit = net(batch[0])[:, 0]
    net.act = act
    return {"hit": hit}


def shown_only(net: Net, batch: Any) -> Score:
    net.shown = net.first(batch[0])
    return {"hit": net(batch[0])[:, 0]}


def with_a_longer_table(net: Net, batch: Any) -> Score:
    return {"hit": net.scaled(batch[0])[:, 0]}


SETTING = {
    by_function: "act",
    behind_the_scores: "act",
    by_a_method: "temperature",
    by_a_name: "temperature",
    of_a_layer: "p",
    by_a_layer: "act",
}
QUIET = [put_back_by_itself, shown_only, with_a_longer_table]


def scoring(session: Session, score: Callable[[Net, Any], Score]) -> None:
    """Scores between steps and between loops; what they give is in the weights, too."""
    net, data = made(session), rows()
    means = []
    for _ in range(2):
        for step in session.steps(data):
            for x, y in step:
                session.step(F.cross_entropy(net(x), y))
            if session.global_step % 2 == 0:
                session.evaluate(data, partial(score, net))
        means.append(session.evaluate(data, partial(score, net))["hit"])
        assert (net.act, net.temperature, net.drop.p) == (torch.tanh, 1.0, 0.0)
    with torch.no_grad():
        net.last.bias += sum(means)


@pytest.mark.parametrize(
    ("score", "mode"),
    [(behind_the_scores, mode) for mode in MODES]
    + [(score, "servers") for score in SETTING if score is not behind_the_scores],
    ids=lambda each: getattr(each, "__name__", each),
)
def test_what_a_score_sets_in_a_module_is_put_back(
    score: Callable[[Net, Any], Score], mode: str, tmp_path: Path
) -> None:
    program, sync = partial(scoring, score=score), MODES[mode]
    faults = FaultPlan().kill(worker(sync, 1), at_step=8)
    check(ThreadedCast(job(sync), program, faults, artifacts=tmp_path).play(), program, sync)


def warned(score: Callable[[Net, Any], Score], place: Path) -> list[str]:
    _, recorded = run_local(job(RING), partial(scoring, score=score), place)
    return [data["message"] for kind, data in recorded.events if kind == "warning"]


@pytest.mark.parametrize("score", SETTING, ids=lambda score: score.__name__)
def test_it_is_warned_of_with_its_line(score: Callable[[Net, Any], Score], tmp_path: Path) -> None:
    (message,) = warned(score, tmp_path)
    kind = "Dropout" if score is of_a_layer else "Net"
    assert message.startswith(f"a score sets {kind}.{SETTING[score]} (test_scored_attributes.py:")


@pytest.mark.parametrize("score", QUIET, ids=lambda score: score.__name__)
def test_what_a_score_puts_back_or_training_does_not_read_is_left(
    score: Callable[[Net, Any], Score], tmp_path: Path
) -> None:
    assert warned(score, tmp_path) == []
