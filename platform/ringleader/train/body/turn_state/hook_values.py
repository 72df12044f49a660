"""Attributes that forward hooks set for the loss of the same turn, by the text, and whether a turn did set them.

The text does not show which layers a turn calls. A tensor that is there when a turn begins, and still when it ends, is
what an earlier turn left: the hook runs with a layer that this one has not called.
"""

import weakref
from collections.abc import Collection, Iterator
from itertools import islice
from typing import Any

from torch import Tensor

from ringleader.train.body.turn_state.turn_attributes import HeldAttribute
from ringleader.train.state.hidden_state import MANY


class HookValues:
    """What one turn finds of them."""

    def __init__(self, hooked: Collection[HeldAttribute]) -> None:
        # Nothing of an earlier turn is held on to.
        self._found = [
            (each, place, weakref.ref(tensor)) for each in hooked for place, tensor in _tensors(each.value)
        ]

    def left(self) -> Iterator[HeldAttribute]:
        """Those that the turn has left as it found them."""
        for each, place, found in self._found:
            tensor = found()
            if tensor is not None and any(at == place and now is tensor for at, now in _tensors(each.value)):
                yield each


def _tensors(value: Any) -> Iterator[tuple[Any, Tensor]]:
    """The tensors of an attribute: its value, or those in it, each with its place there."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for place, part in [(None, value), *islice(list(items), MANY)]:
        if isinstance(part, Tensor):
            yield place, part
