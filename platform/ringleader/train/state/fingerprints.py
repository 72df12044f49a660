"""Fingerprints of a worker's state: whether another one holds the same bits, found out without sending them; and of a
model's weights."""

import hashlib
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ringleader.checkpoint.pieces import COMPARED, take_apart
from ringleader.train.device.host_copy import HostCopy
from ringleader.train.state.buffers import persistent_buffers
from ringleader.train.state.kept_objects import Stateful

if TYPE_CHECKING:  # which has optimizers' attributes, whose marks are made here
    from ringleader.train.state.training_state import TrainingState

PRINT_BYTES = 8

WHOLE_BYTES = 1 << 16
"""A tensor up to this size is hashed as it is; of a larger one the sums of its words are, ten times as fast."""

WORD_BYTES = 8
COLUMNS, ROWS = 511, 255
"""Words in a row and rows in a block, which fits into a core's cache. Both are odd: a change of the same highest bit in
every word (float64 weights that are negated) would vanish in a sum of an even number of them."""

EntryPlace = tuple[Any, ...]


def prints(held: "TrainingState", kept: Mapping[str, Any], *, optimizers: bool = True) -> dict[str, bytes]:
    """Fingerprints of every weight, buffer and optimizer's state, and of these kept objects' states, by what they are.

    Tensors are read as bits, so that each NaN equals itself alone. For 200 MB about 20 ms on one core.

    Args:
        kept: states by name. Those whose pickles differ have different fingerprints.
        optimizers: whether optimizers' states are read.
    """
    return _printed(_entries(held, kept, optimizers=optimizers))


def state_prints(held: "TrainingState", parameters: Iterable[Tensor]) -> dict[str, bytes]:
    """Fingerprints of the optimizers' states of these parameters, by what they are, whatever their order."""
    names = _names(held)
    return _printed(
        (_state_name(number, names.get(id(parameter))), _in_order(state))
        for parameter in parameters
        for number, (optimizer, _) in enumerate(held.optimizers)
        if (state := optimizer.state.get(parameter))
    )


def kept_prints(kept: Mapping[str, Stateful]) -> dict[str, bytes]:
    """Fingerprints of kept objects, by what they are."""
    return _printed((f"kept object {name!r}", each.state_dict()) for name, each in kept.items())


def first_difference(mine: Mapping[str, bytes], theirs: Mapping[str, bytes]) -> str:
    """The first name whose fingerprint differs, or is not on both sides; empty where there is none."""
    names = [*theirs, *(name for name in mine if name not in theirs)]
    return next((name for name in names if mine.get(name) != theirs.get(name)), "")


def weights_sha256(module: nn.Module) -> str:
    """SHA-256 over the sorted named parameters, then the sorted persistent buffers.

    Each goes in as name, dtype, shape and its little-endian contiguous bytes, so that two models with the same
    digest have the same bits.
    """
    digest = hashlib.sha256()
    for name, tensor in [*sorted(module.named_parameters()), *sorted(persistent_buffers(module))]:
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(_little_endian(tensor))
    return digest.hexdigest()


def _entries(
    held: "TrainingState", kept: Mapping[str, Any], *, optimizers: bool
) -> Iterator[tuple[str, Any]]:
    names = _names(held)
    for number, model in enumerate(held.models):
        prefix = _prefix(held, number)
        yield from ((prefix + name, entry) for name, entry in model.state_dict().items())
    for number, (optimizer, _) in enumerate(held.optimizers if optimizers else ()):
        for parameter, state in optimizer.state.items():
            if state:
                yield _state_name(number, names.get(id(parameter))), state
    yield from ((f"kept object {name!r}", state) for name, state in kept.items())


def _names(held: "TrainingState") -> dict[int, str]:
    """The names of parameters, by id."""
    return {
        id(parameter): _prefix(held, number) + name
        for number, model in enumerate(held.models)
        for name, parameter in model.named_parameters()
    }


def _in_order(state: Mapping[str, Any]) -> dict[str, Any]:
    """The state of a parameter with its keys in order: one that was handed over may have them in another."""
    return dict(sorted(state.items(), key=lambda entry: entry[0]))


def _prefix(held: "TrainingState", number: int) -> str:
    return f"{number}." if len(held.models) > 1 else ""


def _state_name(number: int, parameter: str | None) -> str:
    return f"optimizer {number}'s state of {parameter or 'another tensor'}"


def _printed(entries: Iterable[tuple[str, Any]]) -> dict[str, bytes]:
    """The fingerprints of entries, by name."""
    # All live until the end: no place is given to another tensor meanwhile.
    alive, known = dict(entries), dict[EntryPlace, _HashedBits]()
    printed = {name: _PrintedEntry(entry, known) for name, entry in alive.items()}
    return {name: entry.digest() for name, entry in printed.items()}


class _PrintedEntry:
    """An entry on its way to a fingerprint: what is hashed of its tensors is sent from their devices at once, so that
    nobody waits for each of them."""

    def __init__(self, entry: Any, known: dict[EntryPlace, "_HashedBits"]) -> None:
        self._skeleton: bytes | None = None
        if isinstance(entry, Tensor) and entry.layout is torch.strided:
            tensors = [entry]
        else:
            self._skeleton, tensors = take_apart(entry, types=COMPARED)
        self._bits = [_known(tensor, known) for tensor in tensors]

    def digest(self) -> bytes:
        if self._skeleton is None:
            return self._bits[0].digest()
        digest = hashlib.blake2b(self._skeleton, digest_size=PRINT_BYTES)
        for bits in self._bits:
            digest.update(bits.digest())
        return digest.digest()


def _known(tensor: Tensor, known: dict[EntryPlace, "_HashedBits"]) -> "_HashedBits":
    """The bits of a tensor; a large one that has several names is read once."""
    if tensor.nbytes <= WHOLE_BYTES:
        return _HashedBits(tensor)
    place = (tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
    if place not in known:
        known[place] = _HashedBits(tensor)
    return known[place]


def fingerprint(tensor: Tensor) -> bytes:
    """A digest, of PRINT_BYTES, of the tensor's type, shape and bits.

    Of a large tensor the sums of each row of words and of each column of a block are hashed. Two that differ have the
    same digest only where changes cancel along rows and columns alike: nothing that a program does to weights.
    """
    return _HashedBits(tensor).digest()


class _HashedBits:
    """The bits of a tensor, or the sums of them, that are hashed."""

    def __init__(self, tensor: Tensor) -> None:
        self._tensor = tensor
        self._digest: bytes | None = None
        self._sent: list[HostCopy] = []
        if tensor.is_cuda:
            words, raw = _bits_of(tensor)
            self._sent = [HostCopy(part) for part in (*_sums_on_device(words), raw)]

    def digest(self) -> bytes:
        if self._digest is None:
            kind = f"{self._tensor.dtype}{self._tensor.shape}".encode()
            digest = hashlib.blake2b(kind, digest_size=PRINT_BYTES)
            if self._sent:
                *sums, raw = [copy.read() for copy in self._sent]
                pairs = _in_blocks(*sums) if sums else iter(())
            else:
                # Only now: bits in another order are a copy, of which there is one at a time.
                words, raw = _bits_of(self._tensor)
                pairs = _sums(words)
            for rows, columns in pairs:
                digest.update(rows.numpy().data)
                digest.update(columns.numpy().data)
            digest.update(raw.numpy().data)
            self._digest = digest.digest()
        return self._digest


def bytes_of(tensor: Tensor) -> Tensor:
    """The (n,) uint8 bits of a tensor of any layout in memory, of a lazily conjugated or negated one those of its
    values."""
    return tensor.detach().resolve_conj().resolve_neg().contiguous().view(-1).view(torch.uint8)


def _bits_of(tensor: Tensor) -> tuple[Tensor | None, Tensor]:
    """The (rows, COLUMNS) int64 words of a large tensor, and (n,) uint8 behind them; None and all of a small one."""
    raw = bytes_of(tensor)
    if raw.numel() <= WHOLE_BYTES:
        return None, raw
    # A view of bytes as int64 needs an offset that is a multiple of 8.
    raw = raw if raw.storage_offset() % WORD_BYTES == 0 else raw.clone()
    full = raw.numel() // (COLUMNS * WORD_BYTES)
    summed = full * COLUMNS * WORD_BYTES
    return raw[:summed].view(torch.int64).view(full, COLUMNS), raw[summed:]


def _sums(words: Tensor | None) -> Iterator[tuple[Tensor, Tensor]]:
    """The sums of the rows and of the columns of each block of (rows, COLUMNS) words."""
    for start in range(0, 0 if words is None else len(words), ROWS):
        assert words is not None
        block = words[start : start + ROWS]
        # Sums of integers wrap around at 64 bits, and are the same in any order.
        yield block.sum(dim=1), block.sum(dim=0)


def _sums_on_device(words: Tensor | None) -> list[Tensor]:
    """(rows,) sums of all rows, and (blocks, COLUMNS) sums of the columns of all blocks, by a few kernels."""
    if words is None:
        return []
    whole = len(words) // ROWS * ROWS
    columns = words[:whole].view(-1, ROWS, COLUMNS).sum(dim=1)
    rest = [words[whole:].sum(dim=0, keepdim=True)] if whole < len(words) else []
    return [words.sum(dim=1), torch.cat([columns, *rest])]


def _in_blocks(rows: Tensor, columns: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """The same sums, block by block."""
    return zip(torch.split(rows, ROWS), columns, strict=True)


def _little_endian(tensor: Tensor) -> bytes:
    # `reshape`: a tensor without dimensions cannot be viewed as another type.
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    raw = flat.view(torch.uint8).numpy()
    if sys.byteorder == "big" and flat.element_size() > 1:
        raw = raw.reshape(-1, flat.element_size())[:, ::-1]
    return bytes(raw.tobytes())
