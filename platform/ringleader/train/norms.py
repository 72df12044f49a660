"""Reductions over gradients that enter an update: fixed blocks, fixed order, float64."""

from collections.abc import Sequence

import torch
from torch import Tensor

BLOCK = 1 << 16
"""Elements summed at once: independent of buckets, spans and world, so that the norm's bits are too."""


def total_norm(gradients: Sequence[Tensor]) -> Tensor:
    """The 2-norm of all gradients together: () float64 on their device."""
    device = gradients[0].device if gradients else torch.device("cpu")
    total = torch.zeros((), dtype=torch.float64, device=device)
    for gradient in gradients:
        flat = gradient.reshape(-1)
        for start in range(0, flat.numel(), BLOCK):
            block = flat[start : start + BLOCK].to(torch.float64)
            total = total + (block * block).sum()
    return total.sqrt()


def clip(gradients: Sequence[Tensor], max_norm: float) -> None:
    """Scale all gradients so that their total norm is at most `max_norm`, in place, without a device sync."""
    scale = (max_norm / (total_norm(gradients) + 1e-6)).clamp(max=1.0)
    for gradient in gradients:
        gradient.mul_(scale.to(gradient.dtype))
