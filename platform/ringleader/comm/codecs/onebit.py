"""The codec `onebit`: the sign of every value, and the two means of a block's values with either sign.

Seide et al. 2014 ("1-Bit Stochastic Gradient Descent and its Application to Data-Parallel Distributed Training of
Speech DNNs"): the means make the decoded block the nearest one with these signs. A message is the means of the values
that are not negative, those of the negative ones, both float32, then the bits.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ringleader.comm.codecs.codec import as_floats, blocks, ceiling


@dataclass(frozen=True, slots=True)
class OneBit:
    """Implements Codec. The decoded block is a projection of the block: what is lost is never longer than it."""

    block: int = 128
    name: str = "onebit"
    feedback: bool = True

    def size(self, length: int) -> int:
        return 8 * ceiling(length, self.block) + ceiling(length, 8)

    def encode(self, values: Tensor, into: Tensor) -> None:
        length = values.numel()
        above, below, bits = self._parts(into, length)
        signs = values.new_zeros(8 * bits.numel(), dtype=torch.uint8)
        # NaN counts as negative here, but stays NaN in both means, and so in all that the block decodes to.
        signs[:length].copy_(values >= 0)
        for (block, at), (sign, _) in zip(
            blocks(values, self.block), blocks(signs[:length], self.block), strict=True
        ):
            # A block without values of one sign has a count of 0: its mean is 0, not 0/0.
            count = sign.sum(dim=1, dtype=torch.float32)
            above[at] = block.clamp(min=0).sum(dim=1).div_(count.clamp(min=1))
            below[at] = block.clamp(max=0).sum(dim=1).div_((block.shape[1] - count).clamp_(min=1))
        # Signs of one byte lie `bytes` apart, so that eight passes over contiguous memory pack all of them.
        _pack(signs.view(8, -1), bits)

    def decode(self, message: Tensor, into: Tensor) -> None:
        above, below, bits = self._parts(message, into.numel())
        signs = _unpack(bits).view(-1)[: into.numel()]
        for (out, at), (sign, _) in zip(blocks(into, self.block), blocks(signs, self.block), strict=True):
            torch.mul(sign, (above[at] - below[at]).unsqueeze(1), out=out)
            out.add_(below[at].unsqueeze(1))

    def _parts(self, message: Tensor, length: int) -> tuple[Tensor, Tensor, Tensor]:
        """(blocks,) float32 means above and below zero; (bytes,) uint8: byte k holds signs k, k + bytes, ..."""
        count = ceiling(length, self.block)
        return as_floats(message, 0, count), as_floats(message, 4 * count, count), message[8 * count :]


def _pack(signs: Tensor, into: Tensor) -> None:
    """(8, bytes) of 0 and 1 into (bytes,): row j becomes bit j."""
    into.copy_(signs[0])
    for j in range(1, 8):
        into.bitwise_or_(signs[j] << j)


def _unpack(bits: Tensor) -> Tensor:
    """(8, bytes) of 0 and 1."""
    places = torch.arange(8, dtype=torch.uint8, device=bits.device)
    return (bits.unsqueeze(0) >> places.unsqueeze(1)) & 1


ONEBIT = OneBit()
