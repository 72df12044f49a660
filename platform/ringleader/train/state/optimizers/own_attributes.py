"""What optimizers keep in attributes of their own, outside of `state`: counts, arrays, tensors, states of optimizers in
them. It is committed beside their states: peers and checkpoints bring it.

Only what has changed since the optimizer was registered travels: what its `__init__` made each member has, and some of
that is its own (a rank, a clock). It is all or nothing: where something that has changed cannot be sent (a function, a
view of weights), a flag or a count beside it would say that it is there. What was deleted travels as such.
"""

import copy
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from ringleader.checkpoint.pieces import take_apart
from ringleader.program_text.current_line import BELOW
from ringleader.train.state.optimizers.attribute_values import (
    DeletedAttribute,
    FilledValues,
    KnownObjects,
    SentValues,
    Unsendable,
    is_leaf,
    mark,
)

ATTRIBUTES = "attributes"
"""The key beside `state` and `param_groups` under which they travel."""
MOST_DEPTH = 3
SMALL_BYTES = 1 << 16
"""Attributes of one optimizer up to this size are recorded between session calls."""
COMMITTED = frozenset(("state", "param_groups"))
_BARE = SGD([torch.zeros(1, dtype=torch.float32)])
OF_TORCH = frozenset((*vars(_BARE), "_opt_called", "step", "zero_grad")) - COMMITTED
"""Attributes that torch sets itself, and the methods that its schedules, and a session, put wrappers around."""

AttributePath = tuple[str, ...]
"""The names from the optimizer to the attribute, through optimizers that it wraps."""
AttributeValues = dict[AttributePath, Any]


@dataclass(frozen=True, slots=True)
class SeenAttribute:
    """An attribute as it was: the object that has it, its value, and the mark of that."""

    owner: Any
    value: Any
    mark: Any

    def changed(self, before: "SeenAttribute | None") -> bool:
        """Whether it is not what it was."""
        return before is None or before.mark != self.mark

    def changed_inside(self, before: "SeenAttribute | None") -> bool:
        """Whether it is another one inside. A number, tensor or array that is set anew is not."""
        anew = before is None or before.value is not self.value
        return self.changed(before) and not (anew and is_leaf(self.value))


class OwnAttributes:
    """The own attributes of one member's optimizers.

    Args:
        names: gives all parameters by name.
    """

    def __init__(self, names: Callable[[], Mapping[str, Tensor]]) -> None:
        self._names = names
        # Weak: a program that makes an optimizer anew in each epoch would keep all of them.
        self._first: WeakKeyDictionary[Optimizer, dict[AttributePath, _FirstValue]] = WeakKeyDictionary()

    def add(self, optimizer: Optimizer) -> None:
        """Note the attributes of an optimizer that is registered, unless they are known."""
        if optimizer not in self._first and not type(optimizer).__module__.startswith("torch."):
            known = KnownObjects(optimizer, {})
            self._first[optimizer] = {
                path: _FirstValue.of(value, known) for path, _, value in _attributes(optimizer, known)
            }

    def sent(self, optimizer: Optimizer) -> AttributeValues | None:
        """What travels: the changed attributes, with the live tensors in them; None where one cannot be sent."""
        if optimizer not in self._first:
            return {}
        known = KnownObjects(optimizer, self._names())
        changed = dict(self._changed(optimizer, known))
        if changed and _hooks_into_tensors(type(optimizer)):
            return None
        sending = SentValues(known)
        try:
            # In one order: all members lay a checkpoint out alike, whichever made its attributes when.
            return {
                path: value if isinstance(value, DeletedAttribute) else sending.sent(value)
                for path, value in sorted(changed.items(), key=lambda item: item[0])
            }
        except Unsendable:
            return None

    def deleted(self, optimizer: Optimizer) -> set[AttributePath]:
        """The attributes that it was registered with, and has no longer."""
        first = self._first.get(optimizer, {})
        # Also what is committed by now: a wrapped optimizer's state may have become the optimizer's own.
        known = KnownObjects(optimizer, {})
        return first.keys() - {path for path, _, _ in _attributes(optimizer, known, committed=True)}

    def marks(self, optimizer: Optimizer) -> dict[AttributePath, SeenAttribute]:
        """All its attributes as they are now, and those of the program's objects in them; none of torch's own ones."""
        if optimizer not in self._first:
            return {}
        known = KnownObjects(optimizer, {})
        return {
            path: SeenAttribute(owner, value, mark(value, known))
            for path, owner, value in _attributes(optimizer, known, of_objects=True)
        }

    def recorded(self, optimizer: Optimizer) -> AttributeValues | None:
        """A copy of what travels; None where that is large, or cannot be sent."""
        values = self.sent(optimizer)
        return copy.deepcopy(values) if not values or _size_bytes(values) <= SMALL_BYTES else None

    def kept(self, optimizer: Optimizer) -> AttributeValues | None:
        """What travels: a copy, or where that is large the live tensors, which lines between calls do not change; None
        where it cannot be sent."""
        copied = self.recorded(optimizer)
        return self.sent(optimizer) if copied is None else copied

    @torch.no_grad()
    def put(self, optimizer: Optimizer, given: AttributeValues | None) -> None:
        """Set the attributes to these, in the containers and tensors that there are: the program may hold them. What is
        not among them is as it was when the optimizer was registered. None: they stay as they are."""
        first = self._first.get(optimizer)
        if first is None or given is None:
            return
        filling = FilledValues(KnownObjects(optimizer, self._names()))
        others = (self.sent(optimizer) or {}).keys() - given.keys()
        back: AttributeValues = {path: DeletedAttribute() for path in others - first.keys()}
        back |= {path: first[path].kept[0] for path in others & first.keys() if first[path].kept}
        # An optimizer before what is in it.
        for path, value in sorted((back | given).items(), key=lambda item: len(item[0])):
            attributes = _attributes_at(optimizer, path[:-1])
            if isinstance(value, DeletedAttribute):
                attributes.pop(path[-1], None)
            else:
                attributes[path[-1]] = filling.filled(attributes.get(path[-1]), value)

    def may_keep(self, optimizer: Optimizer) -> bool:
        """Whether it may have attributes of its own: it is none of torch's. The same on all members."""
        return optimizer in self._first

    def kept_now(self, optimizer: Optimizer) -> dict[AttributePath, "KeptAttribute"]:
        """All attributes for `put_back`, changed or not, with copies of those that can be sent."""
        first = self._first.get(optimizer)
        if first is None:
            return {}
        known = KnownObjects(optimizer, self._names())
        sending = SentValues(known)
        kept = {}
        for path, _, value in _attributes(optimizer, known, committed=True):
            try:
                copies: tuple[Any, ...] = (copy.deepcopy(sending.sent(value)),)
            except Unsendable:
                copies = ()
            now = mark(value, known)
            kept[path] = KeptAttribute(now, value, copies, path in first and first[path].mark == now)
        return kept

    @torch.no_grad()
    def put_back(self, optimizer: Optimizer, kept: Mapping[AttributePath, "KeptAttribute"]) -> None:
        """Go back to what `kept_now` gave, in the containers and tensors that there were. Nothing is put back where
        something that has changed could not: all or nothing, as in what is sent."""
        first = self._first.get(optimizer)
        if first is None or self.sent(optimizer) is None:
            return
        known = KnownObjects(optimizer, self._names())
        filling = FilledValues(known)
        for path, was in kept.items():  # an optimizer before what is in it
            value = was.value
            if was.copies and was.mark != mark(value, known):
                value = filling.filled(value, was.copies[0])
            _attributes_at(optimizer, path[:-1])[path[-1]] = value
            # A tensor that is filled has not changed by that: other members have not filled it.
            if was.registered:
                first[path] = replace(first[path], mark=mark(value, known))
        for owner in {(), *(path[:-1] for path in kept)}:
            attributes = _attributes_at(optimizer, owner)
            for name in [name for name in attributes if _counts(*owner, name)]:
                if (*owner, name) not in kept:
                    del attributes[name]  # made since

    def _changed(self, optimizer: Optimizer, known: KnownObjects) -> Iterator[tuple[AttributePath, Any]]:
        first = self._first[optimizer]
        for path, _, value in _attributes(optimizer, known):
            if path not in first or first[path].mark != mark(value, known):
                yield path, value
        for path in self.deleted(optimizer):
            yield path, DeletedAttribute()


@dataclass(frozen=True, slots=True)
class KeptAttribute:
    """An attribute as it was.

    Attributes:
        value: the object itself: another attribute may be a part of it.
        copies: a copy in the form in which it is sent; empty where it cannot be sent.
        registered: whether it is what the optimizer was registered with.
    """

    mark: Any
    value: Any
    copies: tuple[Any, ...]
    registered: bool


@dataclass(frozen=True, slots=True)
class _FirstValue:
    """An attribute as it was registered.

    Attributes:
        kept: a copy of a small value without tensors, which may come back to what it was; empty for others.
    """

    mark: Any
    kept: tuple[Any, ...]

    @classmethod
    def of(cls, value: Any, known: KnownObjects) -> "_FirstValue":
        try:
            sent = SentValues(known).sent(value)
        except Unsendable:
            return cls(mark(value, known), ())
        small = not take_apart(sent)[1] and _size_bytes(sent) <= SMALL_BYTES
        return cls(mark(value, known), (copy.deepcopy(sent),) if small else ())


def _attributes(
    optimizer: Optimizer, known: KnownObjects, *, of_objects: bool = False, committed: bool = False
) -> Iterator[tuple[AttributePath, Any, Any]]:
    """All but those of torch, each with its owner; behind them those of optimizers that it wraps, with their states and
    groups. With `committed` also those that are a part of what is committed anyway."""
    for path, owner in _owners(optimizer, of_objects=of_objects).items():
        for name, value in list(vars(owner).items()):
            told = committed or id(value) not in known.committed
            if told and _counts(*path, name):
                yield (*path, name), owner, value


def _counts(*path: str) -> bool:
    """Whether an attribute is none of torch's; states and groups of an optimizer that is wrapped count."""
    return path[-1] not in OF_TORCH and (len(path) > 1 or path[-1] not in COMMITTED)


def _owners(optimizer: Optimizer, *, of_objects: bool = False) -> dict[AttributePath, Any]:
    """The optimizer, those that it wraps, and with `of_objects` the program's objects in them: each once."""
    found: dict[AttributePath, Any] = {(): optimizer}
    new: list[AttributePath] = [()]
    while new:
        path = new.pop(0)
        for name, value in list(vars(found[path]).items()):
            inside = isinstance(value, Optimizer) or (of_objects and _is_of_program(value))
            if inside and len(path) < MOST_DEPTH and not any(value is other for other in found.values()):
                found[*path, name] = value
                new.append((*path, name))
    return found


def _attributes_at(optimizer: Optimizer, path: AttributePath) -> dict[str, Any]:
    """The attributes of the optimizer at that path; of none, a dict that nobody has."""
    found: Any = optimizer
    for name in path:
        found = vars(found).get(name)
        if not isinstance(found, Optimizer):
            return {}
    attributes: dict[str, Any] = vars(found)
    return attributes


def _is_of_program(value: Any) -> bool:
    file = str(getattr(sys.modules.get(type(value).__module__), "__file__", "") or "")
    ours = file and not file.startswith(BELOW)
    return bool(ours and hasattr(value, "__dict__") and not isinstance(value, type | nn.Module))


def _size_bytes(values: Any) -> int:
    skeleton, tensors = take_apart(values)
    return len(skeleton) + sum(tensor.nbytes for tensor in tensors)


def _hooks_into_tensors(kind: type[Optimizer]) -> bool:
    """Whether a method but `__init__` registers hooks, which no other member has."""
    classes = [each for each in kind.__mro__ if not each.__module__.startswith("torch.")]
    methods = (inspect.unwrap(m) for each in classes for m in vars(each).values() if inspect.isfunction(m))
    return any(
        name.startswith("register_") and "hook" in name
        for method in methods
        if method.__name__ != "__init__"
        for name in method.__code__.co_names
    )
