"""Random streams that depend on what is computed, never on who computes it: the global ones, and own generators.

A dataset with a `numpy.random.Generator`, a transform with a `torch.Generator`: their numbers would depend on which
rows and slices the same process had before. They start anew where the global streams do within a session call, and
behind it go on from where they stood before.
"""

import hashlib
import random
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from enum import Enum
from functools import cache, lru_cache, partial
from itertools import chain, islice
from types import CellType, CodeType, FunctionType, MemberDescriptorType, MethodType, ModuleType
from typing import Any, TypeGuard

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ringleader.train.between_calls.objects.program_objects import of_program

Generator = torch.Generator | np.random.Generator | np.random.RandomState | random.Random
MANY = 100
"""The most objects that are looked at, in 0.3 ms at most: a longer list is taken for rows."""
ATOMS = (str, bytes, int, float, type(None))
_Path = tuple[()] | tuple["_Path", Any]
"""Of a part: that of its owner, and its name there."""


class _Kind(Enum):
    """What a class is to a search for generators."""

    GENERATOR, ITERATOR, LIST, DICT, PARTIAL, METHOD, FUNCTION, ATTRIBUTES, LEADS_NOWHERE = range(9)


_ENDS = frozenset({_Kind.GENERATOR, _Kind.ITERATOR, _Kind.LEADS_NOWHERE})
"""The kinds behind which a search does not look."""
_GLOBAL: tuple[Generator, ...] = (torch.default_generator, random._inst, np.random.mtrand._rand)
_HOLDERS: dict[type, _Kind] = {
    **{list: _Kind.LIST, tuple: _Kind.LIST, deque: _Kind.LIST, dict: _Kind.DICT},
    **{partial: _Kind.PARTIAL, MethodType: _Kind.METHOD, FunctionType: _Kind.FUNCTION},
}
_ITERATES = ("builtins", "itertools")
"""The modules whose iterators are looked for."""


def key(seed: int, *parts: int | str) -> int:
    """A 64-bit seed for the stream named by `parts`, the same in every process."""
    text = "/".join([str(seed), *map(str, parts)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def seed_all(seed: int, *parts: int | str) -> None:
    """Start torch's, numpy's and random's global streams at the stream named by `parts`."""
    value = key(seed, *parts)
    # A step starts several streams. `torch.manual_seed` writes down the call stack for every kind of device that is not
    # there: 0.1 to 0.3 ms.
    torch.default_generator.manual_seed(value)
    if _devices() == "cuda":
        torch.cuda.manual_seed_all(value)
    elif _devices():
        torch.manual_seed(value)
    # The legacy global numpy generator is what datasets and transforms draw from; it takes 32 bits.
    np.random.seed(value & 0xFFFF_FFFF)
    random.seed(value)


def seed_own(generators: Iterable[tuple[str, Generator]], seed: int, *parts: int | str) -> None:
    """Start these generators at the stream named by `parts` and by the path to each."""
    for path, generator in generators:
        _start(generator, key(seed, *parts, path))


@contextmanager
def resumed_behind(generators: Iterable[tuple[str, Generator]]) -> Iterator[None]:
    """Have these generators go on behind the block as if it had not been: a member starts them anew for each slice that
    it has in it, and those of others elsewhere."""
    put_back = [_stand(generator) for _, generator in generators]
    try:
        yield
    finally:
        for put in put_back:
            put()


def own_generators(owners: Any) -> Iterator[tuple[str, Generator]]:
    """The generators in attributes, lists and dicts at any depth, the nearest first, each once under the path to it."""
    return _own(owners, _Kind.GENERATOR)


def own_iterators(owners: Any) -> Iterator[tuple[str, Iterator[Any]]]:
    """The iterators of Python itself, of `itertools`, and generators that yield, found in the same way."""
    return _own(owners, _Kind.ITERATOR)


def _own(owners: Any, wanted: _Kind) -> Iterator[tuple[str, Any]]:
    seen = {id(owners)}
    left: deque[tuple[_Path, Any]] = deque([((), owners)])
    while left:
        path, part = left.popleft()
        kind = _kind(part.__class__)
        if kind is wanted:
            yield _text(path), part
        for name, held in _held_by(part, kind):
            if len(seen) == MANY:
                break
            # Numbers and texts are left out: MANY of them would end the search.
            if id(held) not in seen and not isinstance(held, ATOMS):
                seen.add(id(held))
                left.append(((path, name), held))


def generators_of(models: Iterable[nn.Module]) -> list[tuple[str, Generator]]:
    """The generators that the modules hold in attributes. A large network takes 2 ms: not for every slice."""
    named = ((f"{n}.{name}", part) for n, model in enumerate(models) for name, part in model.named_modules())
    return [
        (f"{name}.{attribute}", value)
        for name, part in named
        for attribute, value in vars(part).items()
        if _is_generator(value)
    ]


def generators_of_optimizers(optimizers: Iterable[Optimizer]) -> list[tuple[str, Generator]]:
    """The generators that optimizers hold in attributes and in the options of their parameter groups."""
    return [
        (f"{n}.{name}", value)
        for n, optimizer in enumerate(optimizers)
        for number, options in enumerate([vars(optimizer), *optimizer.param_groups])
        for name, value in ((f"{number}.{key}", option) for key, option in options.items())
        if _is_generator(value)
    ]


@cache
def _devices() -> str:
    """The kind of this machine's devices; empty where it has none."""
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    return accelerator.type if accelerator is not None else ""


def _text(path: _Path) -> str:
    return f"{_text(path[0])}.{path[1]}" if path else ""


@lru_cache(maxsize=4096)
def _kind(kind: type) -> _Kind:
    """How a search goes on from objects of this class. Of each class once: each slice begins with a search, and to ask
    whether an object is a `torch.Generator` runs torch's own lines."""
    if issubclass(kind, Generator):
        return _Kind.GENERATOR
    for base, found in _HOLDERS.items():
        if issubclass(kind, base):
            return found
    if kind.__module__ in _ITERATES and hasattr(kind, "__next__"):
        return _Kind.ITERATOR
    # Classes and modules lead to everything, and arrays of numbers to nothing.
    nowhere = issubclass(kind, type | ModuleType | Tensor | np.ndarray)
    return _Kind.LEADS_NOWHERE if nowhere else _Kind.ATTRIBUTES


def _is_generator(value: Any) -> TypeGuard[Generator]:
    # By class: every update asks this of every option of every optimizer.
    return _kind(value.__class__) is _Kind.GENERATOR


def _held_by(part: Any, kind: _Kind) -> Iterable[tuple[Any, Any]]:
    if kind in _ENDS:
        return ()
    if kind is _Kind.LIST:
        return enumerate(islice(part, MANY))
    if kind is _Kind.PARTIAL:
        return [*enumerate((part.func, *part.args)), *part.keywords.items()]
    if kind is _Kind.METHOD:
        return [("self", part.__self__)]
    if kind is _Kind.FUNCTION:
        return _in_function(part)
    return islice(part.items(), MANY) if kind is _Kind.DICT else _attributes(part)


def _attributes(part: Any) -> Iterable[tuple[str, Any]]:
    """The values in attributes and slots of an object, and the generators and iterators of its class."""
    held = getattr(part, "__dict__", None)
    # A mapping in the place of the dict, as a proxy has, is not looked at.
    own = islice(held.items(), MANY) if isinstance(held, dict) else ()
    kind: type = part.__class__
    slots = ((name, getattr(part, name)) for name in _slots(kind) if hasattr(part, name))
    return chain(own, slots, _found(_places_of(kind)))


@lru_cache(maxsize=4096)
def _slots(kind: type) -> tuple[str, ...]:
    if not of_program(kind.__module__):
        return ()
    members = (item for each in kind.__mro__ for item in vars(each).items())
    return tuple(name for name, member in members if isinstance(member, MemberDescriptorType))


def _in_function(function: FunctionType) -> list[tuple[str, Any]]:
    """The generators and iterators in its closure, its defaults and the globals that it names, and the functions that
    it is put around; what else is there leads to all of the program."""
    names, cells = function.__code__.co_freevars, function.__closure__ or ()
    # An empty cell, of a name not assigned yet, raises on cell_contents.
    held = [(name, cell.cell_contents) for name, cell in zip(names, cells, strict=True) if cell != CellType()]
    held += [(f"{place}", value) for place, value in enumerate(function.__defaults__ or ())]
    held += (function.__kwdefaults__ or {}).items()
    own = [(name, value) for name, value in held if _is_own(value) or type(value) is FunctionType]
    return own + list(_found(_places(function.__code__, function.__module__)))


_Place = tuple[Mapping[str, Any], str]


def _found(places: Iterable[_Place]) -> Iterator[tuple[str, Any]]:
    return ((f"::{name}", where[name]) for where, name in places if _is_own(where.get(name)))


@lru_cache(maxsize=4096)
def _places_of(kind: type) -> tuple[_Place, ...]:
    """The places of generators and iterators of a class of the program: its attributes, and globals that its methods
    name."""
    if not of_program(kind.__module__):
        return ()
    found: list[_Place] = []
    for each in (each for each in kind.__mro__ if of_program(each.__module__)):
        for name, value in vars(each).items():
            if _is_own(value):
                found.append((vars(each), name))
            elif isinstance(value, FunctionType):
                found += _places(value.__code__, each.__module__)
    return tuple(found)


@lru_cache(maxsize=4096)
def _places(code: CodeType, module: str, depth: int = 2) -> tuple[_Place, ...]:
    """The globals that a function of the program names, and those that the functions do which it calls."""
    if not of_program(module):
        return ()
    where = vars(sys.modules[module])
    found: list[_Place] = []
    for name in code.co_names:
        value = where.get(name)
        if _is_own(value):
            found.append((where, name))
        elif isinstance(value, FunctionType) and depth:
            found += _places(value.__code__, value.__module__, depth - 1)
    return tuple(found)


def _is_own(value: Any) -> bool:
    """Whether it is a generator, and none of the global ones, or an iterator."""
    kind = _kind(value.__class__)
    return kind is _Kind.ITERATOR or (kind is _Kind.GENERATOR and not any(value is each for each in _GLOBAL))


def _start(generator: Generator, value: int) -> None:
    match generator:
        case torch.Generator():
            generator.manual_seed(value)
        case np.random.Generator():
            # It cannot be seeded again: it takes the state of a new one.
            generator.bit_generator.state = type(generator.bit_generator)(value).state
        case np.random.RandomState():
            generator.seed(value & 0xFFFF_FFFF)  # the legacy generator takes 32 bits
        case random.Random():
            generator.seed(value)


def _stand(generator: Generator) -> Callable[[], object]:
    """What puts the generator back to where it stands now."""
    match generator:
        case torch.Generator():
            return partial(generator.set_state, generator.get_state())
        case np.random.Generator():
            return partial(setattr, generator.bit_generator, "state", generator.bit_generator.state)
        case np.random.RandomState():
            return partial(generator.set_state, generator.get_state())
        case random.SystemRandom():  # the machine's own, which stands nowhere
            return lambda: None
        case random.Random():
            return partial(generator.setstate, generator.getstate())
