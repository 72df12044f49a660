"""Everything a step commits: models, optimisers, schedulers, kept objects and callbacks."""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from ringleader.comm.objects import packed, unpacked_of_any_type
from ringleader.comm.seal import Seal
from ringleader.errors import StepMisuse
from ringleader.train.rows.random_streams import seed_all
from ringleader.train.state.norms import BLOCK, Complete, block_sums, clip, itself
from ringleader.train.state.optimizer_state import assign, load, of_another_kind
from ringleader.train.state.parameters.sparse import step
from ringleader.train.state.parameters.tensor_version import version_of
from ringleader.train.state.schedules import advance, take


class Stateful(Protocol):
    """An object that `session.keep` takes."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any], /) -> Any: ...


class TrainingState:
    """The registered objects, in the order the training function registered them.

    Attributes:
        idle: parameters that are not trained now, see `TrainedParameters`: nobody updates or publishes them.
        calling_back: gives the context of a call of one of the program's callbacks.
    """

    def __init__(self) -> None:
        self.models: list[nn.Module] = []
        self.optimizers: list[tuple[Optimizer, float | None]] = []
        self.schedulers: list[LRScheduler] = []
        self.kept: dict[str, Stateful] = {}
        self.callbacks: list[Callable[[], None]] = []
        self.committed_kept: dict[str, dict[str, Any]] = {}
        self.idle: frozenset[nn.Parameter] = frozenset()
        self.calling_back: Callable[..., AbstractContextManager[None]] = nullcontext
        self._owed: tuple[int, int] | None = None
        self._waiting = _Waiting()
        self._given: Sequence[dict[str, Any]] = ()

    def add_scheduler(self, scheduler: LRScheduler) -> None:
        # Where servers own the optimiser, a worker's own never steps; torch's order check must not warn about it.
        scheduler.optimizer._opt_called = True  # type: ignore[attr-defined]
        take(scheduler)
        self.schedulers.append(scheduler)

    @property
    def parameters(self) -> list[nn.Parameter]:
        """Every parameter once, in registration order, frozen ones too."""
        return list(self.named_parameters.values())

    @property
    def named_parameters(self) -> dict[str, nn.Parameter]:
        """Every parameter under the number of its model and its name there."""
        # A parameter that several models share counts once, under its first name.
        seen: dict[int, tuple[str, nn.Parameter]] = {}
        for number, model in enumerate(self.models):
            for name, parameter in model.named_parameters():
                seen.setdefault(id(parameter), (f"{number}.{name}", parameter))
        return dict(seen.values())

    @property
    def spoken_parameters(self) -> dict[str, nn.Parameter]:
        """Every parameter under the name that the user knows: without the number where there is one model."""
        named = self.named_parameters
        return {n.partition(".")[2]: p for n, p in named.items()} if len(self.models) == 1 else named

    def optimized_names(self) -> list[list[str]]:
        """By optimiser, the names of its parameters under the number of their model, in the order of its state dict;
        empty for a parameter of no model."""
        names = {id(parameter): name for name, parameter in self.named_parameters.items()}
        return [
            [names.get(id(p), "") for group in optimizer.param_groups for p in group["params"]]
            for optimizer, _ in self.optimizers
        ]

    def check_covered(self) -> None:
        """Check that all that the optimisers are to train belongs to a model, and all that a peer has is registered.

        Raises:
            StepMisuse: naming what is wrong.
        """
        if not self.take_rest():
            raise StepMisuse(
                "this worker registered fewer optimisers, schedulers or kept objects than another one, "
                "or an optimiser with other parameter groups.",
                hint="Register the same objects in the same order on every worker.",
            )
        if not self.optimizers:
            raise StepMisuse(
                "no optimiser is registered.", hint="Call session.optimizer(...) before the first loop."
            )
        known = {id(p) for p in self.weights}
        groups = (group["params"] for optimizer, _ in self.optimizers for group in optimizer.param_groups)
        strangers = sum(p.requires_grad and id(p) not in known for params in groups for p in params)
        if strangers:
            raise StepMisuse(
                f"{strangers} trainable parameters of the optimisers belong to no registered model.",
                hint="Register every model with session.model(...).",
            )

    @property
    def module(self) -> nn.Module:
        """The model, or all of them under their number."""
        if not self.models:
            raise StepMisuse(
                "no model is registered.",
                hint="Call session.model(net) before the first session.batches or evaluate.",
            )
        return self.models[0] if len(self.models) == 1 else nn.ModuleList(self.models)

    def update(self, complete: Complete = itself, *, applied: bool = False) -> None:
        """Clip and step every optimiser; parameters whose `.grad` is None are left alone.

        Args:
            complete: turns the block sums over the gradients that are here into those of the whole norm.
            applied: this update has been made; the others still need this member's part of the norm.
        """
        # All that can break comes before anything that changes a weight.
        for optimizer, clip_norm in self.optimizers:
            if clip_norm is not None:
                clip(self._clipped(optimizer), clip_norm, complete)
        for optimizer, _ in self.optimizers:
            if not applied:
                step(optimizer, self.spoken_parameters)

    def settings(self) -> list[dict[str, Any]]:
        """A copy of every parameter group of every optimiser, without the parameters."""
        return [
            copy.deepcopy({key: value for key, value in group.items() if key != "params"})
            for optimizer, _ in self.optimizers
            for group in optimizer.param_groups
        ]

    def set(self, settings: Sequence[dict[str, Any]]) -> None:
        """Take over a peer's `settings`."""
        groups = [group for optimizer, _ in self.optimizers for group in optimizer.param_groups]
        for group, given in zip(groups, settings, strict=True):
            assign(group, given)

    def knows(self, settings: Sequence[dict[str, Any]], kept: Mapping[str, Any]) -> bool:
        """Whether a peer's settings and kept states are for objects that are registered here too."""
        groups = [(optimizer, group) for optimizer, _ in self.optimizers for group in optimizer.param_groups]
        alike = len(groups) == len(settings) and kept.keys() <= self.kept.keys()
        return alike and not any(
            of_another_kind(optimizer, group, given)
            for (optimizer, group), given in zip(groups, settings, strict=True)
        )

    @property
    def weights(self) -> list[nn.Parameter]:
        """Every parameter, frozen ones too."""
        return [parameter for model in self.models for parameter in model.parameters()]

    def marks(self, weights: Sequence[nn.Parameter]) -> list[tuple[int, int]]:
        """Marks that differ from earlier ones once a weight or an optimiser's state was changed in place, or replaced
        by another tensor. A change in place through `parameter.data` leaves no mark."""
        marks = [(p.data_ptr(), version_of(p)) for p in weights]
        states = [
            (id(tensor), version_of(tensor))
            for optimizer, _ in self.optimizers
            for state in optimizer.state.values()
            for tensor in state.values()
            if isinstance(tensor, Tensor)
        ]
        groups = [group for optimizer, _ in self.optimizers for group in optimizer.param_groups]
        return [*marks, *states, *((number, len(group["params"])) for number, group in enumerate(groups))]

    def updated_places(self) -> frozenset[int]:
        """The addresses of all that `marks` watches: weights and optimisers' states."""
        states = (state for optimizer, _ in self.optimizers for state in optimizer.state.values())
        tensors = (tensor for state in states for tensor in state.values() if isinstance(tensor, Tensor))
        return frozenset(tensor.data_ptr() for tensor in (*self.weights, *tensors))

    @contextmanager
    def at_rate(self, factor: float) -> Iterator[None]:
        """Multiply every learning rate by `factor` while the block lasts.

        Raises:
            StepMisuse: an optimiser has no `lr`.
        """
        groups = [group for optimizer, _ in self.optimizers for group in optimizer.param_groups]
        if any("lr" not in group for group in groups):
            raise StepMisuse(
                "an optimiser has no learning rate `lr` in its parameter groups.",
                hint="consistency: async scales `lr` by an item's share of the batch; use another consistency.",
            )
        rates = [group["lr"] for group in groups]
        for group, rate in zip(groups, rates, strict=True):
            group["lr"] = rate * factor
        try:
            yield
        finally:
            for group, rate in zip(groups, rates, strict=True):
                group["lr"] = rate

    @property
    def block_count(self) -> int:
        """The number of `norm_blocks`."""
        clipped = [optimizer for optimizer, clip_norm in self.optimizers if clip_norm is not None]
        return sum(-(-p.numel() // BLOCK) for optimizer in clipped for p in self._clipped(optimizer))

    def norm_blocks(self) -> list[Tensor]:
        """() float64 sums of squares, one a block of every norm that clips, over the gradients that are here."""
        return [
            block
            for optimizer, clip_norm in self.optimizers
            if clip_norm is not None
            for block in block_sums(self._clipped(optimizer))
        ]

    def ever_trained(self, parameters: Sequence[nn.Parameter]) -> list[nn.Parameter]:
        """Those of the parameters that are trained, or that an optimiser still has a state of."""
        known = [optimizer.state for optimizer, _ in self.optimizers]
        return [p for p in parameters if p not in self.idle or any(p in state for state in known)]

    def _clipped(self, optimizer: Optimizer) -> list[nn.Parameter]:
        """The parameters of an optimiser whose gradients count in its norm."""
        return [p for group in optimizer.param_groups for p in group["params"] if p not in self.idle]

    def after_update(
        self, seed: int, step: int, *, published: bool = False, skipped: bool = False, later: bool = False
    ) -> None:
        """Advance schedules and run callbacks, once per committed step on every member.

        Args:
            seed, step: callbacks' draws follow from them, not from what the update drew here.
            published: the weights here come from servers, which ran the callbacks themselves.
            skipped: no optimiser made a step, so schedules make none either.
            later: only a part of the weights is here until all have published: callbacks wait for `call_back`.

        Raises:
            StepMisuse: a callback changed such weights.
        """
        # torch warns of a schedule that steps before its optimiser, which an overflow at the start would bring about.
        for scheduler in () if skipped else self.schedulers:
            advance(scheduler)
        self._owed = (seed, step)
        if not later:
            self.call_back(published=published)

    def call_back(self, *, published: bool = False) -> None:
        """Run the callbacks of the newest committed step, unless they have run. Otherwise as `after_update`."""
        owed, self._owed = self._owed, None
        if owed is None:
            return
        if self.callbacks:
            seed_all(owed[0], "commit", owed[1])
        named = self.spoken_parameters if published and self.callbacks else {}
        named = {name: parameter for name, parameter in named.items() if parameter not in self.idle}
        before = {name: version_of(parameter) for name, parameter in named.items()}
        for callback in self.callbacks:
            with self.calling_back(callback):
                callback()
        changed = [name for name, parameter in named.items() if version_of(parameter) != before[name]]
        if changed:
            raise StepMisuse(
                f"an on_commit callback changed {changed[0]}, which the parameter servers own.",
                hint="Change weights in a custom optimiser, or use sync: ring.",
            )
        self.commit_kept()

    def commit_kept(self) -> None:
        self.committed_kept = self.copied_kept()

    def copied_kept(self) -> dict[str, dict[str, Any]]:
        return {name: copy.deepcopy(kept.state_dict()) for name, kept in self.kept.items()}

    def rewind_kept(self) -> None:
        """Put kept objects that the loop body touched back to the committed step, before a replay."""
        # A copy, because an object may go on with the very state it is given, and there may be another replay.
        self.set_kept(copy.deepcopy(self.committed_kept))

    def set_kept(self, states: Mapping[str, Any]) -> None:
        for name, state in states.items():
            self.kept[name].load_state_dict(state)

    def state(self, rest: dict[str, Any]) -> dict[str, Any]:
        """All committed state: the live objects' own tensors, and `rest`."""
        return {
            "models": [model.state_dict() for model in self.models],
            "optimizers": _listed(self._waiting.optimizers, [o.state_dict() for o, _ in self.optimizers]),
            "schedulers": _listed(self._waiting.schedulers, [s.state_dict() for s in self.schedulers]),
            "kept": {name: kept.state_dict() for name, kept in self.kept.items()} | self._waiting.kept,
            "rest": rest,
        }

    def state_of(self, parameters: Sequence[nn.Parameter]) -> dict[str, Any]:
        """The values of these parameters under their names in the models, and their optimiser states."""
        wanted = {id(p) for p in parameters}
        models = [
            {name: p.detach() for name, p in model.named_parameters() if id(p) in wanted}
            for model in self.models
        ]
        optimizers = []
        for optimizer, _ in self.optimizers:
            # A state_dict numbers parameters in the order of the groups.
            saved = optimizer.state_dict()
            live = (p for group in optimizer.param_groups for p in group["params"])
            numbers = (n for group in saved["param_groups"] for n in group["params"])
            own = {number for p, number in zip(live, numbers, strict=True) if id(p) in wanted}
            optimizers.append({"state": {n: state for n, state in saved["state"].items() if n in own}})
        return {"models": models, "optimizers": optimizers}

    def payload(self, rest: dict[str, Any], seal: Seal, room: Tensor | None = None) -> Tensor:
        """All committed state as (n,) uint8, to heal a peer with; `room` is as for `packed`."""
        return packed(self.state(rest), seal, room)

    def restore(self, payload: Tensor, seal: Seal, keep: Sequence[nn.Parameter] = ()) -> dict[str, Any]:
        """Take over a peer's committed state; returns its `rest`.

        Args:
            keep: parameters that the peer does not own; they stay as they are, with their optimiser states.
        """
        return self.take(unpacked_of_any_type(payload, seal), keep)

    @torch.no_grad()
    def take_part(self, state: dict[str, Any], parameters: Sequence[nn.Parameter]) -> None:
        """Take over what `state_of` gave for these parameters: their values and optimiser states."""
        wanted = {id(p) for p in parameters}
        for model, values in zip(self.models, state["models"], strict=True):
            for name, parameter in model.named_parameters():
                if id(parameter) in wanted:
                    parameter.copy_(values[name])
        self.take_states(state["optimizers"], parameters)

    def take_states(self, states: Sequence[dict[str, Any]], parameters: Sequence[nn.Parameter]) -> None:
        """Take over the `optimizers` of what `state_of` gave for these parameters; states of others stay."""
        for (optimizer, _), theirs in zip(self.optimizers, states, strict=True):
            live = [parameter for group in optimizer.param_groups for parameter in group["params"]]
            given = {live[number] for number in theirs["state"]}
            for parameter in parameters:
                if parameter not in given:
                    optimizer.state.pop(parameter, None)
            whole = optimizer.state_dict()
            whole["state"].update(theirs["state"])
            load(optimizer, whole)

    def take(self, state: dict[str, Any], keep: Sequence[nn.Parameter] = ()) -> dict[str, Any]:
        """Take over what `state` gave; as `restore`."""
        # Callbacks that were still due belong to the state that is replaced.
        self._owed = None
        self._check_same_program(state)
        # Before the peer's state overwrites anything.
        own = _Own.of(keep, [optimizer for optimizer, _ in self.optimizers]) if keep else None
        for model, saved in zip(self.models, state["models"], strict=True):
            _load_model(model, saved)
        self._given = state["optimizers"]
        self._waiting = _Waiting(state["optimizers"], state["schedulers"], state["kept"])
        self.take_rest()
        if own is not None:
            own.put_back()
        self.commit_kept()
        rest: dict[str, Any] = state["rest"]
        return rest

    def take_rest(self) -> bool:
        """Take over the states that `take` was given for objects not registered by then, and for optimisers whose
        groups had not all been added. Returns whether none is left."""
        waiting = self._waiting
        for number, (optimizer, _) in enumerate(self.optimizers):
            saved = waiting.optimizers.get(number)
            if saved is not None and _fits(optimizer, saved):
                load(optimizer, waiting.optimizers.pop(number))
        for number, scheduler in enumerate(self.schedulers):
            if number in waiting.schedulers:
                scheduler.load_state_dict(waiting.schedulers.pop(number))
        known = self.kept.keys() & waiting.kept.keys()
        self.set_kept({name: waiting.kept.pop(name) for name in known})
        return not (waiting.optimizers or waiting.schedulers or waiting.kept)

    @contextmanager
    def keeping_states(self) -> Iterator[None]:
        """Keep the optimisers' states as they are while the block takes a peer's state over."""
        kept = [(optimizer, dict(optimizer.state)) for optimizer, _ in self.optimizers]
        for optimizer, _ in kept:  # a peer's states are copied into the tensors that are there
            optimizer.state.clear()
        try:
            yield
        finally:
            for optimizer, states in kept:
                optimizer.state.clear()
                optimizer.state.update(states)

    def add_optimizer(self, optimizer: Optimizer, clip_norm: float | None) -> None:
        """Register an optimiser; it takes the place of another all of whose parameters it has.

        Raises:
            StepMisuse: it has only some of them.
        """
        mine = _parameters(optimizer)
        for number, (other, _) in enumerate(self.optimizers):
            theirs = _parameters(other)
            if theirs <= mine:
                self.optimizers[number] = (optimizer, clip_norm)
                return
            if theirs & mine:
                raise StepMisuse(
                    "an optimiser was registered for some, but not all, parameters of an earlier one.",
                    hint="Give it all parameters of the earlier one, which it then replaces, or none of them.",
                )
        self.optimizers.append((optimizer, clip_norm))

    def take_anew(self, before: Sequence[Optimizer]) -> None:
        """Give optimisers that have replaced those `before` since `take` the states that it was given for them."""
        given, self._given = self._given, ()
        for number, (other, saved) in enumerate(zip(before, given, strict=False)):
            if self.optimizers[number][0] is not other:
                load(self.optimizers[number][0], saved)

    def _check_same_program(self, state: dict[str, Any]) -> None:
        """Check that a peer registered the same; one that is further in the program may have registered more."""
        mine = (len(self.models), len(self.optimizers), len(self.schedulers), sorted(self.kept))
        theirs = (
            len(state["models"]),
            len(state["optimizers"]),
            len(state["schedulers"]),
            sorted(state["kept"]),
        )
        more = mine[1] <= theirs[1] and mine[2] <= theirs[2] and self.kept.keys() <= state["kept"].keys()
        if mine[0] != theirs[0] or not more:
            raise StepMisuse(
                f"this worker registered (models, optimisers, schedulers, kept) {mine}, another one {theirs}.",
                hint="Register the same objects in the same order on every worker, before the first session.batches.",
            )


class _Waiting:
    """States given for registered objects, by number or name, and not taken over yet."""

    def __init__(
        self,
        optimizers: Sequence[dict[str, Any]] = (),
        schedulers: Sequence[dict[str, Any]] = (),
        kept: Mapping[str, Any] = {},
    ) -> None:
        self.optimizers = dict(enumerate(optimizers))
        self.schedulers = dict(enumerate(schedulers))
        self.kept = dict(kept)


def _load_model(model: nn.Module, saved: dict[str, Any]) -> None:
    try:
        model.load_state_dict(saved)
    except RuntimeError as error:
        raise StepMisuse(
            f"a model has other entries on this worker than on the one it gets its state from: {error}",
            hint="Change a model's structure (pruning, new layers, parametrizations) before the first loop only.",
        ) from error


def _parameters(optimizer: Optimizer) -> set[nn.Parameter]:
    return {parameter for group in optimizer.param_groups for parameter in group["params"]}


def _listed(waiting: dict[int, Any], live: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The states by number: a waiting one counts before the live one."""
    count = max([len(live), *(number + 1 for number in waiting)])
    return [waiting[number] if number in waiting else live[number] for number in range(count)]


def _fits(optimizer: Optimizer, saved: dict[str, Any]) -> bool:
    """Whether both have the same parameter groups, and settings of one kind of optimiser."""
    for group, given in zip(optimizer.param_groups, saved["param_groups"], strict=False):
        if of_another_kind(optimizer, group, given):
            return False
    mine = [len(group["params"]) for group in optimizer.param_groups]
    return mine == [len(group["params"]) for group in saved["param_groups"]]


@dataclass(frozen=True, slots=True)
class _Own:
    """A server's part: the values of its parameters, and for each optimiser the state of those."""

    values: list[tuple[nn.Parameter, Tensor]]
    states: list[tuple[Optimizer, dict[Tensor, Any]]]

    @classmethod
    def of(cls, parameters: Sequence[nn.Parameter], optimizers: Sequence[Optimizer]) -> "_Own":
        values = [(p, p.detach().clone()) for p in parameters]
        states: list[tuple[Optimizer, dict[Tensor, Any]]] = []
        for o in optimizers:
            # Out of the optimiser, into whose tensors a peer's states are copied.
            states.append((o, {p: o.state.pop(p) for p in parameters if p in o.state}))
        return cls(values, states)

    @torch.no_grad()
    def put_back(self) -> None:
        """Put the part back; the other parameters' optimiser states, which came along, are dropped."""
        for parameter, value in self.values:
            parameter.copy_(value)
        for optimizer, state in self.states:
            optimizer.state.clear()
            optimizer.state.update(state)
