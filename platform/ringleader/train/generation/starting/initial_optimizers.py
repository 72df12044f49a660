"""The states of another job's optimizers that this one begins with (`init_optimizers`).

The member that all others are healed from takes them over before the first step: by the names of their parameters,
where these have the same shape and the optimizer is of the same kind. Settings such as `lr` stay this job's own.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch.optim import Optimizer

from ringleader.checkpoint.manifest import BeginningUnreadable
from ringleader.checkpoint.snapshot import checkpoint_at
from ringleader.train.generation.saving.saver import joined
from ringleader.train.state.optimizers.state_loading import load, of_another_kind
from ringleader.train.state.training_state import TrainingState


@dataclass(frozen=True, slots=True)
class _GivenState:
    """One parameter's state: the settings of its group there, its shape, and what the optimizer keeps of it."""

    settings: Mapping[str, Any]
    shape: tuple[int, ...]
    values: Mapping[str, Any]


def take_optimizers(held: TrainingState, uri: str) -> list[str]:
    """Load the states of that checkpoint into the registered optimizers.

    Returns:
        the names of the parameters whose states are taken over, under the number of their model.

    Raises:
        BeginningUnreadable: it is no checkpoint of a program that says which state is whose.
        CheckpointsUnreachable: its file system does not answer.
    """
    given = _by_name(uri, joined(checkpoint_at(uri).states))
    taken = []
    for (optimizer, _), names in zip(held.optimizers, held.optimized_names(), strict=True):
        taken += _take(optimizer, names, given)
    return sorted(taken)


def _by_name(uri: str, state: Mapping[str, Any]) -> dict[str, _GivenState]:
    if "names" not in state:
        raise BeginningUnreadable(
            uri, "it is of a version that did not write down which optimizer's state is whose"
        )
    found = {}
    for saved, names in zip(state["optimizers"], state["names"], strict=False):
        numbered = [(number, group) for group in saved["param_groups"] for number in group["params"]]
        for (number, group), name in zip(numbered, names, strict=True):
            model, _, entry = name.partition(".")
            if name and number in saved["state"]:
                shape = tuple(state["models"][int(model)][entry].shape)
                found[name] = _GivenState(group, shape, saved["state"][number])
    return found


def _take(optimizer: Optimizer, names: list[str], given: Mapping[str, _GivenState]) -> list[str]:
    """Load what fits; returns the parameters' names."""
    whole, taken = optimizer.state_dict(), []
    # A state_dict numbers parameters in the order of the groups.
    live = [(group, parameter) for group in optimizer.param_groups for parameter in group["params"]]
    numbers = [number for group in whole["param_groups"] for number in group["params"]]
    for (group, parameter), number, name in zip(live, numbers, names, strict=True):
        state = given.get(name)
        if state is None or state.shape != tuple(parameter.shape):
            continue
        if not of_another_kind(optimizer, group, state.settings):
            whole["state"][number] = dict(state.values)
            taken.append(name)
    if taken:
        load(optimizer, whole)
    return taken
