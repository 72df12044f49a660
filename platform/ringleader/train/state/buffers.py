"""A model's persistent buffers: the values that each slice starts from, and their form in the control word."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor, nn

from ringleader.errors import StepMisuse
from ringleader.train.device.host_copy import HostCopy, sent

_ALIGNED = 16
"""The bytes of the widest type, complex128: torch makes no view of a type at an offset that it does not divide."""


def persistent_buffers(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Named buffers that belong to the state; the others are constants the model can make again."""
    for place in _places(module):
        yield place.path, place.buffer


@dataclass(frozen=True, slots=True)
class _Place:
    """A buffer's place in a module, and the tensor that was there when it was looked up.

    Attributes:
        path: the buffer's name in the whole model; `name` is the one in `module`.
    """

    path: str
    module: nn.Module
    name: str
    buffer: Tensor

    @property
    def replaced(self) -> bool:
        """Whether the module has assigned another tensor since: `self.seen = self.seen + 1`."""
        return self.module._buffers.get(self.name) is not self.buffer

    @property
    def alike(self) -> bool:
        """Whether the module has a tensor there that the original one can take the value of, bit by bit."""
        now = self.module._buffers.get(self.name)
        return now is not None and (now.shape, now.dtype) == (self.buffer.shape, self.buffer.dtype)

    def put_back(self) -> None:
        self.module._buffers[self.name] = self.buffer

    def take_over(self) -> None:
        """Copy the newly assigned tensor's value into the original one, and put that back in its place.

        Raises:
            StepMisuse: there is no tensor, or one of another shape.
        """
        now = self.module._buffers.get(self.name)
        if now is None or now.shape != self.buffer.shape:
            found = "is gone" if now is None else f"now has shape {tuple(now.shape)}"
            raise StepMisuse(
                f"the buffer {self.path!r} of shape {tuple(self.buffer.shape)} {found}.",
                hint="A registered buffer must keep its shape; use persistent=False for one that changes it.",
            )
        self.buffer.copy_(now)
        self.put_back()


def _places(module: nn.Module) -> Iterator[_Place]:
    for prefix, part in module.named_modules():
        for name, buffer in part.named_buffers(recurse=False):
            if name not in part._non_persistent_buffers_set:
                yield _Place(f"{prefix}.{name}" if prefix else name, part, name, buffer)


@dataclass(frozen=True, slots=True)
class _Groups:
    """Buffers in groups of a type: the live ones, the committed ones, and those that the first shard left."""

    live: list[list[Tensor]]
    committed: list[list[Tensor]]
    left: list[list[Tensor]]


class CommittedBuffers:
    """Committed values of all persistent buffers, beside the live ones that forwards change.

    Committed values and those the first shard left are views into one flat piece of memory each, on the device of the
    live ones, so that a step costs a few operations however many buffers there are. The live ones are the tensors that
    the modules had at first: where a forward assigned another, the original takes its value and its place.
    """

    def __init__(self, models: Iterable[nn.Module]) -> None:
        self._places = [place for model in models for place in _places(model)]
        self._live = [place.buffer for place in self._places]
        self._flat, self._committed = _flat_like(self._live)
        self._left_flat, left = _flat_like(self._live)
        self._left_copy: HostCopy | None = None
        self._groups = _Groups(*map(_by_type, (self._live, self._committed, left)))
        self.adopt()

    @property
    def size_bytes(self) -> int:
        return self._flat.numel()

    @property
    def word_length(self) -> int:
        """The number of float32 entries in the control word: one for every two bytes, so that any dtype is exact."""
        return self._flat.numel() // 2

    def rewind(self) -> None:
        """Put live buffers back to the committed values, before a slice's forward."""
        for place in self._places:
            if place.replaced:
                place.put_back()
        _copy(self._groups.live, self._groups.committed)

    def keep_left(self) -> None:
        """Keep what the first shard's forward left: it becomes the step's result."""
        self._take_over()
        _copy(self._groups.left, self._groups.live)
        self._left_copy = HostCopy(self._left_flat)

    def forget(self) -> None:
        """Put live values back to committed ones as a step starts over, so that a donor hands out nothing else."""
        self.rewind()
        self._left_copy = None

    def encode(self) -> Tensor | None:
        """(word_length,) float32 of 16-bit pieces, or None on members that did not run the first shard."""
        if self._left_copy is None or not self._live:
            return None
        # 16 bits are exact in float32, and the other members' entries are zeros: so is the sum.
        return (self._left_copy.read().view(torch.int16).to(torch.int32) & 0xFFFF).to(torch.float32)

    def commit(self, encoded: Tensor) -> None:
        """Take the step's buffers out of the reduced word on every member."""
        if not self._live:
            return
        # A cast from int32 to int16 keeps the low 16 bits, whatever their sign: `encode` backwards.
        numbers = encoded.to(torch.int32).to(torch.int16)
        self._flat.view(torch.int16).copy_(sent(numbers, self._flat.device))
        self.rewind()
        self._left_copy = None

    def committed_bytes(self) -> Tensor:
        """(n,) uint8 of all committed values; a copy in host memory."""
        return HostCopy(self._flat).read()

    def left_bytes(self) -> Tensor | None:
        """(n,) uint8 that the first shard's forward left, a copy in host memory; None where it did not run here."""
        left, self._left_copy = self._left_copy, None
        return left.read() if left is not None and self._live else None

    def put_left(self, left: Tensor) -> None:
        """Take (n,) uint8 for what the first shard's forward left, as if it had run here."""
        self._left_flat.copy_(left)
        self._left_copy = HostCopy(self._left_flat)

    def put(self, committed: Tensor) -> None:
        """Make (n,) uint8 the committed and the live values."""
        if self._live:
            self._flat.copy_(committed)
            self.rewind()

    def follow(self, start: Tensor, left: Tensor) -> None:
        """Apply what a slice that started from older values left; nothing that others did to the buffers since is lost.

        Numbers move by as much as the slice moved them: counts and sums are exact, and a running mean of momentum m
        goes m of the way from the mean that its slice saw. What cannot be negative (was not before, and is not in what
        the slice left) stays so: moves of several slices together may overshoot a running variance. Truth values are
        those of the slice that is applied last. Where nothing came in between the values are what the slice left.

        Args:
            start: (n,) uint8 the committed values before the slice's forward.
            left: (n,) uint8 after it.
        """
        start, left = (sent(values, self._flat.device) for values in (start, left))
        if torch.equal(start, self._flat):
            self.put(left)
            return
        for committed, old, new in zip(self._committed, self._views(start), self._views(left), strict=True):
            # torch refuses to subtract truth values.
            if committed.dtype == torch.bool:
                committed.copy_(new)
                continue
            moved = committed + (new - old)
            if committed.is_floating_point():
                counted = (committed >= 0) & (new >= 0)
                moved = torch.where(counted, moved.clamp(min=0), moved)
            committed.copy_(moved)
        self.rewind()

    def adopt(self) -> None:
        """Make the live values (just healed, for example) the committed ones."""
        self._take_over()
        _copy(self._groups.committed, self._groups.live)
        self._left_copy = None

    def release(self) -> None:
        """Leave to the program, behind its last loop, the places in which it has put nothing, or another kind of
        tensor; what is committed of these stays as it is, so that members and checkpoints agree on the layout."""
        self._places = [place for place in self._places if place.alike]

    def _views(self, flat: Tensor) -> list[Tensor]:
        return _views(flat, self._live)

    @torch.no_grad()
    def _take_over(self) -> None:
        for place in self._places:
            if place.replaced:
                place.take_over()


def _flat_like(buffers: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
    """One (n,) uint8 tensor and views into it, one for each buffer, at aligned places; on the CPU where the buffers
    are on several devices."""
    devices = {buffer.device for buffer in buffers}
    device = devices.pop() if len(devices) == 1 else torch.device("cpu")
    flat = torch.zeros(sum(map(_room, buffers)), dtype=torch.uint8, device=device)
    return flat, _views(flat, buffers)


def _views(flat: Tensor, buffers: Sequence[Tensor]) -> list[Tensor]:
    starts = list(accumulate(map(_room, buffers), initial=0))
    return [
        flat[start : start + buffer.nbytes].view(buffer.dtype).view(buffer.shape)
        for start, buffer in zip(starts, buffers, strict=False)
    ]


def _room(buffer: Tensor) -> int:
    """The bytes that a buffer takes, rounded up."""
    return -(-buffer.nbytes // _ALIGNED) * _ALIGNED


def _by_type(tensors: Sequence[Tensor]) -> list[list[Tensor]]:
    """The tensors in groups of a type, in the order in which the types are met."""
    groups: dict[torch.dtype, list[Tensor]] = {}
    for tensor in tensors:
        groups.setdefault(tensor.dtype, []).append(tensor)
    return list(groups.values())


@torch.no_grad()
def _copy(into: list[list[Tensor]], source: list[list[Tensor]]) -> None:
    # By type: of several types torch would copy each tensor by itself, which on a device costs a kernel each.
    for ones, others in zip(into, source, strict=True):
        torch._foreach_copy_(ones, others)
