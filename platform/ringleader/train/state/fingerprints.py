"""Fingerprints of a worker's state: whether another one holds the same bits, found out without sending them; and of a
model's weights."""

import hashlib
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ringleader.checkpoint.pieces import COMPARED, take_apart
from ringleader.train.state.buffers import persistent_buffers
from ringleader.train.state.kept_objects import Stateful
from ringleader.train.state.parameters.tensor_fingerprint import PRINT_BYTES, WHOLE_BYTES, HashedBits
from ringleader.train.state.training_state import TrainingState

EntryPlace = tuple[Any, ...]


def prints(held: TrainingState, kept: Mapping[str, Any], *, optimizers: bool = True) -> dict[str, bytes]:
    """Fingerprints of every weight, buffer and optimizer's state, and of these kept objects' states, by what they are.

    Tensors are read as bits, so that each NaN equals itself alone. For 200 MB about 20 ms on one core.

    Args:
        kept: states by name. Those whose pickles differ have different fingerprints.
        optimizers: whether optimizers' states are read.
    """
    return _printed(_entries(held, kept, optimizers=optimizers))


def state_prints(held: TrainingState, parameters: Iterable[Tensor]) -> dict[str, bytes]:
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


def _entries(held: TrainingState, kept: Mapping[str, Any], *, optimizers: bool) -> Iterator[tuple[str, Any]]:
    names = _names(held)
    for number, model in enumerate(held.models):
        prefix = _prefix(held, number)
        yield from ((prefix + name, entry) for name, entry in model.state_dict().items())
    for number, (optimizer, _) in enumerate(held.optimizers if optimizers else ()):
        for parameter, state in optimizer.state.items():
            if state:
                yield _state_name(number, names.get(id(parameter))), state
    yield from ((f"kept object {name!r}", state) for name, state in kept.items())


def _names(held: TrainingState) -> dict[int, str]:
    """The names of parameters, by id."""
    return {
        id(parameter): _prefix(held, number) + name
        for number, model in enumerate(held.models)
        for name, parameter in model.named_parameters()
    }


def _in_order(state: Mapping[str, Any]) -> dict[str, Any]:
    """The state of a parameter with its keys in order: one that was handed over may have them in another."""
    return dict(sorted(state.items(), key=lambda entry: entry[0]))


def _prefix(held: TrainingState, number: int) -> str:
    return f"{number}." if len(held.models) > 1 else ""


def _state_name(number: int, parameter: str | None) -> str:
    return f"optimizer {number}'s state of {parameter or 'another tensor'}"


def _printed(entries: Iterable[tuple[str, Any]]) -> dict[str, bytes]:
    """The fingerprints of entries, by name."""
    # All live until the end: no place is given to another tensor meanwhile.
    alive, known = dict(entries), dict[EntryPlace, HashedBits]()
    printed = {name: _PrintedEntry(entry, known) for name, entry in alive.items()}
    return {name: entry.digest() for name, entry in printed.items()}


class _PrintedEntry:
    """An entry on its way to a fingerprint: what is hashed of its tensors is sent from their devices at once, so that
    nobody waits for each of them."""

    def __init__(self, entry: Any, known: dict[EntryPlace, "HashedBits"]) -> None:
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


def _known(tensor: Tensor, known: dict[EntryPlace, "HashedBits"]) -> "HashedBits":
    """The bits of a tensor; a large one that has several names is read once."""
    if tensor.nbytes <= WHOLE_BYTES:
        return HashedBits(tensor)
    place = (tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
    if place not in known:
        known[place] = HashedBits(tensor)
    return known[place]


def _little_endian(tensor: Tensor) -> bytes:
    # `reshape`: a tensor without dimensions cannot be viewed as another type.
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    raw = flat.view(torch.uint8).numpy()
    if sys.byteorder == "big" and flat.element_size() > 1:
        raw = raw.reshape(-1, flat.element_size())[:, ::-1]
    return bytes(raw.tobytes())
