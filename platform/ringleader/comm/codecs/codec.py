"""The codec protocol: float32 values to fewer bytes and back, in a size that both ends know beforehand; and the codec
that changes nothing."""

from collections.abc import Iterator
from typing import Protocol

import torch
from torch import Tensor


class Codec(Protocol):
    """Encodes a vector into one message. Stateless: the caller keeps what is lost.

    Zeros decode to zeros, so that a member without a gradient adds nothing. Values up to 1e35 decode to finite ones.
    NaN or an infinity among the values makes at least one decoded value NaN or infinite: no divergence is hidden.
    """

    @property
    def name(self) -> str:
        """The codec's name in the job file."""

    @property
    def feedback(self) -> bool:
        """Whether what the encoding loses has to be kept and added to the next gradient."""

    def size(self, length: int) -> int:
        """Bytes of `length` encoded values, indices and scales included."""

    def encode(self, values: Tensor, into: Tensor) -> None:
        """Write (n,) float32 `values` into (size(n),) uint8 `into`, whose memory is aligned to 4 bytes."""

    def decode(self, message: Tensor, into: Tensor) -> None:
        """Write a message of (size(n),) uint8 into (n,) float32 `into`. The same bytes give the same bits anywhere."""


class Raw:
    """Implements Codec, exactly: the four bytes of every value, for what is too small to be worth coding."""

    name = "none"
    feedback = False

    def size(self, length: int) -> int:
        return 4 * length

    def encode(self, values: Tensor, into: Tensor) -> None:
        into.view(torch.float32).copy_(values)

    def decode(self, message: Tensor, into: Tensor) -> None:
        into.copy_(message.view(torch.float32))


RAW = Raw()


def blocks(values: Tensor, size: int) -> Iterator[tuple[Tensor, slice]]:
    """(k, size) and then (1, rest): views of `values` cut into blocks, and which blocks each holds."""
    whole = values.numel() // size
    if whole:
        yield values[: whole * size].view(whole, size), slice(0, whole)
    if values.numel() % size:
        yield values[whole * size :].view(1, -1), slice(whole, whole + 1)


def ceiling(number: int, divisor: int) -> int:
    return -(-number // divisor)


def as_floats(message: Tensor, start: int, count: int) -> Tensor:
    """(count,) float32 view of a message from byte `start` on."""
    return message[start : start + 4 * count].view(torch.float32)
