"""Reductions over gradients that enter an update: fixed blocks, fixed order, float64."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

BLOCK = 1 << 16
"""Elements summed at once: independent of buckets, spans and world, so that the norm's bits are too."""

Complete = Callable[[Tensor], Tensor]
"""Block sums of one part, zeros elsewhere → block sums of all parts."""


def itself(sums: Tensor) -> Tensor:
    """There is one part."""
    return sums


def total_norm(parameters: Sequence[Tensor], complete: Complete = itself) -> Tensor:
    """The 2-norm of all gradients together: () float64 on their device. A gradient that is None counts as zeros."""
    device = parameters[0].device if parameters else torch.device("cpu")
    total = torch.zeros((), dtype=torch.float64, device=device)
    sums = [block for parameter in parameters for block in _block_sums(parameter, total)]
    for block in complete(torch.stack(sums)) if sums else ():
        total = total + block
    return total.sqrt()


def clip(parameters: Sequence[Tensor], max_norm: float, complete: Complete = itself) -> None:
    """Scale all gradients so that their total norm is at most `max_norm`, in place, without a device sync."""
    scale = (max_norm / (total_norm(parameters, complete) + 1e-6)).clamp(max=1.0)
    for parameter in parameters:
        if parameter.grad is not None:
            parameter.grad.mul_(scale.to(parameter.grad.dtype))


def _block_sums(parameter: Tensor, zero: Tensor) -> list[Tensor]:
    """() float64 for every block of the parameter."""
    starts = range(0, parameter.numel(), BLOCK)
    if parameter.grad is None:
        return [zero] * len(starts)
    flat = parameter.grad.reshape(-1)
    blocks = (flat[start : start + BLOCK].to(torch.float64) for start in starts)
    return [(block * block).sum() for block in blocks]
