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
    # Without elements there is nothing to complete, which is an exchange among servers.
    sums = [blocks for blocks in block_sums(parameters) if blocks.numel()]
    if not sums:
        return total
    blocks = complete(torch.cat(sums))
    if blocks.is_cuda:
        # One kernel, whose order follows from the number of blocks alone; a kernel for each block takes milliseconds.
        return blocks.sum().sqrt()
    # One block after the other: float addition is not associative, and the norm's bits are promised.
    for block in blocks:
        total = total + block
    return total.sqrt()


def block_sums(parameters: Sequence[Tensor]) -> list[Tensor]:
    """1-D float64 sums of squares, one after the other for every block of every parameter. On a device the first block
    of a dense gradient has the sum of all of it."""
    counts = [-(-parameter.numel() // BLOCK) for parameter in parameters]
    device = parameters[0].device if parameters else None
    nothing = torch.zeros(max(counts, default=0), dtype=torch.float64, device=device)
    dense = [
        p.grad for p in parameters if p.is_cuda and p.numel() and p.grad is not None and not p.grad.is_sparse
    ]
    squares = dict(zip(map(id, dense), _squares(dense), strict=True))
    sums: list[Tensor] = []
    for parameter, count in zip(parameters, counts, strict=True):
        gradient = parameter.grad
        if gradient is None or not count:
            sums.append(nothing[:count])
        elif id(gradient) in squares:
            sums += [squares[id(gradient)], nothing[: count - 1]]
        else:
            sums.append(torch.stack(_sums(gradient, count)))
    return sums


def _squares(gradients: list[Tensor]) -> Sequence[Tensor]:
    """(1,) float64 sums of squares on a device, by a few kernels for all: one order for each, whatever the others."""
    norms = torch._foreach_norm(gradients, 2, dtype=torch.float64) if gradients else ()
    return torch.stack(norms).square().unsqueeze(1).unbind() if norms else ()


def clip(parameters: Sequence[Tensor], max_norm: float, complete: Complete = itself) -> Tensor:
    """Scale all gradients so that their total norm is at most `max_norm`, in place, without a device sync. Returns what
    it was: () float64."""
    norm = total_norm(parameters, complete)
    # The 1e-6 is that of torch's clip_grad_norm_; a clamp instead of a branch needs no value from the device.
    scale = (max_norm / (norm + 1e-6)).clamp(max=1.0)
    for dtype, gradients in _by_type(parameters).items():
        scale_all(gradients, scale.to(dtype))
    return norm


def together(norms: Sequence[Tensor]) -> Tensor:
    """The 2-norm of several parts of a gradient, of which each has that norm."""
    return norms[0] if len(norms) == 1 else torch.stack(list(norms)).square().sum().sqrt()


def scale_by(gradient: Tensor, factor: Tensor | float) -> None:
    """Multiply a gradient in place; a sparse one stays coalesced, which torch's own product forgets."""
    (gradient._values() if gradient.is_sparse else gradient).mul_(factor)


def scale_all(gradients: Sequence[Tensor], factor: Tensor | float) -> None:
    """Multiply dense gradients of one type, or the values of sparse ones, in place."""
    values = [gradient._values() if gradient.is_sparse else gradient for gradient in gradients]
    if values and values[0].is_cuda:
        torch._foreach_mul_(values, factor)
        return
    for each in values:
        each.mul_(factor)


def _by_type(parameters: Sequence[Tensor]) -> dict[torch.dtype, list[Tensor]]:
    gradients: dict[torch.dtype, list[Tensor]] = {}
    for parameter in parameters:
        if parameter.grad is not None:
            gradients.setdefault(parameter.grad.dtype, []).append(parameter.grad)
    return gradients


def _sums(gradient: Tensor, count: int) -> list[Tensor]:
    """() float64 sums of squares of a gradient's blocks."""
    if gradient.is_sparse:
        return _row_sums(gradient, count)
    flat = gradient.reshape(-1)
    blocks = (flat[k * BLOCK : (k + 1) * BLOCK].to(torch.float64) for k in range(count))
    return [(block * block).sum() for block in blocks]


def _row_sums(gradient: Tensor, count: int) -> list[Tensor]:
    """The same for a sparse gradient of (rows, width): squares of each row, then of all rows in a block."""
    rows, values = gradient._indices()[0], gradient._values().to(torch.float64)
    starts = torch.arange(count, device=rows.device) * BLOCK
    first = torch.searchsorted(rows * gradient.shape[1], starts).tolist()
    squares = (values * values).sum(dim=1)
    zero = torch.zeros((), dtype=torch.float64, device=values.device)
    ends = [*first[1:], len(rows)]
    spans = zip(first, ends, strict=True)
    return [squares[start:stop].sum() if start < stop else zero for start, stop in spans]
