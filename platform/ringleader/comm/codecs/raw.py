"""The codec that changes nothing: the four bytes of every value, for what is too small to be worth coding."""

import torch
from torch import Tensor


class Raw:
    """Implements Codec, exactly."""

    name = "none"
    feedback = False

    def size(self, length: int) -> int:
        return 4 * length

    def encode(self, values: Tensor, into: Tensor) -> None:
        into.view(torch.float32).copy_(values)

    def decode(self, message: Tensor, into: Tensor) -> None:
        into.copy_(message.view(torch.float32))


RAW = Raw()
