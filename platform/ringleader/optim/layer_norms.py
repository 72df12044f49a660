"""The 2-norms of whole layers: the same bits for any number of threads and any layout in memory.

Squares are added in float64, in rows of fixed length, which one thread adds each; then their sums in the same way.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

ROW = 1 << 8
"""Numbers that are added in one go: few enough that torch never gives a part of them to another thread."""
BLOCK = 1 << 16
"""Numbers that are squared at once, so that a large layer takes no memory of its size."""


def layer_norms(layers: Sequence[Tensor]) -> Tensor:
    """(layers,) float64 on their device: the 2-norm of each."""
    if layers and layers[0].is_cuda:
        # A few kernels for all: the order within a layer follows from its size alone.
        return torch.stack(torch._foreach_norm(list(layers), 2, dtype=torch.float64))
    return torch.stack([_square_sum(layer) for layer in layers]).sqrt()


def _square_sum(layer: Tensor) -> Tensor:
    """() float64."""
    blocks = torch.split(layer.reshape(-1), BLOCK)
    # A copy also of float64: it is squared in place.
    return _sum(torch.stack([_sum(block.to(torch.float64, copy=True).square_()) for block in blocks]))


def _sum(values: Tensor) -> Tensor:
    """() the sum of (n,) values, row by row."""
    whole = len(values) // ROW * ROW
    if not whole:
        return values.sum()
    rows = values[:whole].view(-1, ROW).sum(dim=1)
    return _sum(torch.cat([rows, values[whole:].sum().unsqueeze(0)]))
