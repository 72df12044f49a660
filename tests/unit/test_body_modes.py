"""Modes that a loop's body switches: in every turn they may be set; in one turn alone they are refused by line."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import ringleader
from ringleader.train.local import run_local

pytestmark = pytest.mark.usefixtures("elsewhere")
LOCAL = {"inter_node": "local_sgd", "intra_node": "local_sgd", "inner_steps": 1}
Line = Callable[[nn.Sequential, int], Any]


def rows() -> TensorDataset:
    x = torch.randn(32, 4, generator=torch.Generator().manual_seed(0))
    return TensorDataset(x, (x.sum(dim=1) > 0).long())


def spec(sync: Any) -> dict[str, Any]:
    return {
        "name": "modes",
        "entrypoint": "modes:train",
        "workers": {"max": 2},
        "batch": {"global_size": 8, "logical_shards": 2},
        "sync": sync,
    }


def play(
    line: Line, place: Path, sync: Any = "ring", behind: Line = lambda *_: None
) -> tuple[list[bool], list[str]]:
    """Two epochs; `line` before each `session.step`, `behind` after it.

    Returns:
        whether the BatchNorm was in training mode at each step, and the warnings.
    """
    trained: list[bool] = []

    def train(session: ringleader.Session) -> None:
        net = session.model(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)))
        session.optimizer(torch.optim.SGD(net.parameters(), lr=0.05))
        for _ in range(2):
            for x, y in session.batches(rows()):
                line(net, session.global_step)
                trained.append(net[1].training and net[0].weight.requires_grad)
                session.step(F.cross_entropy(net(x), y))
                behind(net, session.global_step)

    _, recorded = run_local(spec(sync), train, place)
    said = [
        data["message"] for kind, data in recorded.events if kind == "warning" and data["about"] == "modes"
    ]
    return trained, said


def turns(*steps: int) -> list[bool]:
    """Of two loops of four steps, each of two slices: all but those of these steps."""
    return [step not in steps for step in range(8) for _ in range(2)]


ONCE: dict[str, tuple[Line, str]] = {
    "evaluates": (
        lambda net, step: step == 2 and net[1].eval(),
        "the module '1' was put into evaluation mode",
    ),
    "freezes": (lambda net, step: step == 2 and net[0].requires_grad_(False), "was frozen in one turn"),
}


@pytest.mark.parametrize("sync", ["ring", LOCAL, "parameter_server"], ids=["ring", "local_sgd", "servers"])
@pytest.mark.parametrize("name", ONCE)
def test_a_mode_that_one_turn_switches_counts_there_alone_and_is_said(
    name: str, sync: Any, tmp_path: Path
) -> None:
    line, what = ONCE[name]
    trained, said = play(line, tmp_path, sync)
    assert trained == turns(2)
    (message,) = said
    assert what in message
    assert "test_body_modes.py:" in message


EACH: dict[str, tuple[Line, Line, list[bool]]] = {
    "evaluates in all": (lambda net, _: net[1].eval(), lambda *_: None, turns(*range(8))),
    "evaluates from a step on": (lambda net, step: step >= 6 and net[1].eval(), lambda *_: None, turns(6, 7)),
    "there and back": (lambda net, _: net.train(), lambda net, step: (net.eval(), net.train()), turns()),
    "nothing": (lambda *_: None, lambda *_: None, turns()),
}


@pytest.mark.parametrize("name", EACH)
def test_a_mode_that_every_turn_sets_is_as_it_says(name: str, tmp_path: Path) -> None:
    line, behind, expected = EACH[name]
    assert play(line, tmp_path, behind=behind) == (expected, [])


def test_lines_between_loops_switch_for_the_loops_behind_them(tmp_path: Path) -> None:
    def train(session: ringleader.Session) -> None:
        net = session.model(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)))
        session.optimizer(torch.optim.SGD(net.parameters(), lr=0.05))
        for number in range(2):
            net[1].train(number == 0)
            for x, y in session.batches(rows()):
                found.append(net[1].training)
                session.step(F.cross_entropy(net(x), y))

    found: list[bool] = []
    run_local(spec("ring"), train, tmp_path)
    assert found == [True] * 8 + [False] * 8
