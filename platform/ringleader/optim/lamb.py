"""LAMB: Adam whose update of each layer has a norm in proportion to that of its weights.

You, Li, Reddi, Hseu, Kumar, Bhojanapalli, Song, Demmel, Keutzer and Hsieh, "Large Batch Optimization for Deep Learning:
Training BERT in 76 minutes", 2019 (arXiv:1904.00962).
"""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from ringleader.optim.layer_norms import layer_norms
from ringleader.optim.layerwise import LayerwiseOptimizer, rate_of, scale_layers


class LAMB(LayerwiseOptimizer):
    """Layer-wise adaptive moments for batch training (You et al., 2019, arXiv:1904.00962).

    With weights w and Adam's moments m and v a layer's update is r = m / (√v + eps) + weight_decay · w, times
    φ(‖w‖) / ‖r‖, and times 1 where a norm is zero. φ clamps the norm of the weights. With `adapt=False` a group is
    updated as by `torch.optim.AdamW`. The norms have the same bits whoever computes them.

    Args:
        params: as torch's optimizers take them; `layer_groups(model)` leaves biases and norms out of the scaling.
        lr: the rate, which `scaled_rate` adapts to the global batch; above 0.
        betas: of the moments, each from 0 to below 1.
        eps: added to √v.
        weight_decay: the factor of the weights in the update.
        clamp: the least and the greatest value of φ; None: φ(‖w‖) = ‖w‖.
        bias_correction: whether moments are divided by 1 - beta^steps, as Adam's are.
        adapt: whether updates are scaled layer by layer.

    Raises:
        ValueError: an option is out of its bounds.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float,
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.01,
        clamp: tuple[float, float] | None = None,
        bias_correction: bool = True,
        adapt: bool = True,
    ) -> None:
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "clamp": clamp,
            "bias_correction": bias_correction,
            "adapt": adapt,
        }
        super().__init__(params, defaults)

    def _check(self, group: dict[str, Any]) -> None:
        super()._check(group)
        for number, beta in enumerate(group["betas"]):
            self._bound(f"betas[{number}]", beta, least=0.0, below=1.0)
        if group["clamp"] is not None:
            least, greatest = group["clamp"]
            self._bound("clamp[0]", least, least=0.0)
            self._bound("clamp[1]", greatest, above=least)

    def _update(self, layers: Sequence[Tensor], group: dict[str, Any]) -> None:
        gradients = [layer.grad for layer in layers if layer.grad is not None]
        states = [self._begun(layer) for layer in layers]
        for state in states:
            state["step"] += 1
        one, two = group["betas"]
        means, squares = [s["exp_avg"] for s in states], [s["exp_avg_sq"] for s in states]
        torch._foreach_lerp_(means, gradients, 1 - one)
        torch._foreach_mul_(squares, two)
        torch._foreach_addcmul_(squares, gradients, gradients, 1 - two)
        updates = _directions(means, squares, [int(state["step"]) for state in states], group)
        if group["weight_decay"]:
            torch._foreach_add_(updates, list(layers), alpha=group["weight_decay"])
        if group["adapt"]:
            scale_layers(updates, _ratios(layers, updates, group["clamp"]))
        torch._foreach_add_(list(layers), updates, alpha=-rate_of(group))

    def _begun(self, layer: Tensor) -> dict[str, Any]:
        """A layer's state, from zero moments on."""
        state: dict[str, Any] = self.state[layer]
        if not state:
            # A tensor in host memory, as torch's Adam has it: nothing waits for a device to read it.
            state["step"] = torch.zeros((), dtype=torch.float32)
            state["exp_avg"] = torch.zeros_like(layer, memory_format=torch.preserve_format)
            state["exp_avg_sq"] = torch.zeros_like(layer, memory_format=torch.preserve_format)
        return state


def _directions(
    means: list[Tensor], squares: list[Tensor], steps: list[int], group: dict[str, Any]
) -> list[Tensor]:
    """m / (√v + eps) of each layer, in new memory."""
    corrections = [
        tuple(1 - beta**step if group["bias_correction"] else 1.0 for beta in group["betas"])
        for step in steps
    ]
    roots = list(torch._foreach_sqrt(squares))
    torch._foreach_div_(roots, [two**0.5 for _, two in corrections])
    torch._foreach_add_(roots, group["eps"])
    updates = list(torch._foreach_div(means, roots))
    torch._foreach_div_(updates, [one for one, _ in corrections])
    return updates


def _ratios(layers: Sequence[Tensor], updates: Sequence[Tensor], clamp: tuple[float, float] | None) -> Tensor:
    """(layers,) float64: the factor of each layer's update."""
    weights, lengths = layer_norms(layers), layer_norms(updates)
    wanted = weights if clamp is None else weights.clamp(*clamp)
    return torch.where((weights > 0) & (lengths > 0), wanted / lengths, torch.ones_like(wanted))
