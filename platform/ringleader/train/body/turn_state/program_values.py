"""Values that the program's objects keep outside of registered models: tensors and numbers in attributes, dicts and
lists, weights of models that are not registered, results that `functools` keeps.

What a first turn puts there (a copy of the weights as a reference, a first loss as a scale) no step commits.
"""

import gc
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import _lru_cache_wrapper
from itertools import islice
from types import FrameType
from typing import Any

import numpy as np
from torch import Tensor, nn

from ringleader.program_text.current_line import running_frames
from ringleader.program_text.loop_bodies import text_of
from ringleader.train.between_calls.objects.program_objects import attributes_of
from ringleader.train.body.turn_state.turn_attributes import in_reach, objects_in
from ringleader.train.state.hidden_state import MANY, unkept_values
from ringleader.train.state.training_state import TrainingState

KEPT_DEPTH = 2
_VALUES = (Tensor, float, complex, np.floating)


@dataclass(frozen=True, slots=True)
class ProgramValue:
    """One value.

    Attributes:
        path: its name, as a finding tells it.
        kind: the class whose attribute it is; None where it is no attribute.
    """

    path: str
    kind: type | None
    attribute: str
    value: Any


def program_values(held: TrainingState) -> Iterator[ProgramValue]:
    """The values in reach of the running functions."""
    registered = {id(part) for model in held.models for part in model.modules()}
    kept = {id(each) for each in held.kept.values()}
    for frame in running_frames():
        variables = in_reach(frame)
        for name, holder in objects_in(variables, kept):
            for attribute, value in attributes_of(holder).items():
                of_model = id(holder) in registered
                for path, part in _inside(
                    f"{name}.{attribute}", value, registered, 1 if of_model else KEPT_DEPTH
                ):
                    # Those of registered models are seen as such.
                    if not of_model or isinstance(part, nn.Parameter):
                        yield ProgramValue(path, type(holder), attribute, part)
        for name, value in _read_first(frame, variables):
            if not isinstance(value, nn.Module):
                for path, part in _inside(name, value, registered, KEPT_DEPTH):
                    yield ProgramValue(path, None, name, part)
        for name, value in variables.items():
            if isinstance(value, _lru_cache_wrapper):
                yield from (ProgramValue(f"{name}{key}", None, name, part) for key, part in _cached(value))


def _read_first(frame: FrameType, variables: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The variables that go into the losses of the running loop as its turns find them."""
    text = text_of(frame.f_code.co_filename)
    for key in text.read_first(frame.f_lineno) if text is not None else ():
        if text is not None and not key[1].startswith("."):
            with suppress(KeyError, TypeError):
                yield text.find(key, variables, frame.f_lineno)


def _inside(path: str, value: Any, registered: set[int], depth: int) -> Iterator[tuple[str, Any]]:
    """The values in what an attribute has."""
    if isinstance(value, _VALUES):
        yield path, value
    elif isinstance(value, nn.Module):
        if id(value) not in registered:
            yield from ((f"{path}.{name}", weight) for name, weight in value.named_parameters())
            yield from ((f"{path}.{name}", part) for name, _, part in unkept_values([value]))
    elif depth and type(value) in (dict, list, tuple):
        items = value.items() if type(value) is dict else enumerate(value)
        # Copied at once: threads of the program may change it meanwhile.
        for key, item in list(islice(items, MANY)):
            yield from _inside(f"{path}[{key!r}]", item, registered, depth - 1)


def _cached(function: Any) -> Iterator[tuple[str, Any]]:
    """The results that a function with `functools.cache` or `lru_cache` keeps, where they are tensors or numbers, each
    with what it was called with: other rows are no difference."""
    for part in gc.get_referents(function):
        if type(part) is dict and part is not vars(function):
            for key, value in list(islice(part.items(), MANY)):
                results = [value] if isinstance(value, _VALUES) else gc.get_referents(value)
                given = repr(key) if isinstance(key, tuple) else f"({key!r})"
                yield from ((given, result) for result in results if isinstance(result, _VALUES))
