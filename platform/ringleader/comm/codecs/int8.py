"""The codec `int8`: one byte a value and one float32 scale a block.

Linear quantisation by the largest magnitude of a block (Dettmers 2015, "8-Bit Approximations for Parallelism in Deep
Learning", with one scale per block instead of one per tensor). A message is the scales, then the bytes.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ringleader.comm.codecs.codec import as_floats, blocks, ceiling

LEVELS = 127
LEAST_SCALE = torch.finfo(torch.float32).tiny
"""A block of zeros has this scale, so that nothing is divided by zero."""


@dataclass(frozen=True, slots=True)
class Int8:
    """Implements Codec. Off by half a scale at most: 1/254 of the block's largest magnitude."""

    block: int = 256
    name: str = "int8"
    feedback: bool = True

    def size(self, length: int) -> int:
        return 4 * ceiling(length, self.block) + length

    def encode(self, values: Tensor, into: Tensor) -> None:
        scales, levels = self._parts(into, values.numel())
        for (block, at), (out, _) in zip(blocks(values, self.block), blocks(levels, self.block), strict=True):
            # NaN or an infinity makes the scale so too, and the block not finite, whatever its levels.
            scale = block.abs().amax(dim=1).div_(LEVELS).clamp_(min=LEAST_SCALE)
            scales[at] = scale
            out.copy_(block.div(scale.unsqueeze(1)).round_().clamp_(-LEVELS, LEVELS))

    def decode(self, message: Tensor, into: Tensor) -> None:
        scales, levels = self._parts(message, into.numel())
        for (out, at), (block, _) in zip(blocks(into, self.block), blocks(levels, self.block), strict=True):
            torch.mul(block, scales[at].unsqueeze(1), out=out)

    def _parts(self, message: Tensor, length: int) -> tuple[Tensor, Tensor]:
        """(blocks,) float32 scales and (length,) int8 levels."""
        count = ceiling(length, self.block)
        return as_floats(message, 0, count), message[4 * count :].view(torch.int8)


INT8 = Int8()
