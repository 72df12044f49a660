"""The boundaries between session calls: the committed state at the end of a call, as the lines behind it found it.

A joiner, a resumed job and a member that was healed across the end of a call run those lines again. They read small
things, which are always recorded (settings of optimizers, schedules, small kept objects), and sometimes large ones
(weights, optimizer states), which are recorded where the program was seen to touch them.
"""

import copy
import os
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from ringleader.checkpoint.pieces import take_apart
from ringleader.train.state.model_structure import alike, fits
from ringleader.train.state.optimizers.own_attributes import AttributeValues
from ringleader.train.state.optimizers.state_loading import assign, put_states
from ringleader.train.state.training_state import TrainingState

SMALL_BYTES = 1 << 16
"""A kept object up to this size is recorded at every boundary; a larger one only where the program touches it."""

IN_MEMORY_BYTES = 16 << 20
"""Tensors of a boundary up to this size stay in memory; more of them go into a file without a name."""

MODELS, OPTIMIZERS, KEPT = "models", "optimizers", "kept"
KINDS = frozenset((MODELS, OPTIMIZERS, KEPT))

Tensors = dict[str, Any]
"""{"models": [state_dict, …], "optimizers": [{parameter number: state}, …], "kept": {name: state}}, or some of it."""

ByParameter = Mapping[Tensor, dict[str, Any]]
"""An optimizer's state, by parameter."""

States = list[dict[int, dict[str, Any]]]
"""Each optimizer's state, by the numbers of the parameters."""


@dataclass(slots=True)
class CallBoundary:
    """The committed state at the end of one call.

    Attributes:
        settings: each optimizer's parameter groups, without their parameters.
        schedulers: the states of the registered schedules.
        kept: the states of small kept objects, by name.
        tensors: weights and buffers, optimizer states, large kept objects: the kinds that the program touched.
        tensor_bytes: their size.
        line: the place where the program touched tensors that were too many to be recorded; empty otherwise.
        attributes: each optimizer's own ones; None for many bytes, or what cannot be sent. Empty: there were none,
            as in earlier checkpoints.
    """

    settings: list[list[dict[str, Any]]]
    schedulers: list[dict[str, Any]]
    kept: dict[str, Any]
    tensors: Tensors = field(default_factory=dict)
    tensor_bytes: int = 0
    line: str = ""
    attributes: list[AttributeValues | None] = field(default_factory=list)

    @classmethod
    def of(cls, held: TrainingState) -> "CallBoundary":
        """The boundary of the live state, without its tensors."""
        attributes = [held.attributes.recorded(o) for o, _ in held.optimizers]
        return cls(
            settings=[settings_of(optimizer) for optimizer, _ in held.optimizers],
            # Deep: torch gives out the schedule's own lists and counters.
            schedulers=[copy.deepcopy(scheduler.state_dict()) for scheduler in held.schedulers],
            kept={
                name: copy.deepcopy(state) for name, state in held.kept.states().items() if not _large(state)
            },
            attributes=attributes if any(each != {} for each in attributes) else [],
        )

    @classmethod
    def of_plain(cls, values: Sequence[Any]) -> "CallBoundary":
        """The boundary that `plain` gave."""
        return cls(*values)

    def plain(self) -> tuple[Any, ...]:
        """The boundary as plain values and tensors, for the wire and for checkpoints."""
        values = (self.settings, self.schedulers, self.kept, self.tensors, self.tensor_bytes, self.line)
        return (*values, self.attributes) if self.attributes else values

    def keep_tensors(self, held: TrainingState, kind: str) -> None:
        """Record the tensors of this kind, which nothing has changed since the call ended; and of all kinds where they
        are few."""
        few = size_bytes(live_tensors(held)) <= IN_MEMORY_BYTES
        # Without the kinds that are there: the program may have changed these since they were recorded.
        self.tensors |= copied_tensors(held, (KINDS if few else {kind}) - self.tensors.keys())
        self.tensor_bytes = size_bytes(self.tensors)

    def drop_tensors(self, line: str) -> None:
        """Record no tensors: those that the program touches at that line are too many."""
        self.tensors, self.tensor_bytes, self.line = {}, 0, line

    def drop(self, kind: str) -> None:
        """Keep no tensors of that kind."""
        self.tensors.pop(kind, None)
        self.tensor_bytes = size_bytes(self.tensors)

    @property
    def states(self) -> States | None:
        """The recorded states of optimizers; None: none was touched; empty: they were too large."""
        return [] if self.line else self.tensors.get(OPTIMIZERS)

    def add_states(self, states: States) -> None:
        """Record the states of further parameters: where servers update, each records those of its own part."""
        if not states:
            self.tensors.pop(OPTIMIZERS, None)
            self.line = self.line or "on another server"
            return
        mine = self.tensors.setdefault(OPTIMIZERS, [{} for _ in states])
        for own, given in zip(mine, states, strict=False):
            own |= {number: state for number, state in given.items() if number not in own}
        self.tensor_bytes = size_bytes(self.tensors)

    def put_back(self, held: TrainingState) -> None:
        """Make this the live state. Tensors that were not recorded stay as they are."""
        attributes = self.attributes or [{} for _ in self.settings]
        for (optimizer, _), groups, given in zip(held.optimizers, self.settings, attributes, strict=False):
            put_settings(optimizer, groups)
            held.attributes.put(optimizer, given)
        # Copies go in, because later lines may run on this boundary again.
        for scheduler, state in zip(held.schedulers, self.schedulers, strict=False):
            scheduler.load_state_dict(copy.deepcopy(state))
        held.kept.put(copy.deepcopy({name: state for name, state in self.kept.items() if name in held.kept}))
        put_tensors(held, self.tensors)


def settings_of(optimizer: Optimizer) -> list[dict[str, Any]]:
    """A copy of an optimizer's parameter groups without their parameters."""
    return [
        copy.deepcopy({key: value for key, value in group.items() if key != "params"})
        for group in optimizer.param_groups
    ]


def put_settings(optimizer: Optimizer, groups: Sequence[dict[str, Any]]) -> None:
    """Make these the settings of the first groups. Groups that the program added later go: it adds them again."""
    del optimizer.param_groups[len(groups) :]
    for group, settings in zip(optimizer.param_groups, groups, strict=False):
        assign(group, copy.deepcopy(settings))


def live_tensors(held: TrainingState, states: Sequence[ByParameter] | None = None) -> Tensors:
    """Weights, buffers, optimizer states and large kept objects, not copied.

    Args:
        states: for each optimizer the state to take in place of its live one; None: the live ones.
    """
    numbers = _numbers(held)
    states = [optimizer.state for optimizer, _ in held.optimizers] if states is None else states
    return {
        MODELS: [dict(model.state_dict()) for model in held.models],
        OPTIMIZERS: [{numbers[p]: kept for p, kept in state.items() if p in numbers} for state in states],
        KEPT: {name: state for name, state in held.kept.states().items() if _large(state)},
    }


def copied_tensors(
    held: TrainingState,
    kinds: Collection[str] = KINDS,
    *,
    states: Sequence[ByParameter] | None = None,
) -> Tensors:
    """Copies of what `live_tensors` gives of these kinds."""
    return _copied({kind: tensors for kind, tensors in live_tensors(held, states).items() if kind in kinds})


def put_tensors(held: TrainingState, tensors: Tensors) -> None:
    """Make these the live tensors. Where lines behind the last loop had made other models before these were recorded,
    that is what the models still have: nothing read the others."""
    suit = suits(held, tensors)
    for model, state in zip(held.models, tensors.get(MODELS, ()), strict=False):
        model.load_state_dict(state) if suit else model.load_state_dict(alike(model, state), strict=False)
    parameters = list(_numbers(held))
    optimizers = tensors.get(OPTIMIZERS, ()) if suit else ()
    for (optimizer, _), states in zip(held.optimizers, optimizers, strict=False):
        counted = {p for group in optimizer.param_groups if _counts_on_device(group) for p in group["params"]}
        put_states(
            optimizer,
            {
                parameters[n]: _state_for(parameters[n], state, counted=parameters[n] in counted)
                for n, state in states.items()
            },
        )
    held.kept.put(copy.deepcopy({n: s for n, s in tensors.get(KEPT, {}).items() if n in held.kept}))


def keep_common(boundaries: list[CallBoundary], calls: int, add: Callable[[Tensor], Tensor]) -> None:
    """Drop, at the end of so many calls, the tensors that some members have not recorded: lines behind
    `if session.is_main:` touched them on one alone. Those who share the writing of a checkpoint must have the same.

    Args:
        add: adds up the tensors of all members, who call this together.
    """
    kinds = sorted(KINDS)
    if not calls:
        return
    lacks = torch.ones(calls, len(kinds), dtype=torch.float64)
    for number, boundary in enumerate(boundaries[:calls]):
        lacks[number] = torch.tensor([float(kind not in boundary.tensors) for kind in kinds])
    told = add(lacks.view(-1).clone()).view(lacks.shape)
    for number, kind in ((told > 0) & (lacks == 0)).nonzero().tolist():
        boundaries[number].drop(kinds[kind])


def suits(held: TrainingState, tensors: Tensors) -> bool:
    """Whether the models have the structure that they had where these were recorded."""
    return all(fits(model, state) for model, state in zip(held.models, tensors.get(MODELS, ()), strict=False))


def _state_for(parameter: Tensor, state: dict[str, Any], *, counted: bool) -> dict[str, Any]:
    """A copy of an optimizer's state for a parameter, on that one's device: the recorded one may lie in host memory.

    Args:
        counted: its count of steps lies there too; else in host memory, as torch's optimizers have it.
    """

    def move(tensor: Tensor) -> Tensor:
        return tensor.detach().to(parameter.device, copy=True)

    moved: dict[str, Any] = torch.utils._pytree.tree_map_only(Tensor, move, state)
    step = state.get("step")
    return moved if counted or not isinstance(step, Tensor) else moved | {"step": step.detach().clone()}


def _counts_on_device(group: dict[str, Any]) -> bool:
    """Whether torch's optimizers keep the count of steps on the device of the weights, as they load it."""
    return bool(group.get("fused") or group.get("capturable"))


def storages_of(held: TrainingState) -> dict[torch.UntypedStorage, str]:
    """All storages of `live_tensors`, with the kind of each."""
    found: dict[torch.UntypedStorage, str] = {}
    kept = [take_apart(state)[1] for state in held.kept.states().values() if _large(state)]
    states = [state.values() for optimizer, _ in held.optimizers for state in optimizer.state.values()]
    weights = [(*model.parameters(), *model.buffers()) for model in held.models]
    # Models last: a storage that belongs to several kinds counts as the last one's.
    for kind, groups in ((KEPT, kept), (OPTIMIZERS, states), (MODELS, weights)):
        tensors = (tensor for group in groups for tensor in group if isinstance(tensor, Tensor))
        # A sparse tensor has no storage: torch raises where it is asked for one.
        found |= {t.untyped_storage(): kind for t in tensors if t.layout is torch.strided}
    return found


def size_bytes(tensors: Any) -> int:
    """Bytes of all tensors in a nested state."""
    return sum(tensor.nbytes for tensor in take_apart(tensors)[1])


def _numbers(held: TrainingState) -> dict[Tensor, int]:
    """Every parameter of the models, frozen ones too, under its number."""
    unique: dict[Tensor, int] = {}
    for parameter in held.weights:
        unique.setdefault(parameter, len(unique))
    return unique


def _large(state: Any) -> bool:
    """Whether a state has many tensors' bytes; one with few or none cannot be seen to be touched."""
    return sum(tensor.nbytes for tensor in take_apart(state)[1]) > SMALL_BYTES


@torch.no_grad()
def _copied(state: Tensors) -> Tensors:
    """A deep copy; above IN_MEMORY_BYTES in an unlinked file of the scratch folder, which ends with the process."""
    total = size_bytes(state)
    if total <= IN_MEMORY_BYTES:
        return copy.deepcopy(_detached(state))
    folder = Path(os.environ.get("RINGLEADER_SCRATCH") or tempfile.gettempdir())
    with tempfile.NamedTemporaryFile(dir=folder, prefix="ringleader-boundary-") as file:
        # The mapping outlives the name, which goes with the block: nothing is left where the process is killed.
        memory = torch.from_file(file.name, shared=True, size=_room(state), dtype=torch.uint8)
    return _moved(state, memory)


def _detached(state: Any) -> Any:
    """The state without graphs, which cannot be copied."""
    return torch.utils._pytree.tree_map_only(Tensor, lambda tensor: tensor.detach(), state)


def _moved(state: Tensors, memory: Tensor) -> Tensors:
    """The state with its strided tensors copied into `memory`, one after the other."""
    start = 0

    def move(tensor: Tensor) -> Tensor:
        nonlocal start
        if tensor.layout is not torch.strided or tensor.numel() == 0:
            return tensor.detach().clone()
        place = memory[start : start + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
        start += _aligned(tensor.nbytes)
        return place.copy_(tensor)

    moved: Tensors = torch.utils._pytree.tree_map_only(Tensor, move, state)
    return moved


def _room(state: Mapping[str, Any]) -> int:
    leaves = torch.utils._pytree.tree_leaves(state)
    return sum(_aligned(leaf.nbytes) for leaf in leaves if isinstance(leaf, Tensor))


def _aligned(size: int) -> int:
    # torch makes no view of a type at an offset that its size does not divide; 64 suits all types.
    return -(-size // 64) * 64
