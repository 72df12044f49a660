"""The outer step of local SGD: the replicas' moves, averaged by rows, and their optimizers' states with them.

Average: Local SGD (Stich, "Local SGD Converges Fast and Communicates Little", 2019). Nesterov: DiLoCo (Douillard et
al., 2023), with that paper's outer learning rate and momentum.

What a replica's own optimizer remembers is averaged like the weights (one of the strategies for the base
optimizer's buffers in SlowMo, Wang et al. 2020), so that a round leaves one committed state: to keep a state a replica
would multiply what a peer is healed with by L, and to start anew would lose momentum and Adam's second moments every H
steps.
"""

import copy
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim import SGD, Optimizer

from ringleader.comm.buckets import drop_gradients, give_gradient, laid_out_as, part_gradients
from ringleader.errors import StepMisuse
from ringleader.train.modes.local_sgd.round_attributes import RoundAttributes
from ringleader.train.modes.local_sgd.round_start import RoundStart
from ringleader.train.state.optimizers.schedules import advance, stepped
from ringleader.train.state.optimizers.state_loading import in_place
from ringleader.train.state.training_state import TrainingState

OUTER_LR, OUTER_MOMENTUM = 0.7, 0.9

OUTER: dict[str, Callable[[list[Parameter]], Optimizer]] = {
    "average": lambda parameters: SGD(parameters, lr=1.0),
    "nesterov": lambda parameters: SGD(parameters, lr=OUTER_LR, momentum=OUTER_MOMENTUM, nesterov=True),
}

# torch's own options that switch an entry of an optimizer's state on or off.
KEEPING = ("momentum", "amsgrad", "centered")

Structure = tuple[tuple[int, ...], tuple[Any, ...]]
"""The structure that carriers are made for: the numbers of the parameters, and the optimizers' groups."""


@dataclass(frozen=True, slots=True)
class OptimizerEntry:
    """One value that an optimizer keeps for a parameter, both by number: the program may make another optimizer of that
    kind in its place. `like` is the value after a first step."""

    optimizer: int
    number: int
    name: str
    like: Any

    @property
    def averaged(self) -> bool:
        return isinstance(self.like, Tensor) and self.like.dim() > 0

    @property
    def counted(self) -> bool:
        """Whether it is a single number: steps taken, for example. An average of those could be no number of steps."""
        return isinstance(self.like, (bool, int, float)) or (
            isinstance(self.like, Tensor) and self.like.dim() == 0
        )

    def filled(self, value: float) -> Any:
        """`value` in the type of this entry."""
        return self.like.clone().fill_(value) if isinstance(self.like, Tensor) else type(self.like)(value)


class OuterStep:
    """Follows the replicas of a round one after the other, and makes the next committed state of their sum.

    Args:
        weights: every parameter. `lay` decides which of them take part, with the state that their optimizers keep.

    Attributes:
        carriers: the parameters whose gradients the exchange sums: the weights' moves, the averaged entries, and one
            table with a row for each replica: which parameters it used, and its counted entries.
        attributes: what optimizers keep outside of their states.
    """

    def __init__(self, held: TrainingState, weights: list[Parameter], shards: int, kind: str) -> None:
        self._held = held
        self._weights = weights
        self._shards = shards
        self._make = OUTER[kind]
        self._laid: Structure | None = None
        self._open = False
        self._momenta: dict[int, dict[str, Any]] = {}
        self._parameters: list[Parameter] = []
        self.attributes = RoundAttributes(held, shards)
        self.carriers: list[Parameter] = []

    def outdated(self, numbers: Sequence[int]) -> bool:
        """Whether these parameters, or what the optimizers keep of them, differ from those of the last `lay`."""
        return self._laid != self._structure(numbers)

    @property
    def switched(self) -> str | None:
        """An option that decides what torch's optimizers keep, and was switched on or off since the last `lay`; None
        where there is none."""
        if self._laid is None:
            return None
        before, now = self._laid[1], self._structure(self._laid[0])[1]
        for (_, _, laid), (_, _, live) in zip(before, now, strict=False):
            for one, other in zip(laid, live, strict=False):
                if one != other and other[0] in KEEPING:
                    return str(other[0])
        return None

    def lay(self, numbers: Sequence[int]) -> None:
        """Set the parameters that take part from now on, by number, with the optimizers that there are."""
        if not self.outdated(numbers):
            return
        self._momenta, self._laid = self.state_dict(), self._structure(numbers)
        self._parameters = parameters = [self._weights[number] for number in numbers]
        self._origin = RoundStart(self._held, parameters)
        self._optimizer = self._make(parameters)
        self._remember()
        self._entries = list(self._first_entries()) if self._held.optimizers else []
        self._averaged = [entry for entry in self._entries if entry.averaged]
        self._counted = [entry for entry in self._entries if entry.counted]
        self._touched = [False] * len(parameters)
        device = self._weights[0].device
        self._table = _carrier((self._shards, len(parameters) + len(self._counted)), torch.float64, device)
        states = [_carrier(e.like.shape, e.like.dtype, e.like.device) for e in self._averaged]
        self.carriers = [*parameters, *states, self._table]

    def open(self) -> None:
        """Begin a round from the live state."""
        self._origin.take()
        self.attributes.begin()
        self._open = True

    def rewind(self) -> None:
        """Go back to the round's start: the next replica begins, or the loop's body has left within one."""
        # Behind a commit there is no round to go back on: what is live is committed, or was healed.
        if self._open:
            self._origin.put()
            self._touched = [False] * len(self._parameters)

    def give_up(self) -> None:
        """Take back a round that is open; where none is, the live state stays: it is committed, or was healed."""
        self.rewind()
        self._open = False

    def close(self) -> None:
        """Mark the round as committed: what breaks from here on takes nothing of it back."""
        self._open = False

    def inner_step(self, loss: Tensor, check: Callable[[], None], backward: Callable[[Tensor], None]) -> None:
        """Make one step of the running replica, as in one process: backward, clip, optimizers, schedules.

        Args:
            check: looks at the gradients before anything changes by them.
            backward: runs the loss's backward.
        """
        drop_gradients(self._weights)
        backward(loss)
        check()
        part_gradients(self._parameters)
        for number, parameter in enumerate(self._parameters):
            if parameter.grad is not None:
                self._touched[number] = True
        self._held.update()
        for scheduler in stepped(self._held.schedulers, self._held.replaced):
            advance(scheduler)

    def moves(self, shard: int, share: float) -> dict[int, Tensor]:
        """The running replica's part in the sum, by the numbers of carriers.

        Args:
            share: of the round's rows.
        """
        count = len(self._parameters)
        moves = {
            # Start minus end, since SGD subtracts: with learning rate 1 the weights arrive at the mean end.
            number: (self._origin.weights[number] - parameter.detach()) * share
            for number, parameter in enumerate(self._parameters)
            if self._touched[number]
        }
        for number, entry in enumerate(self._averaged, start=count):
            value = self._kept(entry)
            if value is not None:
                moves[number] = value * share
        # A row for each replica, so that the sum keeps them apart: counts are taken from one, never averaged.
        table = torch.zeros(self._table.shape, dtype=torch.float64)
        table[shard, :count] = torch.tensor(self._touched, dtype=torch.float64)
        counts = [float(self._kept(entry) or 0.0) for entry in self._counted]
        table[shard, count:] = torch.tensor(counts, dtype=torch.float64)
        moves[len(self.carriers) - 1] = table.to(self._table.device)
        return moves

    def bring(self, moves: Mapping[int, Tensor]) -> None:
        """Give a replica to the slice that the exchange has open, as the gradients of the carriers."""
        for number, move in moves.items():
            # By autograd: the exchange's hooks fill its buckets. A clone, as autograd may keep the tensor as `.grad`.
            torch.autograd.backward([self.carriers[number]], [move.clone()])

    @torch.no_grad()
    def commit(self, scale: float) -> None:
        """Make the outer step, from the sums in the carriers' gradients. Schedules stand where the round began.

        Args:
            scale: turns shares of the round's rows into shares of its weights.
        """
        # The live state is the last replica's: the outer step starts from the committed one.
        self._origin.put()
        assert self._table.grad is not None
        # Once: each number read from a device would wait for it.
        table = self._table.grad.cpu()
        count = len(self._parameters)
        users = [_first(table[:, number]) for number in range(count)]
        for parameter, user in zip(self._parameters, users, strict=True):
            parameter.grad = None if user is None or parameter.grad is None else parameter.grad * scale
        self._optimizer.step()
        self._start_states(users)
        for carrier, entry in zip(self.carriers[count:-1], self._averaged, strict=True):
            if users[entry.number] is not None and carrier.grad is not None:
                self._keep(entry, laid_out_as(entry.like, carrier.grad * scale))
        for place, entry in enumerate(self._counted, start=count):
            user = users[entry.number]
            if user is not None:
                self._keep(entry, entry.filled(float(table[user, place])))
        self.attributes.commit()

    def state_dict(self) -> dict[int, dict[str, Any]]:
        """The outer optimizer's state of parameters, by their numbers."""
        if self._laid is None:
            return self._momenta
        live = self._optimizer.state
        return self._momenta | {n: live[p] for n, p in enumerate(self._weights) if p in live}

    def load_state_dict(self, state: dict[Any, Any], numbers: Sequence[int]) -> None:
        """Take over a `state_dict`; in checkpoints of earlier versions it counted the trained parameters.

        Args:
            numbers: of those.
        """
        if "state" in state:
            state = {numbers[place]: kept for place, kept in state["state"].items()}
        self._momenta = dict(state)
        if self._laid is not None:
            self._remember()

    def _remember(self) -> None:
        """Load the outer state that is known into the outer optimizer."""
        self._optimizer.state.clear()
        trained = set(self._parameters)
        for number, kept in self._momenta.items():
            if (parameter := self._weights[number]) in trained:
                self._optimizer.state[parameter] = {
                    name: _beside(parameter, value) if isinstance(value, Tensor) else value
                    for name, value in kept.items()
                }

    def _structure(self, numbers: Sequence[int]) -> Structure:
        """The structure on which the carriers depend: the parameters, and for each optimizer its groups and which
        options are on."""
        places = {p: number for number, p in enumerate(self._weights)}
        groups = [
            (
                type(optimizer).__name__,
                tuple(places.get(p, -1) for p in group["params"]),
                tuple(
                    (name, bool(value)) for name, value in sorted(group.items()) if _is_option(name, value)
                ),
            )
            for optimizer, _ in self._held.optimizers
            for group in optimizer.param_groups
        ]
        return tuple(numbers), tuple(groups)

    def _first_entries(self) -> Iterator[OptimizerEntry]:
        """The optimizers' entries, seen after a first step with zero gradients, which is then taken back."""
        drop_gradients(self._weights)
        for parameter in self._parameters:
            give_gradient(parameter, torch.zeros_like(parameter))
        # Not deep: the step below begins with empty state, and changes none of these entries.
        before = [dict(optimizer.state) for optimizer, _ in self._held.optimizers]
        for optimizer, _ in self._held.optimizers:
            # From empty state: some entries are made in a first step only.
            optimizer.state.clear()
            optimizer.step()
        for place, (optimizer, _) in enumerate(self._held.optimizers):
            for number, parameter in enumerate(self._parameters):
                for name, value in optimizer.state.get(parameter, {}).items():
                    entry = OptimizerEntry(place, number, name, copy.deepcopy(value))
                    _check(entry, optimizer)
                    yield entry
        for (optimizer, _), states in zip(self._held.optimizers, before, strict=True):
            optimizer.state.clear()
            optimizer.state.update(states)
        # A step with zero gradients may move weights all the same, by weight decay for example.
        self._origin.put()
        drop_gradients(self._parameters)

    def _start_states(self, users: list[int | None]) -> None:
        """Give parameters that were used for the first time their optimizer's entries."""
        for entry in self._entries:
            if users[entry.number] is not None:
                self._keep(entry, copy.deepcopy(entry.like))

    def _kept(self, entry: OptimizerEntry) -> Any:
        return self._states(entry).get(self._parameters[entry.number], {}).get(entry.name)

    def _keep(self, entry: OptimizerEntry, value: Any) -> None:
        state = self._states(entry)[self._parameters[entry.number]]
        state[entry.name] = in_place(state.get(entry.name), value)

    def _states(self, entry: OptimizerEntry) -> defaultdict[Tensor, Any]:
        # Looked up each time: between two loops the program may have made another one.
        optimizer, _ = self._held.optimizers[entry.optimizer]
        return optimizer.state


def _beside(parameter: Parameter, value: Tensor) -> Tensor:
    """A copy on the device of the parameter."""
    return laid_out_as(parameter, value.to(parameter.device, copy=True))


def _is_option(name: str, value: Any) -> bool:
    """Whether it may decide what an optimizer keeps: a momentum does, a rate that a schedule changes does not."""
    return name not in ("lr", "initial_lr") and isinstance(value, (bool, int, float, type(None)))


def _carrier(shape: torch.Size | tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Parameter:
    """A parameter of which only the gradient matters: it has a shape and takes no memory."""
    return Parameter(torch.zeros((), dtype=dtype, device=device).expand(shape))


def _first(column: Tensor) -> int | None:
    """The number of the first replica with an entry."""
    found = column.nonzero()
    return int(found[0]) if len(found) else None


def _check(entry: OptimizerEntry, optimizer: Optimizer) -> None:
    if (entry.averaged and entry.like.is_floating_point()) or entry.counted or entry.like is None:
        return
    raise StepMisuse(
        f"{type(optimizer).__name__} keeps {entry.name!r}, a {type(entry.like).__name__}, for a parameter, "
        f"which cannot be averaged.",
        hint="With sync: local_sgd an optimizer's state may hold floating-point tensors and single numbers only.",
    )
