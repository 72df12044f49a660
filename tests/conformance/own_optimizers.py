"""Optimizers as people write them down, which keep in attributes of their own what their steps go on from."""

import math
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, Optimizer

Weights = Iterable[nn.Parameter]


class Plain(Optimizer):
    """The parameters in one list."""

    def __init__(self, weights: Weights, rate: float = 0.05) -> None:
        super().__init__(weights, {"lr": rate})

    @property
    def weights(self) -> list[nn.Parameter]:
        return [p for group in self.param_groups for p in group["params"] if p.grad is not None]


class CountedNAdam(Plain):
    """A port of NAdam: the number of steps and the product of momenta are numbers."""

    def __init__(self, weights: Weights) -> None:
        super().__init__(weights, 0.02)
        self.t, self.mu_product = 0, 1.0

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        self.t += 1
        mu = 0.9 * (1 - 0.5 * 0.96 ** (self.t * 0.004))
        self.mu_product *= mu
        for p in self.weights:
            state = self.state[p]
            if not state:
                state["m"], state["v"] = torch.zeros_like(p), torch.zeros_like(p)
            state["m"].lerp_(p.grad, 0.1)
            state["v"].mul_(0.99).addcmul_(p.grad, p.grad, value=0.01)
            root = (state["v"] / (1 - 0.99**self.t)).sqrt_().add_(1e-8)
            p.addcdiv_(state["m"], root, value=-self.param_groups[0]["lr"] / (1 - self.mu_product))


class CountedRAdam(CountedNAdam):
    """Counts on the class, in a method; the table of what was computed is an attribute, as in the first RAdam."""

    step_number = 0

    def __init__(self, weights: Weights) -> None:
        super().__init__(weights)
        self.buffer: list[list[Any]] = [[None, None] for _ in range(4)]

    def count(self) -> float:
        self.step_number += 1
        entry = self.buffer[self.step_number % 4]
        if entry[0] != self.step_number:
            entry[:] = [self.step_number, math.sqrt(1 - 0.9**self.step_number)]
        return float(entry[1])

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for p in self.weights:
            p.sub_(p.grad, alpha=self.param_groups[0]["lr"] * self.count())


class WarmedUp(SGD):
    """Sets its own rate, by a count that its own `state_dict` forgets."""

    _step_count = 0

    def __init__(self, weights: Weights) -> None:
        super().__init__(weights, lr=0.1, momentum=0.9)
        self.scale = 0.0

    def step(self, closure: Any = None) -> Any:
        self._step_count += 1
        self.scale = min(1.0, self._step_count / 8)
        for p in (p for group in self.param_groups for p in group["params"] if p.grad is not None):
            p.grad = p.grad * self.scale
        return super().step(closure)

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"scale": self.scale}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.scale = state_dict["scale"]
        super().load_state_dict({key: state_dict[key] for key in ("state", "param_groups")})


class Prodigious(Plain):
    """Prodigy and D-adaptation in small: the distance is a number, the start is a list."""

    def __init__(self, weights: Weights) -> None:
        super().__init__(weights, 1.0)
        self.d, self.numerator = 1e-2, 0.0
        self.starts: list[Tensor] | None = None
        self.sums: dict[int, Tensor] = {}

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        if self.starts is None:
            self.starts = [p.detach().clone() for p in self.weights]
        for number, (p, start) in enumerate(zip(self.weights, self.starts, strict=True)):
            total = self.sums.setdefault(number, torch.zeros_like(p))
            total.add_(p.grad, alpha=self.d)
            self.numerator += self.d * float((p.grad * (start - p)).sum())
        below = sum(float(total.abs().sum()) for total in self.sums.values())
        self.d = max(self.d, min(self.d * 1.5, 50 * self.numerator / (below + 1e-8)))
        for p in self.weights:
            p.sub_(p.grad, alpha=self.d)


class LookaheadCounting(Optimizer):
    """Around Adam, which has its own state; every third step the slow weights move."""

    def __init__(self, weights: Weights) -> None:
        inner = Adam(weights, lr=0.02)
        super().__init__(inner.param_groups, inner.defaults)
        self.inner, self.k, self.counter = inner, 3, 0
        self.slow: dict[nn.Parameter, Tensor] = {}

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        self.inner.step()
        self.counter = (self.counter + 1) % self.k
        for group in self.param_groups:
            for p in group["params"]:
                if p not in self.slow:
                    self.slow[p] = p.detach().clone()
                if self.counter == 0:
                    self.slow[p].lerp_(p, 0.5)
                    p.copy_(self.slow[p])


class Averaging(Optimizer):
    """SWA: the mean of the weights so far pulls them."""

    def __init__(self, weights: Weights) -> None:
        self.base = SGD(weights, lr=0.05, momentum=0.9)
        self.averaged, self.means = 0, []  # type: ignore[var-annotated]
        super().__init__(self.base.param_groups, {})
        self.state = self.base.state

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        self.base.step()
        weights = self.base.param_groups[0]["params"]
        self.averaged += 1
        if not self.means:
            self.means = [p.detach().clone() for p in weights]
        for mean, p in zip(self.means, weights, strict=True):
            mean.add_((p - mean) / self.averaged)
            p.lerp_(mean, 0.05)


class Centralised(Plain):
    """Gradients less a running mean, in NumPy; the last ones in a window."""

    def __init__(self, weights: Weights) -> None:
        super().__init__(weights, 0.1)
        self.mean = np.zeros(4, np.float32)
        self.window: deque[float] = deque(maxlen=3)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        now = np.array([float(p.grad.mean()) for p in self.weights][:4], np.float32)
        self.mean = 0.9 * self.mean + 0.1 * np.resize(now, 4)
        self.window.append(float(np.abs(self.mean).sum()))
        for number, p in enumerate(self.weights):
            p.sub_(p.grad - float(self.mean[number % 4]), alpha=0.1 / (1 + sum(self.window)))


class Scaled(Plain):
    """A loss scale that grows every fourth step, and a dict of what is known."""

    def __init__(self, weights: Weights) -> None:
        super().__init__(weights)
        self.loss_scale = 8.0
        self.stats = {"good": 0, "norms": {"newest": 0.0}}
        self.mean_square = np.zeros((2, 3)).reshape(3, 2)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        self.stats["good"] += 1  # type: ignore[operator]
        if self.stats["good"] == 4:
            self.loss_scale, self.stats["good"] = self.loss_scale * 2, 0
        for p in self.weights:
            p.sub_(p.grad, alpha=self.param_groups[0]["lr"] * 8 / self.loss_scale)
        self.mean_square += self.loss_scale
        self.weights[0].sub_(float(self.mean_square.mean()) * 1e-5)


class ScheduleFree(Plain):
    """Schedule-free SGD: the other two sequences of weights are lists."""

    def __init__(self, weights: Weights) -> None:
        super().__init__(weights, 0.1)
        self.z = [p.detach().clone() for p in self.param_groups[0]["params"]]
        self.x = [p.detach().clone() for p in self.param_groups[0]["params"]]
        self.weight_sum = torch.zeros(())
        self.k = 0

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        self.k += 1
        weight = (self.k / 10) ** 2
        self.weight_sum = self.weight_sum + weight
        for p, z, x in zip(self.param_groups[0]["params"], self.z, self.x, strict=True):
            z.sub_(p.grad, alpha=0.1)
            x.lerp_(z, float(weight / self.weight_sum))
            p.copy_(0.1 * z + 0.9 * x)


class Heavy(Plain):
    """As it is taught: a momentum for each weight, in a list."""

    def __init__(self, weights: Weights) -> None:
        super().__init__(weights)
        self.momenta = [torch.zeros_like(p) for p in self.param_groups[0]["params"]]

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for momentum, p in zip(self.momenta, self.param_groups[0]["params"], strict=True):
            momentum.mul_(0.9).add_(p.grad)
            p.sub_(momentum, alpha=0.05)


class Once(Plain):
    """Its first step is a short one."""

    def __init__(self, weights: Weights) -> None:
        super().__init__(weights)
        self.warm = 4.0

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for p in self.weights:
            p.sub_(p.grad, alpha=0.1 / getattr(self, "warm", 1.0))
        if hasattr(self, "warm"):
            del self.warm


class Returning(Plain):
    """Goes back, every fourth step, by gradients that it keeps meanwhile."""

    wait: int
    gradients: list[Tensor]

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for p in self.weights:
            p.sub_(p.grad, alpha=0.1)
        if not hasattr(self, "wait"):
            self.wait, self.gradients = 2, [p.grad.clone() for p in self.weights]
        elif self.wait:
            self.wait -= 1
        else:
            for p, gradient in zip(self.weights, self.gradients, strict=True):
                p.add_(gradient, alpha=0.03)
            del self.wait, self.gradients


class WithHistory(Plain):
    """What it keeps is for plots."""

    def __init__(self, weights: Weights) -> None:
        super().__init__(weights)
        self.history: list[float] = []
        self.shown = {"norm": 0.0}
        self.calls = 0

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        self.calls += 1
        for p in self.weights:
            p.sub_(p.grad, alpha=0.05)
        self.history.append(float(self.weights[0].norm()))
        self.shown["norm"] = float(self.weights[0].norm())

    def plot(self) -> list[float]:
        return self.history[-10:]


class WithCache(Plain):
    """Lists of weights by shape, made when they are missing."""

    def __init__(self, weights: Weights) -> None:
        super().__init__(weights)
        self.by_shape: dict[int, list[nn.Parameter]] | None = None
        self.ready = False

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        if self.by_shape is None:
            self.by_shape = {}
            for p in self.param_groups[0]["params"]:
                self.by_shape.setdefault(p.dim(), []).append(p)
        if not self.ready:
            self.ready = True
        for weights in self.by_shape.values():
            for p in weights:
                p.sub_(p.grad, alpha=0.05 / p.dim())


CARRYING: dict[str, Callable[[Weights], Optimizer]] = {
    kind.__name__: kind
    for kind in (
        CountedNAdam,
        CountedRAdam,
        WarmedUp,
        Prodigious,
        LookaheadCounting,
        Averaging,
        Centralised,
        Scaled,
        ScheduleFree,
        Heavy,
        Once,
        Returning,
    )
}
HARMLESS: dict[str, Callable[[Weights], Optimizer]] = {
    kind.__name__: kind for kind in (WithHistory, WithCache)
}
