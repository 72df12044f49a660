"""Objects in transit between members, in memory: tensors as they are, everything else pickled and sealed.

```
tag | length of the rest's head | head: what each tensor is, and the object without its tensors | their bytes
```

The head is pickled, and a pickle can run code in whoever opens it: it is opened only if the tag says that a member
made it, and where the message's types are known nothing else is made of it. The bytes of tensors are not code: like
gradients, they travel as they are.
"""

import io
import pickle
from collections.abc import Sequence
from enum import Enum
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ringleader.comm.seal import TAG_BYTES, Seal
from ringleader.comm.transports import Transport
from ringleader.errors import ObjectRefused, ObjectUnexpected

OBJECT = b"object"
LENGTH_BYTES = 8
HEAD_AT = TAG_BYTES + LENGTH_BYTES
# A view of other dtype needs an offset that is a multiple of its element size.
ALIGN_BYTES = 64
PLAIN = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
        *(torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128),
    )
}
HARMLESS = frozenset(
    {
        ("builtins", "complex"),
        ("builtins", "bytearray"),
        ("collections", "OrderedDict"),
        # As numpy 2 pickles scalars, and arrays of other types than those in PLAIN.
        ("numpy", "dtype"),
        ("numpy", "ndarray"),
        ("numpy._core.multiarray", "_reconstruct"),
        ("numpy._core.multiarray", "scalar"),
        ("numpy._core.numeric", "_frombuffer"),
        ("torch", "Size"),
        *(("torch", name) for name in PLAIN),
    }
)
"""The globals that any message may name besides its own types."""

Kind = tuple[str, tuple[int, ...], str, bool]
"""A tensor's type, shape and device, and whether it was a numpy array."""


def packed(value: Any, seal: Seal, room: Tensor | None = None) -> Tensor:
    """Pack an object of any type that can be pickled into (n,) uint8.

    Args:
        room: (m,) uint8 memory to use if it is large enough: pages that were written before cost no faults.
    """
    buffer = io.BytesIO()
    apart = _Apart(buffer)
    apart.dump(value)
    head = pickle.dumps((apart.kinds, buffer.getvalue()), protocol=5)
    start = _aligned(HEAD_AT + len(head))
    size = start + sum(_aligned(t.nbytes) for t in apart.tensors)
    enough = room is not None and room.numel() >= size
    memory = room[:size] if room is not None and enough else torch.empty(size, dtype=torch.uint8)
    length = len(head).to_bytes(LENGTH_BYTES, "little")
    front = np.frombuffer(seal.tag(OBJECT, head) + length + head, dtype=np.uint8)
    memory.numpy()[: front.size] = front
    for place, tensor in zip(_places(memory, start, apart.kinds), apart.tensors, strict=True):
        place.copy_(tensor)
    return memory


def unpacked(payload: Tensor, seal: Seal, *types: type) -> Any:
    """Unpack what `packed` made of plain values, tensors, arrays and objects of these types.

    Raises:
        ObjectRefused: it does not carry a member's seal; nothing of it was made.
        ObjectUnexpected: it names another type.
    """
    return _opened(payload, seal, HARMLESS | {(t.__module__, t.__qualname__) for t in types})


def unpacked_of_any_type(payload: Tensor, seal: Seal) -> Any:
    """Unpack an object that may hold the user's own types, which nobody here knows: a member's seal suffices.

    Raises:
        ObjectRefused: it does not carry a member's seal; nothing of it was made.
    """
    return _opened(payload, seal, None)


def sent(value: Any, seal: Seal) -> list[Tensor]:
    """The messages that `receive` takes, in this order."""
    payload = packed(value, seal)
    return [torch.tensor([payload.numel()]), payload]


def receive(transport: Transport, peer: int, tag: int, *types: type) -> Any:
    """Receive the object that a peer sent under that tag. Raises as `unpacked`, and ExchangeBroken."""
    length = torch.empty(1, dtype=torch.int64)
    transport.irecv(length, peer, tag).wait()
    payload = torch.empty(int(length), dtype=torch.uint8)
    transport.irecv(payload, peer, tag).wait()
    return unpacked(payload, transport.seal, *types)


def _opened(payload: Tensor, seal: Seal, known: frozenset[tuple[str, str]] | None) -> Any:
    front = payload[:HEAD_AT].numpy().tobytes()
    end = HEAD_AT + int.from_bytes(front[TAG_BYTES:], "little")
    head = payload[HEAD_AT:end].numpy().tobytes()
    # Before anything is unpickled: a pickle runs what its maker chose.
    if len(front) < HEAD_AT or not seal.fits(front[:TAG_BYTES], OBJECT, head):
        raise ObjectRefused
    # Plain values only: the outer pickle may name nothing at all.
    kinds, skeleton = _Whole(io.BytesIO(head), [], frozenset()).load()
    places = _places(payload, _aligned(end), kinds)
    tensors = [_own(place, kind) for place, kind in zip(places, kinds, strict=True)]
    return _Whole(io.BytesIO(skeleton), tensors, known).load()


def _own(place: Tensor, kind: Kind) -> Any:
    """A copy of one tensor. On its device, if there is one here."""
    *_, device, array = kind
    # A copy, so that keeping it does not keep the whole payload.
    if array:
        return place.clone().numpy()
    return place.to(device if device == "cpu" or torch.cuda.is_available() else "cpu", copy=True)


def _places(memory: Tensor, start: int, kinds: Sequence[Kind]) -> list[Tensor]:
    places = []
    for name, shape, *_ in kinds:
        dtype = PLAIN[name]
        size = dtype.itemsize * torch.Size(shape).numel()
        places.append(memory[start : start + size].view(dtype).view(shape))
        start += _aligned(size)
    return places


def _aligned(size: int) -> int:
    return -(-size // ALIGN_BYTES) * ALIGN_BYTES


def _plain(entry: Any) -> Tensor | None:
    """The tensor that travels in place of `entry`; None for everything that stays in the head."""
    if type(entry) is np.ndarray:
        fits = entry.dtype.name in PLAIN and entry.dtype.isnative and entry.flags.carray
        return torch.from_numpy(entry) if fits else None
    # Subclasses stay in the head: their bytes alone would not restore a Parameter, for one.
    if type(entry) is not Tensor or entry.requires_grad or entry.layout is not torch.strided:
        return None
    known = str(entry.dtype).removeprefix("torch.") in PLAIN and entry.device.type in {"cpu", "cuda"}
    # A lazily conjugated or negated tensor's memory does not hold its values.
    return entry if known and not (entry.is_conj() or entry.is_neg()) else None


class _Apart(pickle.Pickler):
    """A pickler that replaces plain tensors by their number; memory that is met twice is sent once."""

    def __init__(self, buffer: io.BytesIO) -> None:
        super().__init__(buffer, protocol=5)
        self.tensors: list[Tensor] = []
        self.kinds: list[Kind] = []
        self._numbers: dict[tuple[Any, ...], int] = {}

    def persistent_id(self, obj: Any) -> int | None:
        tensor = _plain(obj)
        if tensor is None:
            return None
        array, name = tensor is not obj, str(tensor.dtype).removeprefix("torch.")
        place = (tensor.data_ptr(), name, tuple(tensor.shape), tensor.stride(), array)
        # Empty tensors all have address 0, so an equal place does not make them the same.
        if tensor.numel() == 0 or place not in self._numbers:
            self._numbers[place] = len(self.tensors)
            self.kinds.append((name, tuple(tensor.shape), str(tensor.device), array))
            self.tensors.append(tensor)  # it lives until the end: nothing else lies in its place meanwhile
        return self._numbers[place]

    def reducer_override(self, obj: Any) -> Any:
        # Python 3.11.2 pickles a member of an enum by `getattr`, which no message may name.
        return (type(obj), (obj.value,)) if isinstance(obj, Enum) else NotImplemented


class _Whole(pickle.Unpickler):
    """An unpickler that puts the tensors back. `known`: the only globals that the pickle may name; None: any."""

    def __init__(
        self, buffer: io.BytesIO, tensors: Sequence[Any], known: frozenset[tuple[str, str]] | None
    ) -> None:
        super().__init__(buffer)
        self._tensors = tensors
        self._known = known

    def persistent_load(self, number: int) -> Any:
        return self._tensors[number]

    def find_class(self, module: str, name: str) -> Any:
        if self._known is not None and (module, name) not in self._known:
            raise ObjectUnexpected(f"{module}.{name}")
        return super().find_class(module, name)
