"""An optimiser's state from elsewhere, bit for bit and in the weights' order of memory."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from ringleader.comm.buckets import laid_out_as


def load(optimizer: Optimizer, saved: dict[str, Any]) -> None:
    """Take over what `state_dict` gave. torch gives each tensor the type of its weight, which costs bits where an
    optimiser keeps another one: sums in float64, or in float32 for weights of 16 bits. Here it stays what it was.
    What came through flat memory gets its weight's strides back. Groups stay the objects that they were: the program
    may hold them."""
    groups, states = optimizer.param_groups, optimizer.state
    optimizer.load_state_dict(saved)
    for group, given in zip(groups, optimizer.param_groups, strict=True):
        assign(group, given)
    states.clear()
    states.update(optimizer.state)
    optimizer.param_groups, optimizer.state = groups, states
    numbers = (number for group in saved["param_groups"] for number in group["params"])
    live = (parameter for group in optimizer.param_groups for parameter in group["params"])
    for parameter, number in zip(live, numbers, strict=True):
        mine = optimizer.state.get(parameter, {})
        for name, value in saved["state"].get(number, {}).items():
            cast = mine.get(name)
            if isinstance(value, Tensor) and isinstance(cast, Tensor) and cast.dtype != value.dtype:
                mine[name] = value.to(cast.device, copy=True)
            if isinstance(cast, Tensor) and cast.shape == parameter.shape:
                mine[name] = laid_out_as(parameter, mine[name])


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
