"""Whether a dataset has changed: processes that load go on with a copy made when they started, so a program's later
changes of a dataset, its `collate` or objects that these use have to be seen.

Objects are read; none of their code runs. The reading covers attributes, lists, dicts and sets at any depth, tensors
and arrays by their bits, functions with their code, defaults, closures and the globals that they name, and classes and
modules of the user's own.
"""

import enum
import functools
import hashlib
import marshal
import random
import sys
import sysconfig
import types
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import date, time, timedelta
from decimal import Decimal
from itertools import islice
from pathlib import PurePath
from re import Pattern
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ringleader.data import FileDataset
from ringleader.train.between_calls.objects.value_kinds import place_of_function
from ringleader.train.state.parameters.tensor_fingerprint import fingerprint

MANY = 20_000
"""The most objects that are read, in some 50 ms; a list of nothing but numbers and texts counts as one."""
MANY_SEARCHED = 2_000
"""Of objects that are searched at the begin of each loop, in some 5 ms."""
PRINT_BYTES = 16
_PLAIN = (type(None), bool, int, float, complex, str, bytes)
_HOLDERS = (list, tuple, dict, set, frozenset)
_FIXED = (
    *(range, slice, type(...), enum.Enum, PurePath, date, time, timedelta, Decimal, Pattern),
    *(np.dtype, torch.dtype, torch.device, types.GenericAlias, types.UnionType),
)
_NAMED = (
    *(types.BuiltinFunctionType, types.WrapperDescriptorType, types.MethodDescriptorType),
    *(types.MemberDescriptorType, types.GetSetDescriptorType, types.MethodWrapperType),
)
_GENERATORS = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)
"""Generators, whose state does not count: they start anew for each slice."""
_INSTALLED = tuple(sysconfig.get_paths()[kind] for kind in ("stdlib", "platstdlib", "purelib", "platlib"))
_HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE: set where a class statement made it


def likeness(*roots: Any) -> bytes | None:
    """A digest that is equal for objects that give the same rows; None: they hold something whose changes are unseen.

    Objects that have no value of their own to read, as a table of pyarrow, are told apart by their place in memory: the
    caller keeps `roots`.
    """
    try:
        return _Look().of(roots)
    except Exception:  # of whatever kind of object: it cannot be read
        return None


def reaches(roots: Iterable[Any], wanted: Callable[[Any], bool]) -> bool:
    """Whether an object is wanted that `likeness` would read, among the MANY_SEARCHED nearest ones."""
    return _Search(wanted).found(roots)


class _Unseen(Exception):
    """The contents of an object cannot be read."""


class _Look:
    """One walk over objects, each read once."""

    def __init__(self) -> None:
        self._digest = hashlib.blake2b(digest_size=PRINT_BYTES)
        self._seen: dict[int, int] = {}
        self._kept: list[Any] = []  # no object may get another one's place meanwhile

    def of(self, roots: Iterable[Any]) -> bytes:
        left = list(roots)[::-1]
        while left:
            part = left.pop()
            if isinstance(part, _PLAIN):
                self._say(part)
            elif id(part) in self._seen:
                # By its number in this walk: data sets that are alike have other addresses.
                self._say("seen", self._seen[id(part)])
            else:
                # Before it is read: it may hold itself.
                self._keep(part)
                held = list(self._read(part))
                # With how many there are: else a list in a list might read like one list.
                self._say(type(part).__module__, type(part).__qualname__, len(held))
                left += held[::-1]
        return self._digest.digest()

    def _keep(self, part: Any) -> None:
        if len(self._kept) == MANY:
            raise _Unseen
        self._seen[id(part)] = len(self._kept)
        self._kept.append(part)

    def _say(self, *words: Any) -> None:
        self._digest.update(repr(words).encode(errors="surrogatepass"))

    def _read(self, part: Any) -> Iterable[Any]:  # noqa: PLR0911 - one line per kind of object
        """Add an object to the digest; returns the objects in it, which are still to be read."""
        match part:
            case Tensor() | np.ndarray() | np.generic():
                return self._array(part)
            case FileDataset():  # files do not change
                self._say(FileDataset.files(part).digest, FileDataset.names(part))
                return (part.decode,)
            case types.FunctionType() | types.CodeType() | types.MethodType() | functools.partial():
                return self._callable(part)
            case type() | types.ModuleType():
                return self._namespace(part)
        if isinstance(part, (*_FIXED, *_NAMED, *_GENERATORS)):
            self._say("" if isinstance(part, _GENERATORS) else repr(part))
            return ()
        if type(part) in _HOLDERS:
            with suppress(ValueError):  # it holds more than plain values
                # Version 2: later ones write references, which depend on who else holds a value.
                self._digest.update(marshal.dumps(part, 2))
                return ()
        return self._object(part)

    def _array(self, part: Any) -> Iterable[Any]:
        self._say(part.dtype, tuple(part.shape))
        if isinstance(part, np.memmap) and part.mode == "r":
            self._say(part.filename, part.offset, part.strides)
        elif isinstance(part, Tensor):
            if part.layout is not torch.strided or part.is_meta:
                raise _Unseen
            self._digest.update(fingerprint(part.detach().cpu()))
            return _sorted(vars(part))
        elif part.dtype.hasobject:
            return part.ravel().tolist()  # type: ignore[no-any-return]
        else:
            with warnings.catch_warnings(action="ignore"):  # of one that must not be written to
                values = torch.from_numpy(np.ascontiguousarray(part).reshape(-1).view(np.uint8))
            self._digest.update(fingerprint(values))
        return ()

    def _callable(self, part: Any) -> Iterable[Any]:
        match part:
            case types.FunctionType() if not _is_the_users(part.__module__):
                return (part.__module__, part.__qualname__)
            case types.FunctionType():
                names = {name for name in _names(part.__code__) if name in part.__globals__}
                used = _sorted({name: part.__globals__[name] for name in names})
                # An empty cell, as of a variable that is set later, has no contents to read.
                cells = [cell.cell_contents for cell in part.__closure__ or () if cell != types.CellType()]
                return (part.__code__, part.__defaults__, part.__kwdefaults__, *cells, *used)
            case types.CodeType():
                return (part.co_code, *part.co_names, *part.co_consts)
            case types.MethodType():
                return (part.__self__, part.__func__)
        return (part.func, part.args, part.keywords)

    def _namespace(self, part: Any) -> Iterable[Any]:
        """The definitions of the user's own classes; the plain values of installed ones and of modules."""
        if isinstance(part, types.ModuleType):
            own = vars(part) if _is_the_users(part.__name__) else {}
            plain = {n: v for n, v in own.items() if n[:2] != "__" and isinstance(v, (*_PLAIN, *_HOLDERS))}
            return (part.__name__, *_sorted(plain), *_sorted(self._functions(own)))
        users = _is_the_users(part.__module__)
        kinds = object if users else _PLAIN
        defined = {
            name: value
            for name, value in vars(part).items()
            if isinstance(value, kinds) and (name[:2] != "__" or isinstance(value, types.FunctionType))
        }
        defined.pop("_abc_impl", None)  # caches of an ABC, which change with every isinstance
        return (part.__module__, part.__qualname__, *part.__bases__, *_sorted(defined))

    def _functions(self, own: Mapping[str, Any]) -> dict[str, Any]:
        """Those of a module, each by which one it is: a program may have put another one in its place."""
        return {
            name: place_of_function(each)
            for name, each in own.items()
            if isinstance(each, types.FunctionType)
        }

    def _object(self, part: Any) -> Iterable[Any]:
        kind = type(part)
        if kind.__module__.partition(".")[0] == "pyarrow":  # nothing of that changes
            self._say(id(part))
            return ()
        match part:
            case property():
                return (part.fget,)
            case staticmethod() | classmethod():
                return (part.__func__,)
            case Mapping():
                held = [item for pair in part.items() for item in pair]
            case list() | tuple() | set() | frozenset() | deque():
                held = list(part)
            case _ if _hides(kind):
                raise _Unseen
            case _:
                held = []
        return (kind, *held, *_sorted(_attributes(part)))


class _Search(_Look):
    """A walk from the nearest objects on, which ends where one is wanted. It reads no values of arrays, and goes on
    behind what cannot be read."""

    def __init__(self, wanted: Callable[[Any], bool]) -> None:
        super().__init__()
        self._wanted = wanted

    def found(self, roots: Iterable[Any]) -> bool:
        left = deque(roots)
        while left and len(self._kept) < MANY_SEARCHED:
            part = left.popleft()
            if isinstance(part, _PLAIN) or id(part) in self._seen:
                continue
            if self._wanted(part):
                return True
            self._keep(part)
            with suppress(Exception):  # of whatever kind of object: it cannot be read
                left += islice(self._read(part), MANY_SEARCHED)
        return False

    def _read(self, part: Any) -> Iterable[Any]:
        if type(part) in _HOLDERS:
            held: Iterable[Any] = part.values() if isinstance(part, dict) else part
            return held
        return super()._read(part)

    def _array(self, part: Any) -> Iterable[Any]:
        return ()

    def _functions(self, own: Mapping[str, Any]) -> dict[str, Any]:
        return {name: each for name, each in own.items() if isinstance(each, types.FunctionType)}


def _attributes(part: Any) -> dict[str, Any]:
    slots = {n: getattr(part, n) for kind in type(part).__mro__ for n in _slots(kind) if hasattr(part, n)}
    return slots | getattr(part, "__dict__", {})


def _slots(kind: type) -> list[str]:
    names = vars(kind).get("__slots__", ())
    names = [names] if isinstance(names, str) else list(names)
    return [name for name in names if name not in ("__dict__", "__weakref__")]


def _hides(kind: type) -> bool:
    """Whether it may hold more than attributes, because a part of its class is not written in Python."""
    return any(not base.__flags__ & _HEAP_TYPE for base in kind.__mro__ if base is not object)


def _sorted(values: Mapping[str, Any]) -> list[Any]:
    return [item for name in sorted(values) for item in (name, values[name])]


def _names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            yield from _names(const)


@functools.cache
def _is_the_users(module: str) -> bool:
    """Whether it is neither installed nor of Python itself."""
    file = getattr(sys.modules.get(module), "__file__", None)
    if module == "__main__" or file is None:
        return module == "__main__"
    return not file.startswith(_INSTALLED) and module.partition(".")[0] != "ringleader"
