"""The loading of an optimizer's state, bit for bit and in its weights' order of memory."""

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from ringleader.comm.buckets import laid_out_as


def load(optimizer: Optimizer, saved: dict[str, Any]) -> None:
    """Load what `state_dict` gave. torch casts each tensor to the type of its weight, which costs bits where an
    optimizer keeps another one: sums in float64, or in float32 for weights of 16 bits. Here the type stays.
    A tensor that came through flat memory gets its weight's strides back. Groups stay the same objects, and so do
    states where they fit: the program may hold them, and an optimizer around another one shares them with it."""
    groups, states = optimizer.param_groups, optimizer.state
    inner = [part for part in vars(optimizer).values() if isinstance(part, Optimizer)]
    theirs = [(part, part.param_groups, part.state) for part in inner]
    optimizer.load_state_dict(saved)
    for part, its_groups, its_states in theirs:
        _keep(part, its_groups, its_states)
    for group, given in zip(groups, optimizer.param_groups, strict=True):
        assign(group, given)
    loaded = optimizer.state
    optimizer.param_groups, optimizer.state = groups, states
    numbers = (number for group in saved["param_groups"] for number in group["params"])
    live = (parameter for group in optimizer.param_groups for parameter in group["params"])
    for parameter, number in zip(live, numbers, strict=True):
        given = loaded.get(parameter, {})
        for name, value in saved["state"].get(number, {}).items():
            cast = given.get(name)
            if isinstance(value, Tensor) and isinstance(cast, Tensor) and cast.dtype != value.dtype:
                given[name] = value.to(cast.device, copy=True)
            if isinstance(cast, Tensor) and cast.shape == parameter.shape:
                given[name] = laid_out_as(parameter, given[name])
    put_states(optimizer, loaded)


def _keep(optimizer: Optimizer, groups: list[dict[str, Any]], states: defaultdict[Tensor, Any]) -> None:
    """Give the groups and states that it had what it has loaded, in place of new ones."""
    loaded, given = optimizer.state, optimizer.param_groups
    for group, settings in zip(groups, given, strict=True):
        assign(group, settings)
    optimizer.param_groups, optimizer.state = groups, states
    put_states(optimizer, loaded)


def of_another_kind(optimizer: Optimizer, group: Mapping[str, Any], given: Mapping[str, Any]) -> bool:
    """Whether the given settings are of another kind of optimizer: each side has some that the other lacks. A newer
    torch alone may know settings that saved ones lack."""
    # `initial_lr` comes from a schedule, whatever the optimizer.
    return bool(optimizer.defaults.keys() - given.keys() and given.keys() - group.keys() - {"initial_lr"})


@torch.no_grad()
def put_states(optimizer: Optimizer, states: Mapping[Tensor, dict[str, Any]]) -> None:
    """Make these the states of an optimizer's parameters, in the existing dicts and tensors where they fit: the program
    may hold them. `state_dict` gives an optimizer's own, and `load_state_dict` keeps those that it is given."""
    live = optimizer.state
    put = {parameter: _put(live.get(parameter), state) for parameter, state in states.items()}
    live.clear()
    live.update(put)


def in_place(mine: Any, value: Any) -> Any:
    """Copy the value into `mine` and return that; return the value itself where it does not fit."""
    if mine is value or not (isinstance(mine, Tensor) and isinstance(value, Tensor) and _fits(mine, value)):
        return value
    return mine.copy_(value)


def _put(mine: dict[str, Any] | None, state: dict[str, Any]) -> dict[str, Any]:
    if mine is None:
        return state
    values = {name: in_place(mine.get(name), value) for name, value in state.items()}
    mine.clear()
    mine.update(values)
    return mine


def _fits(mine: Tensor, value: Tensor) -> bool:
    alike = mine.shape == value.shape and mine.dtype == value.dtype and mine.device == value.device
    plain = mine.layout is value.layout is torch.strided and mine.stride() == value.stride()
    # `copy_` refuses a tensor whose elements share memory, such as an expanded one.
    return alike and plain and not mine.is_inference() and torch._debug_has_internal_overlap(mine) == 0


@torch.no_grad()
def assign(group: dict[str, Any], settings: Mapping[str, Any]) -> None:
    """Give a parameter group these settings, and no others but its parameters. A tensor of the same shape takes the
    value over: the program may hold it."""
    for key in group.keys() - settings.keys() - {"params"}:
        del group[key]
    for key, value in settings.items():
        mine = group.get(key)
        if isinstance(mine, Tensor) and isinstance(value, Tensor) and mine.shape == value.shape:
            mine.copy_(value)
        else:
            group[key] = value
