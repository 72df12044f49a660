"""An exponential moving average of a model's weights, kept as committed state: one copy, updated once a step."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from ringleader.errors import StepMisuse
from ringleader.train.best_weights import FrozenTensors

NAME = "ringleader.ema"


class AveragedWeights:
    """The averages of a model's weights, which `session.ema` returns.

    Called like the model, it runs the model's forward with them; buffers, and the mode of modules, are the model's own.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self._model = model
        self._decay = decay
        # Replaced at each update and never changed, so that copies of a step's state share them.
        self._averages = FrozenTensors({name: p.detach().clone() for name, p in model.named_parameters()})

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return functional_call(self._model, self._averages.values, args, kwargs)

    def load_into(self, model: nn.Module) -> None:
        """Give a model the averages as its weights, between two loops: those that are exported are the model's."""
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.copy_(self._averages.values[name])

    def state_dict(self) -> dict[str, Any]:
        return {"averages": self._averages}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._averages = state["averages"]

    @torch.no_grad()
    def update(self) -> None:
        """Move each average towards its weight: average + (1 - decay) * (weight - average)."""
        moved: dict[str, Tensor] = {}
        together: dict[str, nn.Parameter] = {}
        for name, parameter in self._model.named_parameters():
            if parameter.is_floating_point() or parameter.is_complex():
                together[name] = parameter
            else:
                moved[name] = parameter.detach().clone()
        if together:
            before = [self._averages.values[name].to(p.device) for name, p in together.items()]
            after = torch._foreach_lerp(before, list(together.values()), 1.0 - self._decay)
            moved |= dict(zip(together, after, strict=True))
        self._averages = FrozenTensors(moved)


def averaged(model: nn.Module, decay: float, models: list[nn.Module]) -> AveragedWeights:
    """The average of a registered model. Raises StepMisuse: it is none of `models`, or there is no such average."""
    if not any(model is each for each in models):
        raise StepMisuse(
            "session.ema got a model that is not registered.",
            hint="Write net = session.model(net), then average = session.ema(net, 0.999).",
        )
    if not isinstance(decay, int | float) or not 0.0 <= decay < 1.0:
        raise StepMisuse(
            f"session.ema got decay={decay!r}.", hint="Give a number from 0 to below 1, such as 0.999."
        )
    return AveragedWeights(model, decay)
