"""The objects of a program that are in reach of its variables, and the values in their attributes.

Followed are objects of the program's own classes, with `__dict__` or slots, namespaces, lists and dicts of such,
models, the program's classes and files, and what its functions hold: closures, defaults, attributes. No line of the
program runs for it.
"""

import argparse
import inspect
import sys
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from inspect import unwrap
from itertools import islice
from types import CellType, FunctionType, MemberDescriptorType, MethodType, ModuleType, SimpleNamespace
from typing import Any, cast

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import ConcatDataset, Subset

from ringleader.program_text.current_line import BELOW, INSTALLED, PACKAGES
from ringleader.program_text.loop_bodies import text_of
from ringleader.program_text.program_scope import Key, ProgramScope
from ringleader.program_text.variables.apart import plain

MOST_DEPTH = 4
MANY = 64
"""The number of items of a list or a dict that are followed."""
MOST_OBJECTS = 2000
_PLAIN = (type(None), bool, int, float, complex, str, bytes, Tensor)
_OF_TORCH = frozenset(vars(nn.Module()))
_NAMESPACES = (SimpleNamespace, argparse.Namespace)
_DEFINED = (classmethod, staticmethod)


@dataclass(frozen=True, slots=True)
class ProgramObject:
    """An object, and the way to it.

    Attributes:
        name: as a finding tells it: `trainer.meters['loss']`.
        keys: the variables on the way, the first one that of a function or a file.
    """

    name: str
    keys: tuple[Key, ...]
    value: Any


def is_users(value: Any) -> bool:
    """Whether the value is an object, with attributes, of a class of the program's own."""
    kind: Any = type(value)
    plain = not isinstance(value, nn.Module | type) and (hasattr(value, "__dict__") or bool(_slots(kind)))
    return plain and of_program(kind.__module__)


def of_program(module: str) -> bool:
    """Whether the file of a module is one of the program's own."""
    file = file_of(module)
    return bool(file) and not file.startswith((*PACKAGES, *INSTALLED))


def file_of(module: str) -> str:
    """The file of an imported module; empty where it has none."""
    return str(getattr(sys.modules.get(module), "__file__", "") or "")


def attributes_of(value: Any) -> dict[str, Any]:
    """The attributes of an object: of a class those that are no definitions in it, of a file the globals that its
    functions change, of a model none of torch's own."""
    if isinstance(value, type):
        return {n: v for n, v in vars(value).items() if not (n.startswith("__") or _is_defined(v, value))}
    if isinstance(value, ModuleType):
        text = text_of(file_of(value.__name__))
        changed: Collection[str] = () if text is None else text.changing_globals
        return {name: vars(value)[name] for name in changed if name in vars(value)}
    # Copied at once: threads of the program may change it meanwhile.
    own, kind = dict(getattr(value, "__dict__", {})), cast(Any, type(value))
    for name, slot in _slots(kind).items():
        try:
            own[name] = slot.__get__(value)
        except AttributeError:  # nothing is assigned yet
            continue
    if not isinstance(value, nn.Module):
        return own
    unsaved = {name: value._buffers.get(name) for name in value._non_persistent_buffers_set}
    return {n: v for n, v in own.items() if n not in _OF_TORCH} | unsaved


def values_of(value: Any) -> Iterator[tuple[str, Key, Any]]:
    """The values that an object has, each with what is written behind its name for it, and its key."""
    if isinstance(value, FunctionType):
        yield from ((f":{name}", _key_in(value, name), part) for name, part in held_by(value))
    globals_of_a_file = isinstance(value, ModuleType)
    for name, part in attributes_of(value).items():
        yield f".{name}", ("", name if globals_of_a_file else f".{name}"), part


def held_by(function: FunctionType) -> list[tuple[str, Any]]:
    """What a function of the program has in its closure and its defaults."""
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    # An empty cell, of a name not assigned yet, raises on cell_contents; it equals a fresh cell.
    around = [(name, cell.cell_contents) for name, cell in cells if cell != CellType()]
    if not (function.__defaults__ or function.__kwdefaults__):
        return around
    given = inspect.signature(function, follow_wrapped=False).parameters
    return around + [(name, each.default) for name, each in given.items() if each.default is not each.empty]


def _key_in(function: FunctionType, name: str) -> Key:
    """The key of what a function has under that name."""
    text = text_of(function.__code__.co_filename)
    scope = ProgramScope() if text is None else text.scope_at(function.__code__.co_firstlineno)
    return scope.key(name)


def files_of(value: Any) -> Iterator[str]:
    """The files of the program that may use what an object has: its own, and those of its class and bases."""
    match value:
        case FunctionType():
            yield value.__code__.co_filename
        case ModuleType():
            yield file_of(value.__name__)
        case _:
            kind: Any = value if isinstance(value, type) else type(value)
            yield from (file_of(each.__module__) for each in kind.__mro__ if of_program(each.__module__))


def is_within(value: Any, running: Collection[str]) -> bool:
    """Whether the value is a function that was made in one of these functions, by their qualified names."""
    if not isinstance(value, FunctionType):
        return False
    return value.__qualname__.rpartition(".<locals>.")[0] in running


def objects_in(
    variables: Iterable[tuple[Key, Any]],
    left_out: Callable[[Any], bool],
    *,
    depth: int = MOST_DEPTH,
    seen: set[int] | None = None,
) -> Iterator[ProgramObject]:
    """The objects in reach of these variables, each once, the nearest first.

    Args:
        left_out: whether an object, and what is behind it, is none of this search's concern.
        seen: objects that were met before, by identity; those met here are added.
    """
    seen = set() if seen is None else seen
    left = deque((ProgramObject(plain(key[1]), (key,), value), depth) for key, value in variables)
    while left and len(seen) < MOST_OBJECTS:
        each, more = left.popleft()
        if isinstance(each.value, _PLAIN) or id(each.value) in seen or left_out(each.value):
            continue
        seen.add(id(each.value))
        if has_attributes(each.value):
            yield each
        if more:
            left += ((inside, more - 1) for inside in _inside(each))


def has_attributes(value: Any) -> bool:
    """Whether it is an object whose attributes are the program's."""
    match value:
        case Optimizer() | LRScheduler():
            return False
        case nn.Module():
            return True
        case FunctionType():
            # A decorator's function has the name and the module of what it decorates.
            return not value.__code__.co_filename.startswith(BELOW)
        case type():
            return of_program(value.__module__)
        case ModuleType():
            return of_program(value.__name__)
    return isinstance(value, _NAMESPACES) or is_users(value)


def _inside(each: ProgramObject) -> Iterator[ProgramObject]:
    """What an object, a container or a function holds."""
    name, keys, value = each.name, each.keys, each.value
    held: Iterable[tuple[str, Any]] = ()
    match value:
        case FunctionType() if has_attributes(value):
            # Of a function that is only called no value flows: what it has may matter by a name of its own.
            for told, part in held_by(value):
                yield ProgramObject(told, (*keys, _key_in(value, told)), part)
        case FunctionType():
            held = [(name, unwrap(value))]
        case MethodType():
            held = ((type(value.__self__).__name__, value.__self__), (name, value.__func__))
        case partial():
            held = ((name, part) for part in (value.func, *value.args, *value.keywords.values()))
        case dict():
            held = ((f"{name}[{key!r}]", part) for key, part in islice(list(value.items()), MANY))
        case list() | tuple() | deque():
            held = ((f"{name}[{number}]", part) for number, part in enumerate(islice(list(value), MANY)))
        case Subset():
            held = ((f"{name}.dataset", value.dataset),)
        case ConcatDataset():
            held = ((f"{name}.datasets[{number}]", part) for number, part in enumerate(value.datasets))
        case nn.Module():
            held = ((f"{name}.{child}", part) for child, part in value.named_children())
    yield from (ProgramObject(told, keys, part) for told, part in held)
    # Torch's own layers hold nothing of the program's.
    layer = isinstance(value, nn.Module) and type(value).__module__.startswith("torch.")
    if has_attributes(value) and not isinstance(value, ModuleType) and not layer:
        for attribute, part in attributes_of(value).items():
            yield ProgramObject(f"{name}.{attribute}", (*keys, ("", f".{attribute}")), part)


@lru_cache(maxsize=1024)
def _slots(kind: type) -> dict[str, MemberDescriptorType]:
    return {
        name: member
        for each in kind.__mro__
        for name, member in vars(each).items()
        if isinstance(member, MemberDescriptorType) and not name.startswith("__")
    }


def _is_defined(value: Any, kind: type) -> bool:
    """Whether a class has it by its definition: a method, a property, another class. Not a function or a class from
    elsewhere, which a program may have put there."""
    inside = value.__func__ if isinstance(value, _DEFINED) else value
    if isinstance(inside, FunctionType | type):
        return inside.__qualname__.startswith(f"{kind.__qualname__}.")
    return inspect.isdatadescriptor(value)
