"""The numbers in an optimizer's settings as a row that members exchange, and back."""

from collections.abc import Iterator
from numbers import Integral, Real
from operator import is_
from typing import Any

import numpy as np
import torch
from torch import Tensor

Row = tuple[float, ...]
"""Every number in the settings, each behind its type."""
Numbers = Iterator[tuple[float, float]]

_KINDS: tuple[type, ...] = (type(None), bool, int, float)
_NUMBERS = {kind: float(number) for number, kind in enumerate(_KINDS)}
_TENSOR = len(_KINDS)
CONSTANTS = frozenset((*_KINDS, str))
"""Types whose values never change in place."""
ABSENT = object()


def row_of(group: dict[str, Any]) -> Row:
    """All numbers of a parameter group."""
    return tuple(part for _, value in leaves(group) for part in _encode(value))


def leaves(group: dict[str, Any]) -> list[tuple[str, Any]]:
    """Numbers by their keys, those in tuples one by one; all else is left out."""
    return [(key, part) for key in _keys(group) for part in _numbers_in(group[key])]


@torch.no_grad()
def take(group: dict[str, Any], values: Numbers) -> None:
    """Give the group the next of the values."""
    for key in _keys(group):
        told = _told(group[key], values)
        if told is not group[key]:
            group[key] = told


def plain(value: Any) -> Any:
    """A number of another type, numpy's for example, as Python's own, alone or in a tuple; all else as it is."""
    # By type, not `isinstance`: numpy's float64 is a subclass of float.
    if type(value) in _KINDS:
        return value
    if isinstance(value, tuple | list):
        parts = [plain(part) for part in value]
        return value if all(map(is_, parts, value)) else type(value)(parts)
    # numpy's bool is no Integral.
    if isinstance(value, np.bool_):
        return bool(value)
    if isinstance(value, Integral):
        return int(value)
    return float(value) if isinstance(value, Real) else value


def unfit(was: Any, now: Any) -> str:
    """The reason why this change cannot be sent to other members; empty where it can."""
    if now is was:
        return ""
    if was is ABSENT:
        return f"was set to {now!r}, but did not exist before"
    if now is ABSENT:
        return "was deleted"
    if not _is_number(now):
        return "" if equal(was, now) else f"was set to {now!r}, which is not a number"
    if _shape(was) != _shape(now):
        return f"was set to {now!r}, but was {was!r} before, which has another count of numbers"
    return ""


def equal(one: Any, other: Any) -> bool:
    """Whether two settings are equal; of arrays, whose `==` gives an array, as a whole."""
    if isinstance(one, np.ndarray) or isinstance(other, np.ndarray):
        return np.array_equal(one, other)
    return one is other or bool(one == other)


def shown(kind: float, value: float) -> str:
    """An entry of a row, for people."""
    return repr(value if kind == _TENSOR else _decoded(kind, value))


def _keys(group: dict[str, Any]) -> list[str]:
    return sorted(key for key in group if key != "params")


def _numbers_in(value: Any) -> list[Any]:
    if type(value) in _NUMBERS:
        return [value]
    if isinstance(value, tuple | list):
        return [number for part in value for number in _numbers_in(part)]
    return [value] if _is_number(value) else []


def _is_number(value: Any) -> bool:
    if isinstance(value, tuple | list):
        return all(map(_is_number, value))
    return type(value) in _KINDS or (isinstance(value, Tensor) and value.numel() == 1)


def _shape(value: Any) -> Any:
    """The nesting of numbers: only a row of the same nesting fits."""
    if isinstance(value, tuple | list):
        return tuple(map(_shape, value))
    return _is_number(value)


def _encode(value: Any) -> tuple[float, float]:
    if isinstance(value, Tensor):
        return float(_TENSOR), float(value)
    return _NUMBERS[type(value)], 0.0 if value is None else float(value)


def _decoded(kind: float, value: float) -> Any:
    return None if kind == 0 else _KINDS[int(kind)](value)


def _told(mine: Any, values: Numbers) -> Any:
    """The next value for the place of this one: this one itself where it is no number, or equal."""
    if isinstance(mine, tuple | list):
        told = [_told(part, values) for part in mine]
        return mine if all(map(is_, told, mine)) else type(mine)(told)
    if not _is_number(mine):
        return mine
    kind, value = next(values)
    if isinstance(mine, Tensor):
        # In place: it has to stay the tensor that the program may hold.
        return mine.fill_(value)
    if kind == _TENSOR:
        return value
    number = _decoded(kind, value)
    # By type, too: True equals 1, and 1 equals 1.0.
    return mine if type(number) is type(mine) and number == mine else number
