"""The codec `powersgd`: a matrix as the product of two thin ones, found by one step of power iteration.

Vogels et al. 2019 ("PowerSGD: Practical Low-Rank Gradient Compression for Distributed Optimization"): P = sum of M·Q,
made orthogonal, then Q = sum of Mᵀ·P; the gradient is P·Qᵀ, and Q, scaled, starts the next step. Both sums are plain
sums, so nothing is decoded on the way. A worker owes M - P·(Mᵀ·P)ᵀ, the part of its own matrix outside the span of P:
these add up to exactly what the sum lacks, and none is longer than its matrix. (The paper subtracts the mean product
from all.)
"""

from collections.abc import Sequence

import torch
from torch import Tensor

POWERSGD = "powersgd"
RANK = 4


def rows_and_columns(shape: Sequence[int]) -> tuple[int, int]:
    """The shape of a parameter as a matrix: its first dimension by all the others."""
    rows = shape[0]
    return rows, torch.Size(shape).numel() // rows


def is_worth_it(shape: Sequence[int]) -> bool:
    """Whether the two factors have at most half as many elements as the matrix."""
    rows, columns = rows_and_columns(shape)
    return 2 * RANK * (rows + columns) <= rows * columns


def first_guess(columns: int, seed: int, like: Tensor) -> Tensor:
    """The (columns, RANK) factor to start the iteration from."""
    # From a seed, on the CPU: all ranks have to start from the same bits.
    draw = torch.Generator().manual_seed(seed)
    return (torch.rand(columns, RANK, generator=draw, dtype=torch.float32) * 2 - 1).to(like)


def next_guess(right: Tensor) -> Tensor:
    """The (columns, RANK) factor for the next step to start from: `right` with the largest element of each column made
    one. Non-finite values become zero."""
    # Taken out, so that no gradient's square has to fit a float.
    peaks = right.abs().amax(dim=0).clamp_(min=torch.finfo(right.dtype).tiny)
    return right.div(peaks).nan_to_num_(0.0, 0.0, 0.0)


def make_orthogonal(factor: Tensor) -> None:
    """Make the columns of (rows, RANK) orthonormal, in place."""
    # By QR, whose Q is orthonormal for columns of zeros too; Gram-Schmidt would divide by their length.
    factor.copy_(torch.linalg.qr(factor).Q)


def multiply_out(left: Tensor, right: Tensor, into: Tensor) -> None:
    """left·rightᵀ, element by element.

    Args:
        left: (rows, RANK). right: (columns, RANK). into: (rows, columns).
    """
    # The same bits on every machine, unlike a library's product.
    torch.mul(left[:, :1], right[:, 0], out=into)
    for k in range(1, left.shape[1]):
        into.add_(left[:, k : k + 1] * right[:, k])
