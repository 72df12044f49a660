"""The objects that a program keeps, and copies of their states, made at every commit."""

import copy
import operator
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, Protocol

import torch
from torch import Tensor

# Of these a deep copy is the value itself.
_ATOMS = (str, bytes, bool, int, float, complex, type(None), torch.dtype, torch.Size, torch.device)

KeptStates = dict[str, dict[str, Any]]
"""By name."""


class Stateful(Protocol):
    """An object that `session.keep` takes."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any], /) -> Any: ...


class KeptObjects(dict[str, Stateful]):
    """The objects that a program gave to `session.keep`, by name.

    Attributes:
        committed: their states at the newest commit.
        rewinds: how often they were put back to it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.committed: KeptStates = {}
        self.rewinds = 0

    def states(self) -> KeptStates:
        """Their states; tensors in them are the objects' own."""
        return {name: kept.state_dict() for name, kept in self.items()}

    def copies(self, before: Mapping[str, Any] = MappingProxyType({})) -> KeptStates:
        """Copies of their states. Those of `before` are used up: tensors on a device are copied into them."""
        return {name: copied(state, before.get(name)) for name, state in self.states().items()}

    def commit(self) -> None:
        """Commit the live states."""
        self.committed = self.copies(self.committed)

    def rewind(self) -> None:
        """Put back what the loop body touched to the committed states, before a replay."""
        self.rewinds += 1
        # A copy, because an object may go on with the very state it is given, and there may be another replay.
        self.put(copy.deepcopy(self.committed))

    def put(self, states: Mapping[str, Any]) -> None:
        """Give the objects these states. Tensors come on the devices of those that the objects have in their places: a
        state that was recorded or saved may lie in host memory."""
        for name, state in states.items():
            kept = self[name]
            kept.load_state_dict(_beside(state, kept.state_dict()))


def copied(state: Any, before: Any) -> Any:
    """A deep copy of a state. Tensors on a device are copied into those of an earlier copy, all by a few kernels, where
    the two are alike: to copy one after the other takes milliseconds for a model's."""
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return copy.deepcopy(state)
    pairs = list(_pairs(state, before))
    if not any(isinstance(one, Tensor) and one.is_cuda for one, _ in pairs) or not all(map(_fits, pairs)):
        return copy.deepcopy(state)
    tensors = [(one, other) for one, other in pairs if isinstance(one, Tensor)]
    if len({other.untyped_storage()._cdata for _, other in tensors}) < len(tensors):
        return copy.deepcopy(state)
    with torch.no_grad():
        for kind in {(one.dtype, one.device) for one, _ in tensors}:
            chosen = [pair for pair in tensors if (pair[0].dtype, pair[0].device) == kind]
            torch._foreach_copy_([other for _, other in chosen], [one for one, _ in chosen])
    return _filled(state, before)


def _pairs(state: Any, before: Any) -> Iterator[tuple[Any, Any]]:
    """Each leaf of the state with what is at its place in the earlier copy: no leaf where a container is another one
    there, which then counts as a leaf itself."""
    if type(state) is dict and type(before) is dict and state.keys() == before.keys():
        for key, value in state.items():
            yield from _pairs(value, before[key])
    elif type(state) in (list, tuple) and type(before) is type(state) and len(before) == len(state):
        for pair in zip(state, before, strict=True):
            yield from _pairs(*pair)
    else:
        yield state, before


def _fits(pair: tuple[Any, Any]) -> bool:
    one, other = pair
    if type(one) is not Tensor:
        return isinstance(one, _ATOMS)
    plain = type(other) is Tensor and one.layout is other.layout is torch.strided
    alike = plain and (one.shape, one.dtype, one.device) == (other.shape, other.dtype, other.device)
    # A copy of an expanded tensor has elements of its own; one with a graph is refused by `deepcopy`, which says so.
    return alike and one.stride() == other.stride() and not one.requires_grad and not other.is_inference()


def _filled(state: Any, before: Any) -> Any:
    """The state with the earlier copy's tensors in it."""
    if type(state) is dict:
        return {key: _filled(value, before[key]) for key, value in state.items()}
    if type(state) in (list, tuple):
        return type(state)(_filled(*pair) for pair in zip(state, before, strict=True))
    return before if isinstance(state, Tensor) else state


def _beside(given: Any, own: Any) -> Any:
    """The state with its tensors on the devices of those at the same places in `own`; itself where all are there."""
    if isinstance(given, Tensor):
        return given.to(own.device) if isinstance(own, Tensor) and own.device != given.device else given
    # Plain ones alone: a container of another class may be made of more than its items.
    if type(given) is dict and isinstance(own, Mapping):
        moved = {key: _beside(value, own.get(key)) for key, value in given.items()}
        # Itself where nothing moves: a copy would make two objects of one that the state holds twice.
        return moved if any(moved[key] is not value for key, value in given.items()) else given
    if type(given) in (list, tuple) and type(own) is type(given):
        owns = [*own, *([None] * len(given))]
        values = [_beside(value, mine) for value, mine in zip(given, owns, strict=False)]
        return type(given)(values) if any(map(operator.is_not, values, given)) else given
    return given
