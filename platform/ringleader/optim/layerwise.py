"""The common part of LARS and LAMB: groups of parameters that are checked, and layers that are updated one by one."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from math import inf, isfinite
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer


class LayerwiseOptimizer(Optimizer, ABC):
    """An optimizer that scales each layer's update by norms of that layer. A layer is one parameter.

    The option `adapt` of a group turns the scaling off for its parameters: `layer_groups` does so for biases and norms.
    """

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group of parameters with options of its own. Raises ValueError: an option is out of its bounds."""
        self._check({**self.defaults, **param_group})
        super().add_param_group(param_group)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update all parameters that have a gradient.

        Raises:
            RuntimeError: a gradient is sparse.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            layers = [parameter for parameter in group["params"] if parameter.grad is not None]
            if any(layer.grad.is_sparse for layer in layers):
                raise RuntimeError(f"{type(self).__name__} does not support sparse gradients")
            for some in _at_once(layers):
                self._update(some, group)
        return loss

    @abstractmethod
    def _update(self, layers: Sequence[Tensor], group: dict[str, Any]) -> None:
        """Update layers of a group, which all have gradients."""

    def _check(self, group: dict[str, Any]) -> None:
        """Check a group's options. Raises ValueError."""
        self._bound("lr", float(group["lr"]), above=0.0)
        self._bound("weight_decay", group["weight_decay"], least=0.0)
        self._bound("eps", group["eps"], least=0.0)

    def _bound(
        self, name: str, value: float, *, above: float = -inf, least: float = -inf, below: float = inf
    ) -> None:
        """Raise ValueError unless an option is finite and within its bounds."""
        if isfinite(value) and above < value < below and value >= least:
            return
        bounds = {"above": above, "at least": least, "below": below}
        allowed = " and ".join(f"{word} {bound:g}" for word, bound in bounds.items() if isfinite(bound))
        raise ValueError(f"{type(self).__name__} got {name}={value:g}; allowed: a number {allowed}.")


def layer_groups(model: nn.Module, *, weight_decay: float = 0.0) -> list[dict[str, Any]]:
    """Two groups for LARS or LAMB: matrices and kernels, and tensors of less than two dimensions (biases, weights of
    norms), which are neither scaled layer by layer nor decayed, as is common with both.

    Args:
        weight_decay: of the first group.

    Returns:
        the groups that have parameters, in the order of the model.
    """
    parameters = list(model.parameters())
    layers = [parameter for parameter in parameters if parameter.dim() > 1]
    others = [parameter for parameter in parameters if parameter.dim() <= 1]
    groups: list[dict[str, Any]] = [
        {"params": layers, "weight_decay": weight_decay},
        {"params": others, "weight_decay": 0.0, "adapt": False},
    ]
    return [group for group in groups if group["params"]]


def rate_of(group: dict[str, Any]) -> float:
    """A group's learning rate, which may be a tensor."""
    return float(group["lr"])


def scale_layers(updates: list[Tensor], ratios: Tensor) -> None:
    """Multiply each update by its ratio, in place and without waiting for a device."""
    # Tensors without a dimension change no type: an update of float32 is multiplied in float32.
    torch._foreach_mul_(updates, list(ratios.unbind()))


def _at_once(layers: list[Tensor]) -> Iterable[list[Tensor]]:
    """The layers that are updated by one call: all on a device, which then gets a few kernels; else one, so that memory
    is taken for one."""
    if layers and all(layer.is_cuda for layer in layers):
        return [layers]
    return [[layer] for layer in layers]
