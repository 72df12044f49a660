"""What a loop's body leaves to a hook of an optimizer, or to the function of a schedule, is named on servers, where
these run and no body does; hooks that go by anything else keep the bits of one process there."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import left_values
import pytest
import torch
from cast import Cast
from faults import FaultPlan
from programs import EPOCHS, norm_free, rows
from test_carried import SPEC, in_mode
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import LambdaLR

from ringleader.train import Session
from ringleader.train.local import run_local

SERVERS = in_mode({"inter_node": "parameter_server", "intra_node": "parameter_server", "servers": 1})
Left = Callable[[float], None]


def scale(optimizer: torch.optim.Optimizer, factor: float) -> None:
    for group in optimizer.param_groups:
        for weight in group["params"]:
            if weight.grad is not None:
                weight.grad.mul_(factor)


class Meter:
    def __init__(self) -> None:
        self.sum, self.count = 0.0, 0

    @property
    def mean(self) -> float:
        return self.sum / max(1, self.count)

    def update(self, value: float) -> None:
        self.sum, self.count = self.sum + value, self.count + 1

    def factor(self) -> float:
        return 1.0 / (1.0 + self.mean)

    def slow_down(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        scale(optimizer, self.factor())


class Shown(nn.Module):
    """Leaves what it has seen, for people and for the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(6, 8), nn.Linear(8, 3)
        self.seen: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        self.seen = self.body(x).tanh()
        return self.head(self.seen)


def train(session: Session, net: nn.Module, left: Left, behind: Left) -> None:
    for _ in range(EPOCHS):
        for x, y in session.batches(rows()):
            loss = F.cross_entropy(net(x), y)
            left(loss.item())
            session.step(loss)
            behind(loss.item())


def nothing(loss: float) -> None:
    pass


def begun(session: Session, net: nn.Module) -> tuple[nn.Module, torch.optim.Optimizer]:
    net = session.model(net)
    return net, torch.optim.SGD(net.parameters(), lr=0.05)


def left_in_a_namespace(session: Session) -> None:
    net, optimizer = begun(session, norm_free())
    last = SimpleNamespace(loss=1.0)
    optimizer.register_step_pre_hook(lambda optimizer, *_: scale(optimizer, min(1.0, last.loss)))
    session.optimizer(optimizer)
    for _ in range(EPOCHS):
        for x, y in session.batches(rows()):
            loss = F.cross_entropy(net(x), y)
            last.loss = loss.item()
            session.step(loss)


def left_behind_the_step(session: Session) -> None:
    net, optimizer = begun(session, norm_free())
    losses = [1.0]
    optimizer.register_step_post_hook(lambda optimizer, *_: scale(optimizer, losses[-1]))
    session.optimizer(optimizer)
    train(session, net, nothing, losses.append)


def left_in_a_meter(session: Session) -> None:
    net, optimizer = begun(session, norm_free())
    meter = Meter()
    optimizer.register_step_pre_hook(meter.slow_down)
    session.optimizer(optimizer)
    train(session, net, meter.update, nothing)


class Clip:
    def __call__(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        scale(optimizer, min(1.0, left_values.LEFT.loss))


def left_in_another_file(session: Session) -> None:
    net, optimizer = begun(session, norm_free())
    left_values.LEFT.loss = 1.0
    optimizer.register_step_pre_hook(lambda optimizer, *_: scale(optimizer, min(1.0, left_values.LEFT.loss)))
    session.optimizer(optimizer)
    train(session, net, left_values.record, nothing)


def left_to_an_object_by_another_file(session: Session) -> None:
    net, optimizer = begun(session, norm_free())
    left_values.LEFT.loss = 1.0
    optimizer.register_step_pre_hook(Clip())
    session.optimizer(optimizer)
    train(session, net, left_values.record, nothing)


def left_to_a_schedule(session: Session) -> None:
    net, optimizer = begun(session, norm_free())
    session.optimizer(optimizer)
    meter = Meter()
    session.scheduler(LambdaLR(optimizer, lambda step: 1.0 / (1.0 + meter.mean)))
    train(session, net, meter.update, nothing)


def hook_of_constants(session: Session) -> None:
    net, optimizer = begun(session, norm_free())
    factors = [0.5, 0.25]
    optimizer.register_step_pre_hook(lambda optimizer, *_: scale(optimizer, factors[session.global_step % 2]))
    session.optimizer(optimizer)
    train(session, net, nothing, nothing)


def hook_of_the_last_loss(session: Session) -> None:
    net, optimizer = begun(session, norm_free())

    def slow_down(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        scale(optimizer, min(1.0, 1.0 if session.loss is None else session.loss))

    optimizer.register_step_pre_hook(slow_down)
    session.optimizer(optimizer)
    train(session, net, nothing, nothing)


def hook_of_the_weights(session: Session) -> None:
    net, optimizer = begun(session, Shown())

    @torch.no_grad()
    def clamp(*_: Any) -> None:
        for weight in net.parameters():
            weight.clamp_(-0.3, 0.3)

    optimizer.register_step_post_hook(clamp)
    session.optimizer(optimizer)
    train(session, net, nothing, nothing)


def hook_that_prints(session: Session) -> None:
    net, optimizer = begun(session, norm_free())
    shown = SimpleNamespace(newest=0.0)

    def show(*_: Any) -> None:
        print(shown.newest)

    optimizer.register_step_post_hook(show)
    session.optimizer(optimizer)
    for _ in range(EPOCHS):
        for x, y in session.batches(rows()):
            loss = F.cross_entropy(net(x), y)
            shown.newest = loss.item()
            session.step(loss)


@pytest.mark.parametrize(
    ("program", "names"),
    [
        (left_in_a_namespace, {"last.loss"}),
        (left_behind_the_step, {"losses"}),
        (left_in_a_meter, {"meter.sum", "meter.count"}),
        (left_to_a_schedule, {"meter.sum", "meter.count"}),
        (left_in_another_file, {"LEFT.loss"}),
        (left_to_an_object_by_another_file, {"LEFT.loss"}),
    ],
)
def test_what_a_body_leaves_to_an_update_is_named_on_servers(
    program: Callable[[Session], None], names: set[str], tmp_path: Path
) -> None:
    play = Cast(SERVERS, program, FaultPlan(), artifacts=tmp_path).play()
    assert play.outcome == "succeeded", (play.reason, play.message)
    assert {data["variable"] for data in play.reported("program.differs")} & names
    assert not any(end.reproducible for end in play.finished.values())


@pytest.mark.parametrize(
    "program", [hook_of_constants, hook_of_the_last_loss, hook_of_the_weights, hook_that_prints]
)
def test_hooks_that_go_by_nothing_of_a_body_keep_the_bits_on_servers(
    program: Callable[[Session], None], tmp_path: Path
) -> None:
    alone, _ = run_local(SPEC, program, tmp_path / "alone")
    play = Cast(SERVERS, program, FaultPlan(), artifacts=tmp_path).play()
    assert play.outcome == "succeeded", (play.reason, play.message)
    assert play.reported("program.differs") == []
    assert {end.reproducible_why for end in play.finished.values()} == {""}
    assert play.digest == alone.digest
