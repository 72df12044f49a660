"""Copies of kept objects' states, made at every commit."""

import copy
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

# Of these a deep copy is the value itself.
_ATOMS = (str, bytes, bool, int, float, complex, type(None), torch.dtype, torch.Size, torch.device)


def copied(state: Any, before: Any) -> Any:
    """A deep copy of a state. Tensors on a device are copied into those of an earlier copy, all by a few kernels, where
    the two are alike: to copy one after the other takes milliseconds for a model's."""
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
