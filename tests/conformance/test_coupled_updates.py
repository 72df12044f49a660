"""An optimizer whose step goes by several parameters at once is named on servers that each have a part of them; others
keep the bits of one process there."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from cast import Cast
from faults import FaultPlan
from programs import EPOCHS, epoch, norm_free, rows, sgd
from test_carried import in_mode
from torch import nn
from torch.optim import Optimizer

from ringleader.train import Session
from ringleader.train.local import run_local

SERVERS = {"inter_node": "parameter_server", "intra_node": "parameter_server", "servers": 2}
Make = Callable[[Session, nn.Module], Optimizer]


class Clipping(torch.optim.SGD):
    """Clips the whole gradient itself."""

    def step(self, closure: Any = None) -> Any:
        nn.utils.clip_grad_norm_([p for group in self.param_groups for p in group["params"]], 0.3)
        return super().step(closure)


class Normalised(Optimizer):
    """Divides by the norm of the whole gradient, as a number."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.05})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        weights = [p for p in self.param_groups[0]["params"] if p.grad is not None]
        total = sum(p.grad.norm().item() ** 2 for p in weights) ** 0.5
        for weight in weights:
            weight.sub_(weight.grad, alpha=self.param_groups[0]["lr"] / (total + 1e-6))


class Trusting(Normalised):
    """Goes by the norms of each parameter by itself, as numbers."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for weight in self.param_groups[0]["params"]:
            if weight.grad is not None:
                mean = self.state[weight].setdefault("mean", torch.zeros_like(weight))
                mean.lerp_(weight.grad.data, 0.5)
                ratio = weight.data.norm().item() / (mean.norm().item() + 1e-6)
                weight.data.sub_(mean, alpha=0.05 * min(1.0, ratio))


def by_hooks(before: Callable[[nn.Module], Any], behind: Callable[[nn.Module], Any]) -> Make:
    def make(session: Session, net: nn.Module) -> Optimizer:
        optimizer = sgd(session, net)
        optimizer.register_step_pre_hook(lambda *_: before(net))
        optimizer.register_step_post_hook(lambda *_: behind(net))
        return optimizer

    return make


def nothing(net: nn.Module) -> None:
    pass


def clip(net: nn.Module) -> None:
    nn.utils.clip_grad_norm_(net.parameters(), 0.3)


@torch.no_grad()
def shrink(net: nn.Module) -> None:
    norm = torch.stack([p.norm() for p in net.parameters()]).norm()
    for weight in net.parameters():
        weight.mul_(torch.clamp(2.0 / norm, max=1.0))


@torch.no_grad()
def clamp(net: nn.Module) -> None:
    for weight in net.parameters():
        weight.clamp_(-0.3, 0.3)


def clamp_gradients(net: nn.Module) -> None:
    nn.utils.clip_grad_value_(net.parameters(), 0.05)


COUPLED: dict[str, Make] = {
    "clipping": lambda session, net: session.optimizer(Clipping(net.parameters(), lr=0.05, momentum=0.9)),
    "normalised": lambda session, net: session.optimizer(Normalised(net.parameters())),
    "clipped by a hook": by_hooks(clip, nothing),
    "shrunk by a hook": by_hooks(nothing, shrink),
}
APART: dict[str, Make] = {
    "trusting": lambda session, net: session.optimizer(Trusting(net.parameters())),
    "clamped by hooks": by_hooks(clamp_gradients, clamp),
}


class Program:
    def __init__(self, name: str, make: Callable[[], nn.Module] = norm_free) -> None:
        self.name = name
        self._make = make

    def __call__(self, session: Session) -> None:
        net = session.model(self._make())
        (COUPLED | APART)[self.name](session, net)
        for _ in range(EPOCHS):
            epoch(session, net, rows())


@pytest.mark.parametrize("name", COUPLED)
def test_what_goes_by_several_parameters_is_named_on_servers_with_parts(name: str, tmp_path: Path) -> None:
    play = Cast(in_mode(SERVERS), Program(name), FaultPlan(), artifacts=tmp_path).play()
    assert play.outcome == "succeeded", (play.reason, play.message)
    whys = {end.reproducible_why for end in play.finished.values()}
    assert all("goes by several parameters at once" in why for why in whys)
    one = Cast(
        in_mode(SERVERS | {"servers": 1}), Program(name), FaultPlan(), artifacts=tmp_path / "one"
    ).play()
    assert {end.reproducible_why for end in one.finished.values()} == {""}


@pytest.mark.parametrize("name", COUPLED)
def test_it_is_named_where_each_server_has_one_parameter(name: str, tmp_path: Path) -> None:
    """No step there shows it: a server has one gradient. Of a hook that scales it by its norm nobody knows."""
    program = Program(name, partial(nn.Linear, 6, 3))
    play = Cast(in_mode(SERVERS), program, FaultPlan(), artifacts=tmp_path).play()
    assert play.outcome == "succeeded", (play.reason, play.message)
    whys = {end.reproducible_why for end in play.finished.values()}
    assert all("goes by several parameters at once" in why for why in whys)


@pytest.mark.parametrize("make", [norm_free, partial(nn.Linear, 6, 3)], ids=["several", "one each"])
@pytest.mark.parametrize("name", APART)
def test_what_goes_by_each_parameter_keeps_the_bits_of_one_process(
    name: str, make: Callable[[], nn.Module], tmp_path: Path
) -> None:
    program = Program(name, make)
    alone, _ = run_local(in_mode(SERVERS), program, tmp_path / "alone")
    play = Cast(in_mode(SERVERS), program, FaultPlan(), artifacts=tmp_path).play()
    assert play.outcome == "succeeded", (play.reason, play.message)
    assert {end.reproducible_why for end in play.finished.values()} == {""}
    assert play.digest == alone.digest
