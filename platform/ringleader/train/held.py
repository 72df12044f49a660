"""Everything a step commits: models, optimisers, schedulers, kept objects and callbacks."""

import copy
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from ringleader.errors import StepMisuse
from ringleader.train.norms import BLOCK, Complete, block_sums, clip, itself
from ringleader.train.optimizer_states import load
from ringleader.train.streams import seed_all
from ringleader.train.tables import step


class Stateful(Protocol):
    """What `session.keep` takes."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any], /) -> Any: ...


class Held:
    """The registered objects, in the order the training function registered them."""

    def __init__(self) -> None:
        self.models: list[nn.Module] = []
        self.optimizers: list[tuple[Optimizer, float | None]] = []
        self.schedulers: list[LRScheduler] = []
        self.kept: dict[str, Stateful] = {}
        self.callbacks: list[Callable[[], None]] = []
        self.committed_kept: dict[str, dict[str, Any]] = {}

    def add_scheduler(self, scheduler: LRScheduler) -> None:
        # Where servers own the optimiser, a worker's own never steps; torch's order check must not warn about it.
        scheduler.optimizer._opt_called = True  # type: ignore[attr-defined]
        self.schedulers.append(scheduler)

    @property
    def parameters(self) -> list[nn.Parameter]:
        """Every trainable parameter once, in registration order."""
        return list(self.named_parameters.values())

    @property
    def named_parameters(self) -> dict[str, nn.Parameter]:
        """The same under the number of the model and the name in it."""
        seen: dict[int, tuple[str, nn.Parameter]] = {}
        for number, model in enumerate(self.models):
            for name, parameter in model.named_parameters():
                if parameter.requires_grad:
                    seen.setdefault(id(parameter), (f"{number}.{name}", parameter))
        return dict(seen.values())

    @property
    def spoken_parameters(self) -> dict[str, nn.Parameter]:
        """The same, without the number where there is one model: as the user knows them."""
        named = self.named_parameters
        return {n.partition(".")[2]: p for n, p in named.items()} if len(self.models) == 1 else named

    def check_covered(self, exchanged: list[nn.Parameter]) -> None:
        """Every optimiser's parameters are exchanged, and nothing was unfrozen since the first exchange.

        Raises:
            StepMisuse: naming what is wrong.
        """
        if not self.optimizers:
            raise StepMisuse(
                "no optimiser is registered.", hint="Call session.optimizer(...) before the first loop."
            )
        known = {id(p) for p in exchanged}
        groups = (group["params"] for optimizer, _ in self.optimizers for group in optimizer.param_groups)
        strangers = sum(p.requires_grad and id(p) not in known for params in groups for p in params)
        if strangers:
            raise StepMisuse(
                f"{strangers} trainable parameters of the optimisers are not exchanged between workers.",
                hint="Pass every model through session.model(...) and freeze or unfreeze before the first loop.",
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
            complete: makes the block sums of the whole norm of those over the gradients that are here.
            applied: this update has been made; the others still need this member's part of the norm.
        """
        # All that can break comes before anything that changes a weight.
        for optimizer, clip_norm in self.optimizers:
            if clip_norm is not None:
                parameters = [p for group in optimizer.param_groups for p in group["params"]]
                clip(parameters, clip_norm, complete)
        for optimizer, _ in self.optimizers:
            if not applied:
                step(optimizer, self.spoken_parameters)

    def settings(self) -> list[dict[str, Any]]:
        """Of every parameter group of every optimiser all but its parameters; a copy."""
        return [
            copy.deepcopy({key: value for key, value in group.items() if key != "params"})
            for optimizer, _ in self.optimizers
            for group in optimizer.param_groups
        ]

    def set(self, settings: Sequence[dict[str, Any]]) -> None:
        """Take over what `settings` gave on a peer."""
        groups = [group for optimizer, _ in self.optimizers for group in optimizer.param_groups]
        for group, given in zip(groups, settings, strict=True):
            group.update(given)

    @property
    def weights(self) -> list[nn.Parameter]:
        """Every parameter, frozen ones too."""
        return [parameter for model in self.models for parameter in model.parameters()]

    def marks(self, weights: Sequence[nn.Parameter]) -> list[tuple[int, int]]:
        """Differ from those of before once somebody has changed one of the weights or an optimiser's state in place,
        or put another tensor there. What is changed through `parameter.data` in place leaves no mark."""
        marks = [(p.data_ptr(), 0 if p.is_inference() else p._version) for p in weights]
        states = [
            (id(tensor), tensor._version)
            for optimizer, _ in self.optimizers
            for state in optimizer.state.values()
            for tensor in state.values()
            if isinstance(tensor, Tensor)
        ]
        groups = [group for optimizer, _ in self.optimizers for group in optimizer.param_groups]
        return [*marks, *states, *((number, len(group["params"])) for number, group in enumerate(groups))]

    def updated_places(self) -> frozenset[int]:
        """Where everything lies that `marks` watches: weights and optimisers' states."""
        states = (state for optimizer, _ in self.optimizers for state in optimizer.state.values())
        tensors = (tensor for state in states for tensor in state.values() if isinstance(tensor, Tensor))
        return frozenset(tensor.data_ptr() for tensor in (*self.weights, *tensors))

    @contextmanager
    def at_rate(self, factor: float) -> Iterator[None]:
        """Every learning rate is so much of itself while the block lasts.

        Raises:
            StepMisuse: an optimiser has no `lr`.
        """
        groups = [group for optimizer, _ in self.optimizers for group in optimizer.param_groups]
        if any("lr" not in group for group in groups):
            raise StepMisuse(
                "an optimiser has no learning rate `lr` in its parameter groups.",
                hint="consistency: async scales it by an item's share of the batch; use another consistency.",
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
        """How many `norm_blocks` there are."""
        clipped = [optimizer for optimizer, clip_norm in self.optimizers if clip_norm is not None]
        groups = [group for optimizer in clipped for group in optimizer.param_groups]
        return sum(-(-p.numel() // BLOCK) for group in groups for p in group["params"])

    def norm_blocks(self) -> list[Tensor]:
        """() float64 squares by blocks of every norm that clips, one after the other, over the gradients here."""
        return [
            block
            for optimizer, clip_norm in self.optimizers
            if clip_norm is not None
            for block in block_sums([p for group in optimizer.param_groups for p in group["params"]])
        ]

    def after_update(self, seed: int, step: int, *, published: bool = False, skipped: bool = False) -> None:
        """What happens once per committed step on every member.

        Args:
            seed, step: what callbacks draw follows from them, not from what the update drew here.
            published: the weights here are what servers have made of them, who ran the callbacks themselves.
            skipped: no optimiser made a step, so schedules make none either.

        Raises:
            StepMisuse: a callback changed such weights.
        """
        if self.callbacks:
            seed_all(seed, "commit", step)
        for scheduler in () if skipped else self.schedulers:
            scheduler.step()
        named = self.spoken_parameters if published and self.callbacks else {}
        before = {name: parameter._version for name, parameter in named.items()}
        for callback in self.callbacks:
            callback()
        changed = [name for name, parameter in named.items() if parameter._version != before[name]]
        if changed:
            raise StepMisuse(
                f"an on_commit callback changed {changed[0]}, which parameter servers publish.",
                hint="Change weights in an optimiser of your own, or with sync: ring.",
            )
        self.commit_kept()

    def commit_kept(self) -> None:
        self.committed_kept = self.copied_kept()

    def copied_kept(self) -> dict[str, dict[str, Any]]:
        return {name: copy.deepcopy(kept.state_dict()) for name, kept in self.kept.items()}

    def rewind_kept(self) -> None:
        """Before a replay: kept objects that the loop body touched go back to the committed step."""
        self.set_kept(copy.deepcopy(self.committed_kept))

    def set_kept(self, states: Mapping[str, Any]) -> None:
        for name, state in states.items():
            self.kept[name].load_state_dict(state)

    def state(self, rest: dict[str, Any]) -> dict[str, Any]:
        """All committed state: the live objects' own tensors, and `rest`."""
        return {
            "models": [model.state_dict() for model in self.models],
            "optimizers": [optimizer.state_dict() for optimizer, _ in self.optimizers],
            "schedulers": [scheduler.state_dict() for scheduler in self.schedulers],
            "kept": {name: kept.state_dict() for name, kept in self.kept.items()},
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
            saved = optimizer.state_dict()
            live = (p for group in optimizer.param_groups for p in group["params"])
            numbers = (n for group in saved["param_groups"] for n in group["params"])
            own = {number for p, number in zip(live, numbers, strict=True) if id(p) in wanted}
            optimizers.append({"state": {n: state for n, state in saved["state"].items() if n in own}})
        return {"models": models, "optimizers": optimizers}

    def payload(self, rest: dict[str, Any]) -> Tensor:
        """All committed state as (n,) uint8, to heal a peer with."""
        return packed(self.state(rest))

    def restore(self, payload: Tensor, keep: Sequence[nn.Parameter] = ()) -> dict[str, Any]:
        """Take over a peer's committed state; returns its `rest`.

        Args:
            keep: parameters that the peer does not own: they stay as they are, with their optimiser state.
        """
        return self.take(unpacked(payload), keep)

    @torch.no_grad()
    def take_part(self, state: dict[str, Any], parameters: Sequence[nn.Parameter]) -> None:
        """Take over what `state_of` gave for these parameters: their values and optimiser states."""
        wanted = {id(p) for p in parameters}
        for model, values in zip(self.models, state["models"], strict=True):
            for name, parameter in model.named_parameters():
                if id(parameter) in wanted:
                    parameter.copy_(values[name])
        for (optimizer, _), theirs in zip(self.optimizers, state["optimizers"], strict=True):
            whole = optimizer.state_dict()
            whole["state"].update(theirs["state"])
            load(optimizer, whole)

    def take(self, state: dict[str, Any], keep: Sequence[nn.Parameter] = ()) -> dict[str, Any]:
        """Take over what `state` gave; as `restore`."""
        own = _Own.of(keep, [optimizer for optimizer, _ in self.optimizers]) if keep else None
        self._check_same_program(state)
        for model, saved in zip(self.models, state["models"], strict=True):
            model.load_state_dict(saved)
        for (optimizer, _), saved in zip(self.optimizers, state["optimizers"], strict=True):
            load(optimizer, saved)
        for scheduler, saved in zip(self.schedulers, state["schedulers"], strict=True):
            scheduler.load_state_dict(saved)
        self.set_kept(state["kept"])
        if own is not None:
            own.put_back()
        self.commit_kept()
        rest: dict[str, Any] = state["rest"]
        return rest

    def begin_with(self, models: Sequence[dict[str, Any]]) -> "Matched":
        """Take over what has the same name and shape from the states of other models; all else stays as it is."""
        mine = [
            {n: t for n, t in model.state_dict().items() if isinstance(t, Tensor)} for model in self.models
        ]
        matched = Matched([], [], [], [])
        for number in range(max(len(mine), len(models))):
            own = mine[number] if number < len(mine) else {}
            given = models[number] if number < len(models) else {}
            taken = matched.add(own, given, f"{number}." if len(self.models) > 1 else "")
            if taken:
                self.models[number].load_state_dict(taken, strict=False)
        self.commit_kept()
        return matched

    def _check_same_program(self, state: dict[str, Any]) -> None:
        mine = (len(self.models), len(self.optimizers), len(self.schedulers), sorted(self.kept))
        theirs = (
            len(state["models"]),
            len(state["optimizers"]),
            len(state["schedulers"]),
            sorted(state["kept"]),
        )
        if mine != theirs:
            raise StepMisuse(
                f"this worker registered (models, optimisers, schedulers, kept) {mine}, its peer {theirs}.",
                hint="Register the same objects in the same order on every worker before the first batches call.",
            )


def packed(state: dict[str, Any]) -> Tensor:
    """(n,) uint8."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return torch.from_numpy(np.frombuffer(buffer.getbuffer(), dtype=np.uint8))


def unpacked(payload: Tensor) -> dict[str, Any]:
    """What `packed` made. Members of one job trust each other: kept objects may hold any type, so this is a full
    unpickling."""
    state: dict[str, Any] = torch.load(io.BytesIO(payload.numpy().tobytes()), weights_only=False)
    return state


@dataclass(frozen=True, slots=True)
class Matched:
    """Names of weights: of those taken over, and of the others why not."""

    taken: list[str]
    only_here: list[str]
    only_there: list[str]
    other_shape: list[str]

    def add(self, own: Mapping[str, Tensor], given: Mapping[str, Any], prefix: str) -> dict[str, Tensor]:
        """Compare two models. Returns what can be taken over."""
        both = own.keys() & given.keys()
        fits = {name for name in both if own[name].shape == getattr(given[name], "shape", None)}
        lists = (self.taken, self.only_here, self.only_there, self.other_shape)
        found = (fits, own.keys() - both, given.keys() - both, both - fits)
        for names, news in zip(lists, found, strict=True):
            names += [prefix + name for name in sorted(news)]
        return {name: given[name] for name in fits}

    def told(self) -> dict[str, Any]:
        return {"taken": len(self.taken)} | {
            "only_here": self.only_here,
            "only_there": self.only_there,
            "other_shape": self.other_shape,
        }


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
            states.append((o, {p: o.state[p] for p in parameters if p in o.state}))
        return cls(values, states)

    @torch.no_grad()
    def put_back(self) -> None:
        """The others' optimiser state, which came along, is dropped."""
        for parameter, value in self.values:
            parameter.copy_(value)
        for optimizer, state in self.states:
            optimizer.state.clear()
            optimizer.state.update(state)
