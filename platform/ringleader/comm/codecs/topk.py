"""The codec `topk`: the values of largest magnitude and where they are; all others count as zero.

Aji and Heafield 2017 ("Sparse Communication for Distributed Gradient Descent"); Lin et al. 2018 ("Deep Gradient
Compression") keep one in a thousand with warm-up and momentum correction, this codec one in a hundred without either.
A message is the values, float32, then their indices, int32.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ringleader.comm.codecs.codec import as_floats, ceiling


@dataclass(frozen=True, slots=True)
class TopK:
    """Implements Codec. Keeps one value in `one_in`, rounded up; NaN counts as the largest."""

    one_in: int = 100
    name: str = "topk"
    feedback: bool = True

    def size(self, length: int) -> int:
        return 8 * ceiling(length, self.one_in)

    def encode(self, values: Tensor, into: Tensor) -> None:
        kept = ceiling(values.numel(), self.one_in)
        if not kept:
            return
        # Unsorted, as each value travels with its index.
        where = values.abs().topk(kept, sorted=False).indices
        as_floats(into, 0, kept).copy_(values[where])
        # 32 bits are enough: indices count within one message, which has `messages.CHUNK` elements at most.
        into[4 * kept :].view(torch.int32).copy_(where)

    def decode(self, message: Tensor, into: Tensor) -> None:
        kept = ceiling(into.numel(), self.one_in)
        into.zero_()
        into[message[4 * kept :].view(torch.int32).long()] = as_floats(message, 0, kept)


TOPK = TopK()
