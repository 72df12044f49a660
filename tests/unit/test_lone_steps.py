"""Whether a parameter steps alone as it does with others, tried out on copies of an optimizer: of torch's own, of ones
that go by several parameters, and of ones that cannot be tried."""

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ringleader.train.state.optimizers.lone_steps import is_coupled

Make = Callable[[nn.Module], Optimizer]


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3, bias=False))


class Clipping(torch.optim.SGD):
    """Clips the whole gradient itself."""

    def step(self, closure: Any = None) -> Any:
        nn.utils.clip_grad_norm_([p for group in self.param_groups for p in group["params"]], 5.0)
        return super().step(closure)


class ClippingItsModel(torch.optim.AdamW):
    def __init__(self, net: nn.Module) -> None:
        super().__init__(net.parameters())
        self.net = net

    def step(self, closure: Any = None) -> Any:
        nn.utils.clip_grad_value_(self.net.parameters(), 1e4)
        nn.utils.clip_grad_norm_(self.net.parameters(), 0.1)
        return super().step(closure)


class ByGroup(Optimizer):
    """Divides by the largest gradient of each group."""

    def __init__(self, groups: Any) -> None:
        super().__init__(groups, {"lr": 0.05})

    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            given = [p for p in group["params"] if p.grad is not None]
            top = max((float(p.grad.abs().max()) for p in given), default=0.0)
            for p in given:
                p.sub_(p.grad, alpha=group["lr"] / (top + 1e-8))


class Counting(ByGroup):
    """Goes by its steps, and by each gradient alone."""

    def __init__(self, groups: Any) -> None:
        super().__init__(groups)
        self.steps = 0
        self.means: dict[Tensor, Tensor] = {}

    def step(self, closure: Any = None) -> None:
        self.steps += 1
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    mean = self.means.setdefault(p, torch.zeros_like(p))
                    mean.lerp_(p.grad, 1 / self.steps)
                    p.sub_(mean / (mean.norm() + 1e-8), alpha=group["lr"])


class Looking(Optimizer):
    """Another optimizer's steps, from time to time averaged with former weights."""

    def __init__(self, inner: Optimizer) -> None:
        self.inner = inner
        self.slow = [p.detach().clone() for group in inner.param_groups for p in group["params"]]
        super().__init__(inner.param_groups, dict(inner.defaults))
        self.param_groups = inner.param_groups

    def step(self, closure: Any = None) -> None:
        self.inner.step()
        params = [p for group in self.param_groups for p in group["params"]]
        for p, slow in zip(params, self.slow, strict=True):
            p.copy_(slow.lerp_(p, 0.5))


class Noisy(ByGroup):
    def step(self, closure: Any = None) -> None:
        random.random(), np.random.rand()
        for p in self.param_groups[0]["params"]:
            if p.grad is not None:
                p.sub_(p.grad + torch.randn(p.shape), alpha=0.1)


class Asking(ByGroup):
    """Cannot step without a closure."""

    def step(self, closure: Any = None) -> None:
        closure()


class Hoarding(Clipping):
    """Has more in an attribute than is copied."""

    def __init__(self, groups: Any) -> None:
        super().__init__(groups, lr=0.1)
        self.history = torch.zeros(1 << 20)


def groups_of(net: nn.Module) -> list[dict[str, Any]]:
    weights = [p for p in net.parameters() if p.ndim > 1]
    return [{"params": weights}, {"params": [p for p in net.parameters() if p.ndim == 1], "lr": 0.0}]


COUPLED: dict[str, Make] = {
    "clipping": lambda net: Clipping(net.parameters(), lr=0.1, momentum=0.9),
    "clipping with a rate of zero": lambda net: Clipping(net.parameters(), lr=0.0),
    "clipping its model": ClippingItsModel,
    "by group": lambda net: ByGroup(groups_of(net)),
    "around one that clips": lambda net: Looking(Clipping(net.parameters(), lr=0.1)),
}
APART: dict[str, Make] = {
    "counting": lambda net: Counting(groups_of(net)),
    "around sgd": lambda net: Looking(torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)),
    "a single parameter in each group": lambda net: ByGroup([{"params": [p]} for p in net.parameters()]),
    "noisy": lambda net: Noisy(net.parameters()),
    "asking": lambda net: Asking(net.parameters()),
    "hoarding": lambda net: Hoarding(net.parameters()),
}


def own_of_torch() -> list[type[Optimizer]]:
    names = ("SGD", "Adam", "AdamW", "NAdam", "Adagrad", "Adafactor", "Rprop", "SparseAdam", "LBFGS")
    return [type(f"Own{name}", (getattr(torch.optim, name),), {}) for name in names]


@pytest.mark.parametrize("name", COUPLED)
def test_a_step_that_goes_by_several_parameters_is_coupled(name: str) -> None:
    assert is_coupled(COUPLED[name](network()))


@pytest.mark.parametrize("name", APART)
def test_what_steps_alone_or_cannot_be_tried_is_not(name: str) -> None:
    assert not is_coupled(APART[name](network()))


@pytest.mark.parametrize("kind", own_of_torch(), ids=lambda kind: kind.__name__)
def test_a_class_of_the_program_that_steps_as_torch_does_is_not(kind: Any) -> None:
    assert not is_coupled(kind(network().parameters()))


@pytest.mark.parametrize("make", [*COUPLED.values(), *APART.values()], ids=[*COUPLED, *APART])
def test_nothing_of_the_program_changes(make: Make) -> None:
    net = network()
    optimizer = make(net)
    before = [p.detach().clone() for p in net.parameters()]
    torch.manual_seed(3), random.seed(3), np.random.seed(3)
    drawn = torch.rand(1), random.random(), np.random.rand()
    torch.manual_seed(3), random.seed(3), np.random.seed(3)
    is_coupled(optimizer)
    assert drawn == (torch.rand(1), random.random(), np.random.rand())
    assert all(map(torch.equal, before, net.parameters()))
    assert all(p.grad is None for p in net.parameters())
    assert (dict(optimizer.state), getattr(optimizer, "steps", 0)) == ({}, 0)
