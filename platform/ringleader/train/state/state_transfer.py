"""The registered objects' state on its way to peers and to checkpoints, and back."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ringleader.comm.objects import packed, unpacked_of_any_type
from ringleader.comm.seal import Seal
from ringleader.errors import StepMisuse
from ringleader.train.state.model_structure import alike
from ringleader.train.state.optimizers.own_attributes import ATTRIBUTES
from ringleader.train.state.optimizers.state_loading import load, of_another_kind
from ringleader.train.state.training_state import TrainingState


class StateTransfer:
    """The giving and taking of one member's registered state. What was given for an object that the program has yet to
    register, or for an optimizer's group that it has yet to add, waits for that."""

    def __init__(self, held: TrainingState) -> None:
        self._held = held
        self._waiting = _Waiting()
        self._keeps_states = False

    @property
    def waiting_optimizers(self) -> Collection[int]:
        """The numbers of the optimizers whose given state waits."""
        return self._waiting.optimizers.keys()

    def check_complete(self) -> None:
        """Check that all that a peer has is registered. Raises StepMisuse: some of it is not."""
        if not self.take_rest():
            raise StepMisuse(
                "this worker registered fewer optimizers, schedulers or kept objects than another one, "
                "or an optimizer with other parameter groups.",
                hint="Register the same objects in the same order on every worker.",
            )

    def state(self, rest: dict[str, Any]) -> dict[str, Any]:
        """All committed state: the live objects' own tensors, and `rest`."""
        return {
            "models": [model.state_dict() for model in self._held.models],
            "optimizers": _listed(
                self._waiting.optimizers,
                [o.state_dict() | self._attributes(o) for o, _ in self._held.optimizers],
            ),
            "names": _listed(self._waiting.names_of_waiting(), self._held.optimized_names()),
            "schedulers": _listed(self._waiting.schedulers, [s.state_dict() for s in self._held.schedulers]),
            "kept": self._held.kept.states() | self._waiting.kept,
            "rest": rest,
        }

    def state_of(self, parameters: Sequence[nn.Parameter]) -> dict[str, Any]:
        """The values of these parameters under their names in the models, and their optimizer states."""
        wanted = {id(p) for p in parameters}
        models = [
            {name: p.detach() for name, p in model.named_parameters() if id(p) in wanted}
            for model in self._held.models
        ]
        optimizers = []
        for (optimizer, _), named in zip(self._held.optimizers, self._held.optimized_names(), strict=True):
            saved = optimizer.state_dict()
            live = (p for group in optimizer.param_groups for p in group["params"])
            numbered = zip(live, _numbers(saved), named, strict=True)
            names = {number: name for p, number, name in numbered if id(p) in wanted}
            states = {n: state for n, state in saved["state"].items() if n in names}
            optimizers.append({"state": states, "names": names} | self._attributes(optimizer))
        return {"models": models, "optimizers": optimizers}

    def payload(self, rest: dict[str, Any], seal: Seal, room: Tensor | None = None) -> Tensor:
        """All committed state as (n,) uint8, to heal a peer with; `room` is as for `packed`."""
        return packed(self.state(rest), seal, room)

    def restore(self, payload: Tensor, seal: Seal, keep: Sequence[nn.Parameter] = ()) -> dict[str, Any]:
        """Take over a peer's committed state; returns its `rest`.

        Args:
            keep: parameters that the peer does not own; they stay as they are, with their optimizer states.
        """
        return self.take(unpacked_of_any_type(payload, seal), keep)

    @torch.no_grad()
    def take_part(self, state: dict[str, Any], parameters: Sequence[nn.Parameter]) -> None:
        """Take over what `state_of` gave for these parameters: their values and optimizer states."""
        wanted = {id(p) for p in parameters}
        for model, values in zip(self._held.models, state["models"], strict=True):
            for name, parameter in model.named_parameters():
                if id(parameter) in wanted:
                    parameter.copy_(values[name])
        self.take_states(state["optimizers"], parameters)

    def take_states(self, states: Sequence[dict[str, Any]], parameters: Sequence[nn.Parameter]) -> None:
        """Take over the `optimizers` of what `state_of` gave for these parameters; states of others stay. Those of an
        optimizer whose whole state waits join it."""
        named = self._held.named_parameters
        wanted = {id(parameter) for parameter in parameters}
        left = {name for name, parameter in named.items() if id(parameter) in wanted}
        live = self._held.optimized_names()
        for number, theirs in enumerate(states):
            waits = self._waiting.optimizers.get(number)
            whole = self._held.optimizers[number][0].state_dict() if waits is None else waits
            names = live[number] if waits is None else self._waiting.names.get(number, [])
            numbers = dict(zip(names, _numbers(whole), strict=False))
            # Taken out first: where the newer state has no entry, none of the older one's must stay.
            for name in left & numbers.keys():
                whole["state"].pop(numbers[name], None)
            for n, state in theirs["state"].items():
                # Without names, as checkpoints of earlier versions are, the numbers are those of the same program.
                whole["state"][numbers.get(theirs["names"][n], n)] = state
            if waits is None:
                optimizer, _ = self._held.optimizers[number]
                load(optimizer, whole)
                if ATTRIBUTES in theirs:
                    self._held.attributes.put(optimizer, theirs[ATTRIBUTES])

    def take(self, state: dict[str, Any], keep: Sequence[nn.Parameter] = ()) -> dict[str, Any]:
        """Take over what `state` gave; as `restore`."""
        # Callbacks that were still due belong to the state that is replaced.
        self._held.owe_callbacks(None)
        self._check_same_program(state)
        # Before the peer's state overwrites anything.
        own = _Own.of(keep, [optimizer for optimizer, _ in self._held.optimizers]) if keep else None
        for model, saved in zip(self._held.models, state["models"], strict=True):
            _load_model(model, saved, left=state["rest"].get("left", False))
        # Checkpoints of earlier versions may have no names.
        names = state.get("names", ())
        optimizers = state["optimizers"]
        if keep or self._keeps_states:  # what steps change beside states is this server's, too
            mine = {number: self._attributes(o) for number, (o, _) in enumerate(self._held.optimizers)}
            optimizers = [_without(saved) | mine.get(n, {}) for n, saved in enumerate(optimizers)]
        self._waiting = _Waiting(optimizers, names, state["schedulers"], state["kept"])
        self.take_rest()
        if own is not None:
            own.put_back()
        self._held.kept.commit()
        rest: dict[str, Any] = state["rest"]
        return rest

    def take_rest(self) -> bool:
        """Take over the states that `take` was given for objects not registered by then, and for optimizers whose
        groups had not all been added. Returns whether none is left."""
        waiting = self._waiting
        for number, names in enumerate(self._held.optimized_names() if waiting.optimizers else ()):
            optimizer, _ = self._held.optimizers[number]
            saved = waiting.optimizers.get(number)
            if saved is not None and _fits(optimizer, saved):
                arranged = _arranged(saved, waiting.names.get(number, names), names)
                if arranged is not None:
                    load(optimizer, _without(arranged))
                    attributes = arranged.get(ATTRIBUTES, {})
                    self._held.attributes.put(optimizer, attributes)
                    del waiting.optimizers[number]
        for number, scheduler in enumerate(self._held.schedulers):
            if number in waiting.schedulers:
                scheduler.load_state_dict(waiting.schedulers.pop(number))
        known = self._held.kept.keys() & waiting.kept.keys()
        self._held.kept.put({name: waiting.kept.pop(name) for name in known})
        return not (waiting.optimizers or waiting.schedulers or waiting.kept)

    @contextmanager
    def keeping_states(self) -> Iterator[None]:
        """Keep the optimizers' states as they are while the block takes a peer's state over."""
        kept = [(optimizer, dict(optimizer.state)) for optimizer, _ in self._held.optimizers]
        for optimizer, _ in kept:  # a peer's states are copied into the tensors that are there
            optimizer.state.clear()
        self._keeps_states = True
        try:
            yield
        finally:
            self._keeps_states = False
            for optimizer, states in kept:
                optimizer.state.clear()
                optimizer.state.update(states)

    def _attributes(self, optimizer: Optimizer) -> dict[str, Any]:
        """The entry of an optimizer's saved state with its own attributes; none where there are none. An entry of None
        says that they cannot be sent."""
        sent = self._held.attributes.sent(optimizer)
        return {ATTRIBUTES: sent} if sent != {} else {}

    def _check_same_program(self, state: dict[str, Any]) -> None:
        """Check that a peer registered the same; one that is further in the program may have registered more."""
        held = self._held
        mine = (len(held.models), len(held.optimizers), len(held.schedulers), sorted(held.kept))
        theirs = (
            len(state["models"]),
            len(state["optimizers"]),
            len(state["schedulers"]),
            sorted(state["kept"]),
        )
        more = mine[1] <= theirs[1] and mine[2] <= theirs[2] and held.kept.keys() <= state["kept"].keys()
        if mine[0] != theirs[0] or not more:
            raise StepMisuse(
                f"this worker registered (models, optimizers, schedulers, kept) {mine}, another one {theirs}.",
                hint="Register the same objects in the same order on every worker, before the first session.batches.",
            )


class _Waiting:
    """States given for registered objects, by number or name, and not taken over yet."""

    def __init__(
        self,
        optimizers: Sequence[dict[str, Any]] = (),
        names: Sequence[list[str]] = (),
        schedulers: Sequence[dict[str, Any]] = (),
        kept: Mapping[str, Any] = {},
    ) -> None:
        self.optimizers = dict(enumerate(optimizers))
        self.names = {number: given for number, given in enumerate(names) if any(given)}
        self.schedulers = dict(enumerate(schedulers))
        self.kept = dict(kept)

    def names_of_waiting(self) -> dict[int, list[str]]:
        """By optimizer that waits, the names of its parameters; empty names where they were not given."""
        return {
            number: self.names.get(
                number, [""] * sum(len(group["params"]) for group in saved["param_groups"])
            )
            for number, saved in self.optimizers.items()
        }


def _load_model(model: nn.Module, saved: dict[str, Any], *, left: bool) -> None:
    """Load a peer's model: where its program has `left` its last loop, the entries that are still alike. The others are
    made by the lines behind the loop, here too, of values that a boundary has if they read some."""
    if left:
        model.load_state_dict(alike(model, saved), strict=False)
        return
    try:
        model.load_state_dict(saved)
    except RuntimeError as error:
        raise StepMisuse(
            f"a model has other entries on this worker than on the one it gets its state from: {error}",
            hint="Change a model's structure (pruning, new layers, parametrizations) before the first loop only.",
        ) from error


def _listed(waiting: dict[int, Any], live: Sequence[Any]) -> list[Any]:
    """The states by number: a waiting one counts before the live one."""
    count = max([len(live), *(number + 1 for number in waiting)])
    return [waiting[number] if number in waiting else live[number] for number in range(count)]


def _without(saved: Mapping[str, Any]) -> dict[str, Any]:
    """An optimizer's saved state as its `load_state_dict` knows it."""
    return {key: value for key, value in saved.items() if key != ATTRIBUTES}


def _numbers(saved: Mapping[str, Any]) -> list[int]:
    """The numbers of a state dict's parameters, in the order of its groups."""
    return [number for group in saved["param_groups"] for number in group["params"]]


def _fits(optimizer: Optimizer, saved: dict[str, Any]) -> bool:
    """Whether both have the same parameter groups, and settings of one kind of optimizer."""
    for group, given in zip(optimizer.param_groups, saved["param_groups"], strict=False):
        if of_another_kind(optimizer, group, given):
            return False
    mine = [len(group["params"]) for group in optimizer.param_groups]
    return mine == [len(group["params"]) for group in saved["param_groups"]]


def _arranged(saved: dict[str, Any], theirs: Sequence[str], mine: Sequence[str]) -> dict[str, Any] | None:
    """A saved state with the parameters of each group in the order that they have here; None: a group has others.

    Args:
        theirs, mine: the names of the parameters there and here. Numbers alone would give each one the state of another
            where the program has made an optimizer of the same parameters in another order since.
    """
    groups, start = [], 0
    for group in saved["param_groups"]:
        span = slice(start, start + len(group["params"]))
        given, wanted = theirs[span], mine[span]
        if sorted(given) != sorted(wanted):
            return None
        # Both sides by name, so that what stands at one place belongs to one parameter.
        numbers = [number for _, number in sorted(zip(given, group["params"], strict=True))]
        places = sorted(range(len(wanted)), key=lambda place: wanted[place])
        by_place = dict(zip(places, numbers, strict=True))
        groups.append(group | {"params": [by_place[place] for place in range(len(wanted))]})
        start = span.stop
    return saved | {"param_groups": groups}


@dataclass(frozen=True, slots=True)
class _Own:
    """A server's part: the values of its parameters, and for each optimizer the state of those."""

    values: list[tuple[nn.Parameter, Tensor]]
    states: list[tuple[Optimizer, dict[Tensor, Any]]]

    @classmethod
    def of(cls, parameters: Sequence[nn.Parameter], optimizers: Sequence[Optimizer]) -> "_Own":
        values = [(p, p.detach().clone()) for p in parameters]
        states: list[tuple[Optimizer, dict[Tensor, Any]]] = []
        for o in optimizers:
            # Out of the optimizer, into whose tensors a peer's states are copied.
            states.append((o, {p: o.state.pop(p) for p in parameters if p in o.state}))
        return cls(values, states)

    @torch.no_grad()
    def put_back(self) -> None:
        """Put the part back; the other parameters' optimizer states, which came along, are dropped."""
        for parameter, value in self.values:
            parameter.copy_(value)
        for optimizer, state in self.states:
            optimizer.state.clear()
            optimizer.state.update(state)
