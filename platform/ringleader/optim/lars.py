"""LARS: SGD with momentum whose rate for each layer follows from the norms of its weights and its gradient.

You, Gitman and Ginsburg, "Large Batch Training of Convolutional Networks", 2017 (arXiv:1708.03888).
"""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from ringleader.optim.layer_norms import layer_norms
from ringleader.optim.layerwise import LayerwiseOptimizer, rate_of, scale_layers


class LARS(LayerwiseOptimizer):
    """Layer-wise adaptive rate scaling (You, Gitman and Ginsburg, 2017, arXiv:1708.03888).

    With weights w, gradient g and weight decay b a layer's update is λ (g + b w), where
    λ = trust_coefficient · ‖w‖ / (‖g‖ + b ‖w‖ + eps), and 1 where a norm is zero. Momentum is torch's: the rate
    multiplies behind it, where the paper has it inside; at a constant rate that is the same. With `adapt=False` a group
    has the bits of `torch.optim.SGD`. The norms have the same bits whoever computes them.

    Args:
        params: as torch's optimizers take them; `layer_groups(model)` leaves biases and norms out of the scaling.
        lr: the rate, which `scaled_rate` adapts to the global batch; above 0.
        momentum: from 0 to below 1.
        weight_decay: b, the factor of the weights in the gradient.
        trust_coefficient: the part of a layer's norm that one update changes at rate 1; above 0.
        eps: added to the norms below the line.
        adapt: whether rates are scaled layer by layer.

    Raises:
        ValueError: an option is out of its bounds.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float,
        *,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        trust_coefficient: float = 0.001,
        eps: float = 1e-8,
        adapt: bool = True,
    ) -> None:
        defaults = {
            "lr": lr,
            "momentum": momentum,
            "weight_decay": weight_decay,
            "trust_coefficient": trust_coefficient,
            "eps": eps,
            "adapt": adapt,
        }
        super().__init__(params, defaults)

    def _check(self, group: dict[str, Any]) -> None:
        super()._check(group)
        self._bound("momentum", group["momentum"], least=0.0, below=1.0)
        self._bound("trust_coefficient", group["trust_coefficient"], above=0.0)

    def _update(self, layers: Sequence[Tensor], group: dict[str, Any]) -> None:
        gradients = [layer.grad for layer in layers if layer.grad is not None]
        updates = [gradient.clone() for gradient in gradients]
        if group["weight_decay"]:
            torch._foreach_add_(updates, list(layers), alpha=group["weight_decay"])
        if group["adapt"]:
            scale_layers(updates, _ratios(layers, gradients, group))
        if group["momentum"]:
            updates = [self._gathered(*pair, group["momentum"]) for pair in zip(layers, updates, strict=True)]
        torch._foreach_add_(list(layers), updates, alpha=-rate_of(group))

    def _gathered(self, layer: Tensor, update: Tensor, momentum: float) -> Tensor:
        """The layer's momentum with this update in it."""
        state = self.state[layer]
        if "momentum_buffer" not in state:
            # Not zeros to which it is added: torch's SGD begins so, whose bits a group without `adapt` has.
            state["momentum_buffer"] = update
            return update
        buffer: Tensor = state["momentum_buffer"]
        return buffer.mul_(momentum).add_(update)


def _ratios(layers: Sequence[Tensor], gradients: Sequence[Tensor], group: dict[str, Any]) -> Tensor:
    """(layers,) float64: λ of each layer."""
    weights, slopes = layer_norms(layers), layer_norms(gradients)
    ratios = group["trust_coefficient"] * weights / (slopes + group["weight_decay"] * weights + group["eps"])
    return torch.where((weights > 0) & (slopes > 0), ratios, torch.ones_like(ratios))
