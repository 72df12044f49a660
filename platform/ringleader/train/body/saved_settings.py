"""A parameter group's saved settings, to tell cheaply whether they have changed, and to put them back."""

from dataclasses import dataclass
from functools import cached_property
from operator import is_
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ringleader.train.body.setting_numbers import ABSENT, CONSTANTS, Row, equal, row_of
from ringleader.train.state.optimizers.state_loading import assign
from ringleader.train.state.parameters.tensor_version import version_of


@dataclass(frozen=True, slots=True)
class SettingChange:
    """A setting that has changed, and its value now."""

    key: str
    now: Any


@dataclass(frozen=True)  # without slots: the row is made when it is first asked for
class SavedSettings:
    """A parameter group as it was.

    Attributes:
        values: the objects in it, themselves.
        parameters: the group's list; `count` was its length.
        settings: all but the parameters; lists and arrays, which can change in place, are copies.
        copied: the objects of those copies, by their keys.
        tensors: those among the settings, alone or in tuples, with their versions and values.
    """

    group: dict[str, Any]
    keys: tuple[str, ...]
    values: tuple[Any, ...]
    parameters: list[Any]
    count: int
    settings: dict[str, Any]
    copied: dict[str, Any]
    tensors: tuple[tuple[Tensor, int, Tensor], ...]

    @classmethod
    def of(cls, group: dict[str, Any]) -> "SavedSettings":
        settings = {key: value for key, value in group.items() if key != "params"}
        others = {key: value for key, value in settings.items() if type(value) not in CONSTANTS}
        settings |= {key: _copy(value) for key, value in others.items()}
        tensors = [tensor for value in others.values() for tensor in _tensors_in(value)]
        return cls(
            group=group,
            keys=tuple(group),
            values=tuple(group.values()),
            parameters=group["params"],
            count=len(group["params"]),
            settings=settings,
            copied={key: value for key, value in others.items() if value is not settings[key]},
            tensors=tuple((each, version_of(each), each.detach().clone()) for each in tensors),
        )

    @cached_property
    def row(self) -> Row:
        """All its numbers. Valid only while the group has not changed."""
        return row_of(self.group)

    def stands(self, group: dict[str, Any]) -> bool:
        """Whether the group is this one and holds the very same objects, none of them changed in place."""
        return (
            # Cheapest first: this is asked at every turn, and nearly always the same objects stand there.
            group is self.group
            and len(group) == len(self.values)
            and all(map(is_, group.values(), self.values))
            and tuple(group) == self.keys
            and len(group["params"]) == self.count
            and (not self.copied or all(_same_parts(v, self.settings[k]) for k, v in self.copied.items()))
            and (not self.tensors or all(_untouched(*entry) for entry in self.tensors))
        )

    def same_parameters(self, group: dict[str, Any]) -> bool:
        """Whether no parameter has come or left."""
        return group["params"] is self.parameters and len(group["params"]) == self.count

    def change(self, group: dict[str, Any]) -> SettingChange | None:
        """The first setting whose value has changed; None where none has."""
        for tensor, version, value in self.tensors:
            # A write in place may have left the values as they were.
            if version_of(tensor) != version and not torch.equal(tensor, value):
                holds = (k for k in self.settings if any(t is tensor for t in _tensors_in(group.get(k))))
                return SettingChange(next(holds, "lr"), tensor.detach().clone())
        for key, was in self.settings.items():
            now = group.get(key, ABSENT)
            if now is not was and not equal(was, now):
                return SettingChange(key, now)
        new = next((key for key in group if key not in self.settings and key != "params"), None)
        return SettingChange(new, group[new]) if new is not None else None

    @torch.no_grad()
    def put_back(self, group: dict[str, Any]) -> None:
        """Give the group these settings. Lists, arrays and tensors stay the objects that the program may hold."""
        if self.stands(group) or self.change(group) is None:
            return
        for tensor, _, value in self.tensors:
            tensor.copy_(value)
        assign(
            group,
            {key: _filled(self.copied.get(key), value) for key, value in self.settings.items()},
        )


def _tensors_in(value: Any) -> list[Tensor]:
    if isinstance(value, tuple | list):
        return [tensor for part in value for tensor in _tensors_in(part)]
    return [value] if isinstance(value, Tensor) else []


def _copy(value: Any) -> Any:
    """A copy of lists and arrays, in tuples too; everything else is returned itself."""
    if isinstance(value, np.ndarray):
        return value.copy()
    if not isinstance(value, tuple | list):
        return value
    parts = [_copy(part) for part in value]
    same = isinstance(value, tuple) and all(map(is_, parts, value))
    return value if same else type(value)(parts)


def _same_parts(value: Any, copy: Any) -> bool:
    """Whether a list holds the same objects as its copy; False where that is not known."""
    return isinstance(value, list) and len(value) == len(copy) and all(map(is_, value, copy))


def _untouched(tensor: Tensor, version: int, value: Tensor) -> bool:
    """Whether nothing has written to it. `.data` and numpy leave the version; comparing is cheap on the CPU only."""
    return version_of(tensor) == version and (tensor.device.type != "cpu" or torch.equal(tensor, value))


def _filled(held: Any, value: Any) -> Any:
    """The list or array that the program may hold, with this in it; where there is none, a copy of its own."""
    if isinstance(held, list):
        held[:] = _copy(value)
        return held
    if isinstance(held, np.ndarray) and held.flags.writeable:
        held[...] = value
        return held
    return _copy(value)
