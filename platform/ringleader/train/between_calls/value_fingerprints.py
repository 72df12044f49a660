"""Short texts of values, cheap to make: two values that differ have different texts.

Left out are what training has anyway (registered objects and their tensors), what forward hooks leave of the newest
slice, functions, open files, data sets, and what each worker has of its own: its device, its working directory,
temporary files.
"""

import enum
import hashlib
import itertools
import os
import pickle
import random
import tempfile
from collections import deque
from collections.abc import Collection, Iterable, Mapping
from decimal import Decimal
from fractions import Fraction
from functools import cached_property
from pathlib import Path, PurePath
from types import FunctionType, GeneratorType
from typing import Any
from weakref import ReferenceType, ref

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from ringleader.program_text.current_line import BELOW
from ringleader.train.between_calls.boundaries import storages_of
from ringleader.train.between_calls.derived_weights import derived_of, values_now
from ringleader.train.between_calls.hook_outputs import outputs_of_hooks
from ringleader.train.between_calls.objects.iterator_places import place_in
from ringleader.train.between_calls.objects.library_objects import contents
from ringleader.train.between_calls.objects.value_kinds import kind_of, place_of_function
from ringleader.train.state.optimizers.served_state import ClosedState
from ringleader.train.state.parameters.tensor_fingerprint import fingerprint
from ringleader.train.state.parameters.tensor_version import version_of
from ringleader.train.state.training_state import TrainingState

MOST_BYTES = 64 << 20
"""The bound of all tensors and arrays read at one call; those unchanged since the last one do not count."""
MOST_ITEMS = 200
"""The number of items read from each end of a longer container, beside its length."""
MOST_DEPTH = 4
SHORT = 32
"""Characters up to which a text is kept as it is, for people to read; a longer one becomes a digest."""

_PLAIN = (
    *(type(None), bool, int, float, complex, bytes, range, slice, Decimal, Fraction),
    *(torch.dtype, torch.Size, itertools.count),
)
_TEMPORARY = tempfile.gettempdir() + os.sep
_Known = dict[int, tuple["ReferenceType[Tensor]", int, int, str]]


class ValueReader:
    """Reads values at one place of the program.

    Attributes:
        met_weights: the value that was read last holds a tensor of the models or optimizers.

    Args:
        known: texts of tensors read before; those that have not changed are not read again.
        most_bytes: the bound of all tensors and arrays that are read.
    """

    def __init__(self, held: TrainingState, known: _Known, most_bytes: int = MOST_BYTES) -> None:
        self.met_weights = False
        self._known = known
        self._left_bytes = most_bytes
        self._here = _here()
        self._alive = storages_of(held)  # an identity is another storage's once its own is gone
        self._storages = {storage._cdata for storage in self._alive}
        modules = (part for model in held.models for part in model.modules())
        optimizers = [optimizer for optimizer, _ in held.optimizers]
        groups = (group for optimizer in optimizers for group in optimizer.param_groups)
        registered = (*modules, *optimizers, *groups, *held.schedulers, *held.kept.values())
        # By its attributes too: an adapter gives a loop the optimizer under another class, with the same ones.
        attributes = map(vars, optimizers)
        kept = [part for part in held.kept.values() if isinstance(part, nn.Module)]
        derived = values_now(derived_of([*held.models, *kept]))
        left_out = (*registered, *attributes, *derived, *outputs_of_hooks(held.models))
        self._left_out = {id(part) for part in left_out}
        self._modules_kept = kept

    def text(self, value: Any) -> str | None:
        """The value's text; None where it is not compared, or cannot be read because its own code raises."""
        self.met_weights = False
        try:
            text = self._text(value, 0)
        except Exception:  # a program's object may do anything when it is iterated, measured or shown
            return None
        return None if text is None else _short(text)

    def kind(self, value: Any, passing: Collection[str] = ()) -> str | None:
        """The function, class or layer that the value is; None where that says nothing, see `kind_of`."""
        kind = None if self.is_left_out(value) else kind_of(value, passing)
        return None if kind is None else _short(kind)

    def shows_weights(self, value: Any) -> bool:
        """Whether the value is a numpy view of a registered tensor, or a list or dict that has one."""
        parts = list(value.values()) if isinstance(value, dict) else value
        parts = parts if isinstance(parts, list | tuple) else [parts]
        arrays = [part for part in _first(parts, MOST_ITEMS) if isinstance(part, np.ndarray)]
        spans = [(s.data_ptr(), s.nbytes()) for s in self._alive if s.device.type == "cpu"] if arrays else []
        return any(0 <= array.ctypes.data - begin < size for array in arrays for begin, size in spans)

    def _text(self, value: Any, depth: int) -> str | None:
        if self.is_left_out(value) or depth > MOST_DEPTH:
            return None
        text: str | None
        match value:
            case str() | PurePath():
                text = self._words(value)
            case _ if isinstance(value, _PLAIN):
                text = repr(value)
            case np.generic():
                text = f"{value.dtype} {value!r}"
            case Tensor():
                text = self._tensor(value)
            case np.ndarray():
                text = self._array(value)
            case ClosedState():
                text = None  # each member has another part of it
            case Mapping():
                # Copied at once: threads of the program may change it meanwhile.
                text = self._items([part for item in list(value.items()) for part in item], depth, "{}")
            case set() | frozenset():
                # The order of a set follows the seed of the process's hashes.
                text = self._items(sorted(value, key=repr), depth, "()")
            case list() | tuple() | deque():
                text = self._items(value, depth, "[]")
            case nn.Module() | Optimizer() | LRScheduler():
                text = self._text(value.state_dict(), depth)
            case _:
                text = self._other(value, depth)
        return text

    def _other(self, value: Any, depth: int) -> str | None:
        if isinstance(value, GeneratorType):
            return self._generator(value, depth)
        if isinstance(value, FunctionType):
            return place_of_function(value)
        held = contents(value)
        return _stand(value) if held is None else self._text(held, depth + 1)

    def is_left_out(self, value: Any) -> bool:
        """Whether the session has it, as a registered object or in a library's wrapper of a registered optimizer, or
        forward hooks left it."""
        # With servers the state behind a wrapper differs by member, as that of the optimizer itself does.
        if isinstance(value, Optimizer):
            wrapped = getattr(value, "optimizer", value)
            return not self._left_out.isdisjoint(
                (id(value), id(wrapped), id(getattr(wrapped, "__dict__", None)))
            )
        return id(value) in self._left_out

    def _words(self, value: str | PurePath) -> str | None:
        """The text of a string or path, as seen from the working directory, of which each worker has a copy; None for a
        temporary file."""
        text = str(value)
        if self._here in text:
            return repr(text.replace(self._here, "."))
        return None if text.startswith(_TEMPORARY) else repr(value)

    def _items(self, values: Any, depth: int, around: str) -> str:
        count = len(values)
        if count > 2 * MOST_ITEMS:
            values = [*_first(values, MOST_ITEMS), *_first(reversed(values), MOST_ITEMS)]
        # A part that is not compared counts by its type, so that another kind of value is seen.
        told = (self._text(value, depth + 1) or f"<{_name(value)}>" for value in values)
        return f"{around[0]}{', '.join(told)}{around[1]}" + (f" of {count}" if count > 2 * MOST_ITEMS else "")

    def _generator(self, generator: "GeneratorType[Any, Any, Any]", depth: int) -> str | None:
        """The place and the variables of a generator of the program that is under way."""
        # Asked first: of one that has ended no frame is left, and the session's own say nothing of the program.
        if generator.gi_code.co_filename.startswith(BELOW):
            return None
        if generator.gi_running:
            return None  # it goes over the batches of this very call
        frame = generator.gi_frame
        if frame is None:
            return "ended"
        return f"{frame.f_lasti}{self._items(list(frame.f_locals.values()), depth, '()')}"

    def _is_compared(self, tensor: Tensor) -> bool:
        """Whether it is no part of what a step commits, and can be read."""
        # A subclass may run code of its own where it is read, or have no memory.
        if tensor.layout is not torch.strided or tensor.is_meta or type(tensor) not in (Tensor, nn.Parameter):
            return False
        storage = tensor.untyped_storage()
        held = storage._cdata in self._storages
        self.met_weights |= held
        return not held and storage not in self._kept

    @cached_property
    def _kept(self) -> set[torch.UntypedStorage]:
        """The storages of what kept modules save: `for p in teacher.parameters()` leaves one in a variable."""
        tensors = (part for module in self._modules_kept for part in module.state_dict().values())
        return {t.untyped_storage() for t in tensors if isinstance(t, Tensor) and t.layout is torch.strided}

    def _tensor(self, tensor: Tensor) -> str | None:
        if not self._is_compared(tensor):
            return None
        version = version_of(tensor)
        known = self._known.get(id(tensor))
        # The weak reference has to agree: an id is another tensor's once its own is gone.
        if known and known[0]() is tensor and known[1:3] == (version, tensor.data_ptr()):
            return known[3]
        if not self._affords(tensor.nbytes):
            return None
        text = (
            repr(tensor.item())
            if tensor.numel() == 1 and not tensor.is_complex()
            else fingerprint(tensor.detach().cpu()).hex()
        )
        self._known[id(tensor)] = (ref(tensor), version, tensor.data_ptr(), text)
        return text

    def _array(self, array: np.ndarray) -> str | None:
        # The bytes of an array of objects are addresses, which differ in every process.
        if array.dtype.hasobject or not self._affords(array.nbytes):
            return None
        return f"{array.dtype}{array.shape}" + _digest(np.ascontiguousarray(array).tobytes())

    def _affords(self, size_bytes: int) -> bool:
        if size_bytes > self._left_bytes:
            return False
        self._left_bytes -= size_bytes
        return True


def _short(text: str) -> str:
    if len(text) <= SHORT:
        return text
    # A text may hold half a surrogate pair, as the name of a file does that is not UTF-8.
    return hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=8).hexdigest()


def _here() -> str:
    """The working directory; the null device once it is gone, as under a worker that is killed."""
    try:
        return str(Path.cwd())
    except OSError:
        return os.devnull


def _name(value: Any) -> str:
    """The name of the value's type, as checkpoints of 0.1 have it too."""
    name = type(value).__name__
    return name.removesuffix("State") if isinstance(value, ClosedState) else name


def is_generator(value: Any) -> bool:
    """Whether the value is a generator of random numbers."""
    return isinstance(value, torch.Generator | random.Random | np.random.Generator | np.random.RandomState)


def _stand(value: Any) -> str | None:
    """A text for the state of a generator of random numbers, of an iterator, or for a name of an enumeration; None for
    anything else."""
    if isinstance(value, torch.Generator):
        return _digest(value.get_state().numpy().tobytes())
    if isinstance(value, enum.Enum):
        return str(value)
    # SystemRandom has no state: `getstate` raises.
    if isinstance(value, random.Random) and type(value) is not random.SystemRandom:
        return _digest(pickle.dumps(value.getstate()))
    if isinstance(value, np.random.Generator):
        return _digest(repr(value.bit_generator.state).encode())
    if isinstance(value, np.random.RandomState):
        return _digest(pickle.dumps(value.get_state()))
    return place_in(value)


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=8).hexdigest()


def _first(values: Iterable[Any], count: int) -> list[Any]:
    return [value for value, _ in zip(values, range(count), strict=False)]
