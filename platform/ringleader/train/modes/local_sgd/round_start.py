"""The state that every replica of a round starts from: weights, optimizers and schedules as the last round committed
them."""

import copy
from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch.nn import Parameter
from torch.optim import Optimizer

from ringleader.train.state.optimizers.own_attributes import AttributePath, KeptAttribute
from ringleader.train.state.optimizers.state_loading import assign, put_states
from ringleader.train.state.training_state import TrainingState

Groups = list[dict[str, Any]]
States = dict[Any, dict[str, Any]]


class RoundStart:
    """A copy beside the live objects, which the inner steps change. Costs the trained weights and what
    their optimizers keep.

    Attributes:
        weights: the committed values, by parameter.
    """

    def __init__(self, held: TrainingState, parameters: list[Parameter]) -> None:
        self._held = held
        self._parameters = parameters
        self.weights = [parameter.detach().clone() for parameter in parameters]
        self._optimizers: list[tuple[Groups, States]] = []
        self._attributes: list[Mapping[AttributePath, KeptAttribute]] = []
        self._schedulers: list[dict[str, Any]] = []
        self.take()

    @torch.no_grad()
    def take(self) -> None:
        """Copy the live state, which is committed."""
        if self.weights:
            torch._foreach_copy_(self.weights, [parameter.detach() for parameter in self._parameters])
        self._optimizers = [_copied(optimizer, self._held.idle) for optimizer, _ in self._held.optimizers]
        self._attributes = [self._held.attributes.kept_now(o) for o, _ in self._held.optimizers]
        self._schedulers = [copy.deepcopy(scheduler.state_dict()) for scheduler in self._held.schedulers]

    @torch.no_grad()
    def put(self) -> None:
        """Make the live state the committed one again."""
        if self.weights:
            torch._foreach_copy_([parameter.detach() for parameter in self._parameters], self.weights)
        for (optimizer, _), (groups, states) in zip(self._held.optimizers, self._optimizers, strict=True):
            for group, saved in zip(optimizer.param_groups, groups, strict=True):
                # Copies: the inner steps of a replica change them, and the next replica starts from them too.
                assign(group, copy.deepcopy(saved))
            idle = {key: state for key, state in optimizer.state.items() if key in self._held.idle}
            put_states(optimizer, idle | {key: copy.deepcopy(state) for key, state in states.items()})
        for (optimizer, _), kept in zip(self._held.optimizers, self._attributes, strict=True):
            self._held.attributes.put_back(optimizer, kept)
        for scheduler, saved in zip(self._held.schedulers, self._schedulers, strict=True):
            scheduler.load_state_dict(copy.deepcopy(saved))


def _copied(optimizer: Optimizer, idle: Collection[Parameter]) -> tuple[Groups, States]:
    groups = [
        {name: copy.deepcopy(value) for name, value in group.items() if name != "params"}
        for group in optimizer.param_groups
    ]
    states = optimizer.state.items()
    return groups, {key: copy.deepcopy(state) for key, state in states if key not in idle}
