"""The values of optimizers' attributes: marks by which a change shows, and forms in which other members get them."""

import hashlib
import pickle
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn
from weakref import ref

import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer

from ringleader.train.state.optimizers.state_loading import in_place
from ringleader.train.state.parameters.tensor_fingerprint import fingerprint
from ringleader.train.state.parameters.tensor_version import version_of

_CONSTANTS = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size)
_DICTS = (dict, OrderedDict, defaultdict, Counter)
_ROWS = (list, tuple, deque, set)
_FACTORIES = (None, int, float, list, dict)
MANY = 64
"""A list of so many numbers is looked at as a whole."""
_ADDRESS = 1 << 40
"""A whole number from here on may be an address, which means nothing in another process."""


LeafPath = tuple[Any, ...]
"""Where a value is inside another one: keys of dicts, and places in rows."""


class Unsendable(Exception):
    """A value that means nothing on another member."""


@dataclass(frozen=True, slots=True)
class ParameterName:
    """Stands for a parameter in a value that is sent."""

    name: str


@dataclass(frozen=True, slots=True)
class DeletedAttribute:
    """Stands for an attribute that the optimizer was registered with, and has no longer."""


SENT_TYPES = (
    *(ParameterName, DeletedAttribute),
    *(Counter, OrderedDict, defaultdict, deque, int, float, list, dict, torch.device),
)
"""Types of which sent values are made, besides those that every message may name."""


class KnownObjects:
    """What one optimizer's values may refer to that is committed anyway.

    Attributes:
        committed: ids of the optimizer's state and groups, and of their parts.
        parameters: all by name.
        names: by a parameter's id.
    """

    def __init__(self, optimizer: Optimizer, parameters: Mapping[str, Tensor]) -> None:
        groups, states = optimizer.param_groups, optimizer.state
        self.committed = {id(part) for part in (groups, states, *groups, *states.values())}
        self.parameters = parameters
        self.names = {id(parameter): name for name, parameter in parameters.items()}
        mine = [parameter for group in groups for parameter in group["params"]]
        tensors = [t for state in states.values() if isinstance(state, dict) for t in state.values()]
        self._held = [t for t in (*mine, *parameters.values(), *tensors) if isinstance(t, Tensor)]
        self._ids = {id(tensor) for tensor in self._held}

    def holds(self, tensor: Tensor) -> bool:
        """Whether it is a parameter, or in a state."""
        return id(tensor) in self._ids

    def storages(self) -> set[int]:
        """The memory of parameters, their gradients and states."""
        grads = (tensor.grad for tensor in self._held if tensor.is_leaf)
        return {place for t in (*self._held, *grads) if t is not None and (place := _storage(t))}


@dataclass(frozen=True, slots=True, eq=False)
class SeenConstant:
    """A number or a text as it was. A NaN equals itself."""

    value: Any

    @staticmethod
    def fits(value: Any) -> bool:
        return type(value) in _CONSTANTS or isinstance(value, np.generic)

    def __eq__(self, other: object) -> bool:
        alike = isinstance(other, SeenConstant) and type(self.value) is type(other.value)
        return alike and repr(self) == repr(other)

    __hash__ = None  # type: ignore[assignment]


@dataclass(frozen=True, slots=True, eq=False)
class _SeenTensor:
    """A tensor as it was; not held, so that one that is replaced takes no memory.

    Attributes:
        content: its fingerprint: what changes it through `.data` counts in no version. Empty of a sparse one.
    """

    tensor: "ref[Tensor]"
    version: int
    content: bytes

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _SeenTensor):
            return False
        if (self.version, self.content) != (other.version, other.content):
            return False
        tensor = self.tensor()
        return tensor is not None and tensor is other.tensor()

    __hash__ = None  # type: ignore[assignment]


def mark(value: Any, known: KnownObjects) -> Any:
    """A mark that differs from an earlier one where the value has changed. Of what is committed itself, and of objects
    of other kinds, only a change of place counts."""
    if SeenConstant.fits(value):
        return SeenConstant(value)
    if isinstance(value, Tensor) and not known.holds(value):
        read = value.layout is torch.strided and not value.is_meta
        return _SeenTensor(ref(value), version_of(value), fingerprint(value.detach()) if read else b"")
    if type(value) is np.ndarray and not value.dtype.hasobject:
        return value.shape, str(value.dtype), _digest(value.tobytes())
    if type(value) in (*_DICTS, *_ROWS) and id(value) not in known.committed:
        return type(value), _parts(value, known)
    return type(value), id(value)


def _parts(container: Any, known: KnownObjects) -> Any:
    if type(container) in _DICTS:
        return [(mark(key, known), mark(part, known)) for key, part in container.items()]
    parts = sorted(container, key=repr) if type(container) is set else list(container)
    return _digest(pickle.dumps(parts, 5)) if _plain(parts) else [mark(part, known) for part in parts]


def is_leaf(value: Any) -> bool:
    """Whether it is a single number, text, tensor or array."""
    return SeenConstant.fits(value) or isinstance(value, Tensor | np.ndarray)


class SentValues:
    """Makes the forms in which the values of one optimizer's attributes are sent: tensors are the live ones."""

    def __init__(self, known: KnownObjects) -> None:
        self._known = known
        self._taken: set[int] | None = None

    def sent(self, value: Any) -> Any:
        """The form of a value. Raises Unsendable: it has no meaning on another member, or shares memory."""
        if id(value) in self._known.names:
            return ParameterName(self._known.names[id(value)])
        if SeenConstant.fits(value):
            return value if type(value) is not int or abs(value) < _ADDRESS else _refuse()
        if type(value) is Tensor:
            plain = value.layout is torch.strided and not value.requires_grad and not value.is_inference()
            return value if plain and self._takes(_storage(value)) else _refuse()
        if type(value) is np.ndarray:
            return value if not value.dtype.hasobject and self._takes(_memory(value)) else _refuse()
        # A list or dict that two attributes hold would be two on another member.
        if type(value) not in (*_DICTS, *_ROWS) or not (type(value) is tuple or self._takes(id(value))):
            _refuse()
        if type(value) is defaultdict and value.default_factory not in _FACTORIES:
            _refuse()
        if type(value) is set and not all(map(SeenConstant.fits, value)):
            _refuse()
        if type(value) in _DICTS:
            return like(value, [(self.sent(key), self.sent(part)) for key, part in value.items()])
        return like(value, value if _plain(value) else map(self.sent, value))

    def _takes(self, place: int) -> bool:
        """Whether nothing sent, and nothing committed, has been met at that address."""
        if self._taken is None:
            self._taken = self._known.storages() | self._known.committed
        new = place not in self._taken
        self._taken |= {place} if place else set()
        return new


class FilledValues:
    """Puts sent values in the place of those that an optimizer has."""

    def __init__(self, known: KnownObjects) -> None:
        self._known = known

    def filled(self, mine: Any, given: Any) -> Any:
        """`mine` with the given value in it; where it cannot hold that, a copy of the value."""
        if given is mine:
            return mine
        if isinstance(given, Tensor):
            return self._tensor(mine, given)
        if isinstance(given, np.ndarray):
            return _array(mine, given)
        if type(given) in _DICTS:
            parts = [(self.filled(None, key), part) for key, part in given.items()]
            old = mine if type(mine) is type(given) else {}
            return _refill(mine, given, [(key, self.filled(old.get(key), part)) for key, part in parts])
        if type(given) in _ROWS:
            old = list(mine) if type(mine) is type(given) and len(mine) == len(given) else [None] * len(given)
            return _refill(mine, given, given if _plain(given) else list(map(self.filled, old, given)))
        return self._known.parameters[given.name] if isinstance(given, ParameterName) else given

    def _tensor(self, mine: Any, given: Tensor) -> Tensor:
        own = type(mine) is Tensor and not self._known.holds(mine)
        filled: Tensor = in_place(mine if own else None, given.to(mine.device) if own else given)
        return filled if filled is mine else filled.clone()


def _array(mine: Any, given: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    fits = type(mine) is np.ndarray and (mine.shape, mine.dtype) == (given.shape, given.dtype)
    if not fits or not mine.flags.writeable:
        return given.copy()
    mine[...] = given
    return mine  # type: ignore[no-any-return]


def like(container: Any, parts: Iterable[Any]) -> Any:
    """A container of the same kind with these parts."""
    if type(container) is defaultdict:
        return defaultdict(container.default_factory, parts)
    if type(container) is deque:
        return deque(parts, container.maxlen)
    # A Counter of pairs would count them.
    return type(container)(dict(parts) if type(container) is Counter else parts)


def with_leaves(value: Any, leaf: Callable[[LeafPath, Any], Any], path: LeafPath = ()) -> Any:
    """A sent value with `leaf` of each tensor, array and constant in it and its path, in the same order each time.

    Args:
        path: that of the value itself.
    """
    if type(value) in _DICTS:
        return like(value, [(key, with_leaves(part, leaf, (*path, key))) for key, part in value.items()])
    if type(value) in _ROWS and type(value) is not set and not _plain(value):
        return like(value, [with_leaves(part, leaf, (*path, place)) for place, part in enumerate(value)])
    return leaf(path, value)


def _refill(mine: Any, given: Any, parts: Any) -> Any:
    new = like(given, parts)
    if type(mine) is not type(given) or isinstance(mine, tuple):
        return new
    mine.clear()
    fill: Callable[[Any], Any] = mine.extend if isinstance(mine, list | deque) else mine.update
    fill(new)
    return mine


def _storage(tensor: Tensor) -> int:
    """The address of its memory; 0 where it has none."""
    return tensor.untyped_storage().data_ptr() if tensor.layout is torch.strided else 0


def _memory(array: np.ndarray[Any, Any]) -> int:
    """The address of what has an array's memory: itself, or that of which it is a view."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return (
        _storage(array.base)
        if isinstance(array.base, Tensor)
        else id(array if array.base is None else array.base)
    )


def _plain(parts: Any) -> bool:
    """Whether it is a long row of fractions or texts."""
    return len(parts) >= MANY and set(map(type, parts)) <= {float, str, bool}


def _digest(value: bytes) -> bytes:
    return hashlib.blake2b(value, digest_size=16).digest()


def _refuse() -> NoReturn:
    raise Unsendable
