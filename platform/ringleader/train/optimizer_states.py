"""An optimiser's state from elsewhere, bit for bit and in the weights' order of memory."""

from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from ringleader.comm.buckets import laid_out_as


def load(optimizer: Optimizer, saved: dict[str, Any]) -> None:
    """Take over what `state_dict` gave. torch gives each tensor the type of its weight, which costs bits where an
    optimiser keeps another one: sums in float64, or in float32 for weights of 16 bits. Here it stays what it was.
    What came through flat memory gets its weight's strides back."""
    optimizer.load_state_dict(saved)
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
