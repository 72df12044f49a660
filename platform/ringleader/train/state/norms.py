"""Reductions over gradients that enter an update: fixed blocks, fixed order, float64.

A sparse gradient is coalesced, its rows in ascending order. It has the blocks of its parameter; a row counts in the
block in which it begins. Missing rows are zeros and add nothing.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

BLOCK = 1 << 16
"""Elements summed at once: independent of buckets, spans and world, so that the norm's bits are too."""

Complete = Callable[[Tensor], Tensor]
"""Block sums of one part, zeros elsewhere → block sums of all parts."""


def itself(sums: Tensor) -> Tensor:
    """Return the sums as they are: there is one part."""
    return sums


def total_norm(parameters: Sequence[Tensor], complete: Complete = itself) -> Tensor:
    """The 2-norm of all gradients together: () float64 on their device. A gradient that is None counts as zeros."""
    device = parameters[0].device if parameters else torch.device("cpu")
    total = torch.zeros((), dtype=torch.float64, device=device)
    sums = block_sums(parameters)
    # One block after the other: float addition is not associative, and the norm's bits are promised.
    for block in complete(torch.stack(sums)) if sums else ():
        total = total + block
    return total.sqrt()


def block_sums(parameters: Sequence[Tensor]) -> list[Tensor]:
    """() float64 sums of squares, one for every block of every parameter."""
    zero = torch.zeros((), dtype=torch.float64, device=parameters[0].device if parameters else None)
    return [block for parameter in parameters for block in _block_sums(parameter, zero)]


def clip(parameters: Sequence[Tensor], max_norm: float, complete: Complete = itself) -> None:
    """Scale all gradients so that their total norm is at most `max_norm`, in place, without a device sync."""
    # The 1e-6 is that of torch's clip_grad_norm_; a clamp instead of a branch needs no value from the device.
    scale = (max_norm / (total_norm(parameters, complete) + 1e-6)).clamp(max=1.0)
    for parameter in parameters:
        if parameter.grad is not None:
            scale_by(parameter.grad, scale.to(parameter.grad.dtype))


def scale_by(gradient: Tensor, factor: Tensor | float) -> None:
    """Multiply a gradient in place; a sparse one stays coalesced, which torch's own product forgets."""
    (gradient._values() if gradient.is_sparse else gradient).mul_(factor)


def _block_sums(parameter: Tensor, zero: Tensor) -> list[Tensor]:
    """() float64 sums of squares, one for every block of the parameter."""
    starts = range(0, parameter.numel(), BLOCK)
    if parameter.grad is None:
        return [zero] * len(starts)
    if parameter.grad.is_sparse:
        return _row_sums(parameter.grad, len(starts), zero)
    flat = parameter.grad.reshape(-1)
    blocks = (flat[start : start + BLOCK].to(torch.float64) for start in starts)
    return [(block * block).sum() for block in blocks]


def _row_sums(gradient: Tensor, count: int, zero: Tensor) -> list[Tensor]:
    """The same for a sparse gradient of (rows, width): squares of each row, then of all rows in a block."""
    rows, values = gradient._indices()[0], gradient._values().to(torch.float64)
    starts = torch.arange(count, device=rows.device) * BLOCK
    first = torch.searchsorted(rows * gradient.shape[1], starts).tolist()
    squares = (values * values).sum(dim=1)
    ends = [*first[1:], len(rows)]
    spans = zip(first, ends, strict=True)
    return [squares[start:stop].sum() if start < stop else zero for start, stop in spans]
