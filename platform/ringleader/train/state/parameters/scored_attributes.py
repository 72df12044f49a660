"""Attributes of registered modules that a score sets: put back behind each piece of the rows.

Who comes later is given the scores that are recorded and computes none, and how many pieces a worker scores depends on
how many workers there are: training would go on with another activation on some of them.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from inspect import unwrap
from pathlib import Path
from types import FunctionType, MethodType
from typing import Any

import numpy as np
from torch import Tensor, nn

from ringleader.program_text.calls import CALLED
from ringleader.program_text.current_line import BELOW, running_frames
from ringleader.program_text.variables.stored_names import codes_in, stored_names
from ringleader.program_text.variables.training_reads import trains_by
from ringleader.train.between_calls.objects.program_objects import held_by, of_program
from ringleader.train.state.hidden_state import files_of

SET = "a score sets {}.{} ({}), which training reads, and it is put back behind the rows that are scored."
CURE = (
    "A worker that comes later is given the scores and computes none: set it between two loops, or put it back in the "
    "score itself."
)
_MISSING = object()
_BY_TORCH = frozenset(["forward", "__init__", "train", "eval"])
_CACHED = (Tensor, np.ndarray, list, dict)
"""What methods fill as they are called, tables of masks by length among it: only what the score itself sets of these
is put back."""


class ScoredAttributes:
    """The attributes of one evaluation, as they were before it.

    Args:
        matters: whether training may go by the attribute of that name of a module.
        hear: hears of one that a score has set, by the name of its class, its own, and "file:line".
    """

    def __init__(
        self,
        models: Iterable[nn.Module],
        score: Callable[..., Any],
        matters: Callable[[nn.Module, str], bool],
        hear: Callable[[str, str, str], None],
    ) -> None:
        self._matters = matters
        self._hear = hear
        parts = [part for model in models for part in model.modules()]
        self._lines, self._own = _set_by(score, {type(part) for part in parts})
        self._before = [(part, _of_names(part, self._lines)) for part in parts if self._lines]

    def put_back(self) -> None:
        """Give the modules what they had."""
        for part, before in self._before:
            for name, value in before.items():
                now = _get(part, name)
                if now is value or (name not in self._own and isinstance(now, _CACHED)):
                    continue
                if self._is_read(part, name):
                    _set(part, name, value)
                    if not _is_alike(now, value):
                        self._hear(type(part).__name__, name, self._lines[name])

    def _is_read(self, part: nn.Module, name: str) -> bool:
        """Whether training reads it: of a layer of a library any that is no part of its insides."""
        if not of_program(type(part).__module__):
            return not name.startswith("_")
        files = [*files_of(type(part)), *(frame.f_code.co_filename for frame in running_frames())]
        return any(trains_by(file, name) for file in files) and self._matters(part, name)


def _set_by(score: Callable[..., Any], kinds: set[type]) -> tuple[dict[str, str], set[str]]:
    """The names of attributes that a score sets, each with "file:line", and those that no method of a module sets for
    it, as the score calls it by its name."""
    methods: dict[str, list[FunctionType]] = {}
    for own_kind in {each for kind in kinds for each in kind.__mro__ if of_program(each.__module__)}:
        for name, value in vars(own_kind).items():
            if isinstance(value, FunctionType) and name not in _BY_TORCH:
                methods.setdefault(name, []).append(value)
    lines: dict[str, str] = {}
    own: set[str] = set()
    of_modules = {each for found in methods.values() for each in found}
    for function in _called_by(score, methods):
        for code in codes_in(function):
            for name, line in stored_names(code).items():
                lines.setdefault(name, f"{Path(code.co_filename).name}:{line}")
                own |= set() if function in of_modules else {name}
    return lines, own


def _called_by(score: Any, methods: Mapping[str, list[FunctionType]]) -> Iterator[FunctionType]:
    """The functions of the program that a score may call by their names, the score first."""
    seen: set[FunctionType] = set()
    left: list[Any] = [score]
    while left:
        function = _function_of(left.pop())
        if function is None or function in seen or function.__code__.co_filename.startswith(BELOW):
            continue
        seen.add(function)
        yield function
        around = dict(held_by(function))
        for name in {name for code in codes_in(function) for name in (*code.co_names, *code.co_freevars)}:
            left += [around.get(name, function.__globals__.get(name)), *methods.get(name, ())]


def _function_of(value: Any) -> FunctionType | None:
    match value:
        case MethodType():
            return _function_of(value.__func__)
        case partial():
            return _function_of(value.func)
        case FunctionType():
            inside = unwrap(value)
            return inside if isinstance(inside, FunctionType) else value
    called = None if isinstance(value, type | nn.Module) else getattr(type(value), CALLED, None)
    return called if isinstance(called, FunctionType) else None


def _of_names(part: nn.Module, names: Iterable[str]) -> dict[str, Any]:
    """What a module has under these names. Parameters and buffers are put back for themselves."""
    return {
        name: _get(part, name) for name in names if name not in part._parameters and name not in part._buffers
    }


def _get(part: nn.Module, name: str) -> Any:
    return vars(part).get(name, part._modules.get(name, _MISSING))


def _set(part: nn.Module, name: str, value: Any) -> None:
    vars(part).pop(name, None)
    if isinstance(value, nn.Module):
        part._modules[name] = value
        return
    part._modules.pop(name, None)
    if value is not _MISSING:
        vars(part)[name] = value


def _is_alike(one: Any, other: Any) -> bool:
    """Whether a value was only set once more: an equal number, the same method."""
    plain = isinstance(one, bool | int | float | str | MethodType) and type(one) is type(other)
    return plain and bool(one == other)
