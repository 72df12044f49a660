"""A model's persistent buffers: what each slice starts from, and how they travel in the control word."""

from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor, nn

_ALIGNED = 8


def persistent_buffers(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Named buffers that belong to the state; the others are constants the model can make again."""
    for prefix, part in module.named_modules():
        for name, buffer in part.named_buffers(recurse=False):
            if name not in part._non_persistent_buffers_set:
                yield (f"{prefix}.{name}" if prefix else name), buffer


class Buffers:
    """Committed values of all persistent buffers, beside the live ones that forwards change.

    Committed values and those the first shard left are views into one flat piece of memory each, so that a step costs a
    few operations however many buffers there are.
    """

    def __init__(self, models: Iterable[nn.Module]) -> None:
        self._live = [buffer.detach() for model in models for _, buffer in persistent_buffers(model)]
        self._flat, self._committed = _flat_like(self._live)
        self._left_flat, self._left = _flat_like(self._live)
        self._was_left = False
        self.adopt()

    @property
    def word_length(self) -> int:
        """float32 entries they take in the control word: one for every two bytes, so that any dtype is exact."""
        return self._flat.numel() // 2

    def rewind(self) -> None:
        """Before a slice's forward: back to the committed values."""
        _copy(self._live, self._committed)

    def keep_left(self) -> None:
        """After the first shard's forward: what it left becomes the step's result."""
        _copy(self._left, self._live)
        self._was_left = True

    def forget(self) -> None:
        """The step starts over: live values are committed ones again, so that a donor hands out nothing else."""
        self.rewind()
        self._was_left = False

    def encode(self) -> Tensor | None:
        """(word_length,) float32 of 16-bit pieces, or None on members that did not run the first shard."""
        if not (self._was_left and self._live):
            return None
        return (self._left_flat.view(torch.int16).to(torch.int32) & 0xFFFF).to(torch.float32)

    def commit(self, encoded: Tensor) -> None:
        """Take the step's buffers out of the reduced word on every member."""
        if not self._live:
            return
        self._flat.view(torch.int16).copy_(encoded.to(torch.int32))
        self.rewind()
        self._was_left = False

    def adopt(self) -> None:
        """The live values (just healed) are the committed ones."""
        _copy(self._committed, self._live)
        self._was_left = False


def _flat_like(buffers: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
    """One (n,) uint8 tensor on the CPU and views into it, one for each buffer, at aligned places."""
    starts = [0]
    for buffer in buffers:
        starts.append(starts[-1] + -(-buffer.nbytes // _ALIGNED) * _ALIGNED)
    flat = torch.zeros(starts[-1], dtype=torch.uint8)
    views = [
        flat[start : start + buffer.nbytes].view(buffer.dtype).view(buffer.shape)
        for start, buffer in zip(starts, buffers, strict=False)
    ]
    return flat, views


@torch.no_grad()
def _copy(into: list[Tensor], source: list[Tensor]) -> None:
    if into:
        torch._foreach_copy_(into, source)
