"""Sections: the program's own lines between two session calls, and the state on which they run here.

A member that runs them for the first time does so on the live state, and what they read of it is recorded. One that was
given a newer state runs them on what was recorded: a joiner, a member of a resumed job, one that was healed across the
end of a call. Where it reaches the call in which the state was given, it takes that state up again.
"""

import copy
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from threading import get_ident
from types import CodeType
from typing import Any

import torch
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from ringleader.comm.shared_weights import point_at
from ringleader.program_text.current_line import calling_line, running_frames
from ringleader.program_text.loop_bodies import text_of
from ringleader.program_text.variables.assigned_names import assigned_now
from ringleader.train.between_calls.boundaries import (
    MODELS,
    OPTIMIZERS,
    CallBoundary,
    States,
    Tensors,
    copied_tensors,
    keep_common,
    put_settings,
    put_tensors,
    settings_of,
    storages_of,
    suits,
)
from ringleader.train.between_calls.derived_weights import compute, derived_of
from ringleader.train.between_calls.tensor_access import TensorAccess
from ringleader.train.generation.context import MemberContext
from ringleader.train.generation.exchange_layout import ExchangeLayout
from ringleader.train.state.optimizers.state_loading import put_states
from ringleader.train.state.training_state import TrainingState
from ringleader.wire.findings import NO_HARM

KEPT_BYTES = 1 << 30
"""The bound of the tensors of all boundaries together; what the program touches beyond it is not recorded."""

CURE = "keep such values with session.keep(name, object), or the best weights with session.best(model, score)"

NOT_REPEATED = (
    "These lines ran again on this worker. Session calls before them were over and were not repeated here: what a "
    "loop's body, a score function or an on_commit callback collects is missing. Use session.loss or the result of "
    "session.evaluate, and keep what on_commit collects with session.keep(name, object); see what-runs-again"
)


class ProgramSections:
    """One member's sections. Boundaries are healed and checkpointed.

    Attributes:
        bound_bytes: the bound of all recorded tensors.
        on_recorded: the lines since the last call ran on what was recorded, or on a part of it.
        ran_again: lines have run here on what was recorded, so that this member may differ from those that ran them
            for the first time.
    """

    def __init__(self, context: MemberContext, laying: ExchangeLayout) -> None:
        self.bound_bytes = KEPT_BYTES
        self._context = context
        self._laying = laying
        # Elsewhere weights and optimizers may change behind the program's back: only small things are put back.
        self._exact = context.same_bits or context.rules.commits_together
        self._boundaries: list[CallBoundary] = []
        self._goal = -1
        self._newest: _Newest | None = None
        self._returns = False
        self.on_recorded = False
        self.ran_again = False
        self._aside: _Newest | None = None
        self._touches: TensorAccess | None = None
        self._saves: list[RemovableHandle] = []
        self._running = -1
        self._before: list[CodeType] = []
        self._guessed: list[str] = []

    @property
    def catches_up(self) -> bool:
        """Whether this member has yet to reach the call in which its state was made."""
        return self._goal >= 0

    def before(self, number: int) -> CallBoundary | None:
        """The boundary that the lines before call `number` began with; None at the top of the program."""
        return self._boundaries[number - 1] if 0 < number <= len(self._boundaries) else None

    @property
    def place(self) -> int:
        """The number of the call in which the live state was made."""
        return self._goal if self.catches_up else self._context.progress.calls.next - 1

    @property
    def why_incomplete(self) -> str:
        """The reason that lines which run again now may miss what the calls before them made, and the cure; empty for
        other lines, and inside a call."""
        behind = self._running == self._context.progress.calls.next - 1
        return NOT_REPEATED if self.on_recorded and behind else ""

    @property
    def why_other_bits(self) -> str:
        """The lines that ran again on other weights than at first, and the cure; empty where there are none."""
        lines = ", ".join(self._guessed)
        return f"lines between loops read weights that were not recorded ({lines}): {CURE}" if lines else ""

    def finished(self, number: int) -> None:
        """Record the boundary of call `number`, which is over for everybody, unless its loop's exit recorded it."""
        if number >= len(self._boundaries):
            self._boundary(number)

    def begin(self, number: int) -> None:
        """Begin the lines behind call `number`, on the recorded state where the live one is newer."""
        held = self._context.held
        if self._goal > number:
            self.ran_again = self.on_recorded = True
            if self._returns:
                # Once only: what is live behind the first of these sections is no newest state.
                self._newest = self._newest or _Newest(held, tensors=self._exact)
            self._swap(self._newest, number)
        self._running = number
        derived = {weight.untyped_storage(): MODELS for weight in compute(derived_of(held.models))}
        if not self._exact:
            return
        self._before = [frame.f_code for frame in running_frames()]
        touches = self._touches = TensorAccess(storages_of(held) | derived, self._touched)
        touches.begin()
        self._saves = list(_on_saves(held, touches))

    def end(self) -> None:
        """End the lines: a session call begins."""
        touches, self._touches = self._touches, None
        while self._saves:
            self._saves.pop().remove()
        if touches is not None:
            touches.end()

    @contextmanager
    def unwatched(self) -> Iterator[None]:
        """Do not watch the block: all that it reads of weights ends up in committed state, and is not read again."""
        touches = self._touches
        if touches is None:
            yield
            return
        with touches.off():
            yield

    def arrive(self, number: int) -> None:
        """Begin call `number`: where the newest state is of this call, take it up."""
        if self._goal == number:
            newest, self._newest, self._goal, self.on_recorded = self._newest, None, -1, False
            if newest is not None:
                newest.put_back(self._context.held, self._context.transfer.waiting_optimizers)
            self._context.transfer.take_rest()

    def put_aside(self, number: int) -> None:
        """Set aside what the lines behind the loop of call `number`, left by `break`, have made. The loop's end has yet
        to be agreed on, which happens on the committed state."""
        if not self._exact:
            return
        self._aside = _Newest(self._context.held)
        self._swap(self._aside, number)

    def take_up(self) -> None:
        """Take up what the lines made, now that the end is agreed on, unless a newer state was given meanwhile."""
        aside, self._aside = self._aside, None
        if aside is not None and not self.catches_up:
            aside.put_back(self._context.held)

    def run_until(self, number: int) -> None:
        """Have the lines behind the calls before `number` run on what was recorded: those calls are over, and no newer
        state was given yet. What the lines make stays live until one is: the program may hold parts of it."""
        self._newest, self._goal, self._returns, self.on_recorded = None, number, False, False

    def healed(self, place: int) -> None:
        """Note that a state was taken from a member, or a checkpoint, whose newest call was number `place`."""
        self._newest, self._returns, self.on_recorded = None, True, False
        self._goal = place if place > self._context.progress.calls.next - 1 else -1

    def state(self, since: int = 0) -> tuple[int, list[tuple[Any, ...]]]:
        """The number `since`, and the boundaries from that call on."""
        return since, [boundary.plain() for boundary in self._boundaries[since:]]

    def restore(self, state: tuple[int, list[tuple[Any, ...]]]) -> None:
        """Take over a peer's boundaries. What this member recorded itself stays where the peer sent none."""
        since, plain = state
        # Read before they are replaced: of several servers each alone records the states of its part.
        own = self.states()
        given = [CallBoundary.of_plain(values) for values in plain]
        self._boundaries[since : since + len(given)] = given
        self.add_states(own)

    def states(self) -> dict[int, States]:
        """The recorded states of optimizers, by call: on one server of several those that it makes."""
        return {
            n: boundary.states for n, boundary in enumerate(self._boundaries) if boundary.states is not None
        }

    def add_states(self, states: Mapping[int, States]) -> None:
        """Add the states that another server has recorded of its part."""
        for number, given in states.items():
            if number < len(self._boundaries):
                self._boundaries[number].add_states(given)

    def keep_common(self) -> None:
        """Drop, with all members, the tensors that some have not recorded. Raises ExchangeBroken."""
        calls, exchange = len(self._context.progress.calls.finished), self._context.generation.exchange
        keep_common(self._boundaries, calls, exchange.all_reduce)

    @property
    def count(self) -> int:
        """The number of calls that have a boundary."""
        return len(self._boundaries)

    @property
    def tensor_bytes(self) -> int:
        """The bytes of the recorded tensors of all boundaries together."""
        return sum(boundary.tensor_bytes for boundary in self._boundaries)

    def tell(self) -> None:
        """Tell all members, who call this together, what one has found. Raises ExchangeBroken."""
        context = self._context
        if not self._exact:
            return
        said = torch.zeros(len(context.generation.plan.members), dtype=torch.float64)
        said[context.generation.rank] = bool(self._guessed)
        if bool(context.generation.exchange.all_reduce(said).any()) and not self._guessed:
            self._guessed = ["on another worker, whose log names them"]

    def _boundary(self, number: int) -> CallBoundary:
        """The boundary of call `number`. Checkpoints of earlier versions have none: the live state stands in for it."""
        while number >= len(self._boundaries):
            self._boundaries.append(CallBoundary.of(self._context.held))
        return self._boundaries[number]

    def _swap(self, live: "_Newest | None", number: int) -> None:
        """Make the boundary of call `number` live, with the state that was live kept in `live`, if it still counts."""
        boundary = self._boundary(number)
        if boundary.tensors:
            if live is not None:
                live.copy()
            # They are about to be overwritten, and peers may be reading them in shared memory.
            self._laying.own_weights()
        boundary.put_back(self._context.held)

    @torch.inference_mode(False)  # the program may have it on: training has no use for what is made in it
    @torch.no_grad()
    def _touched(self, kind: str) -> frozenset[str]:
        """Copy tensors of a kind before the program reads or writes them: weights, an optimizer's state or a large kept
        object. Returns the kinds that need no watching any more."""
        self._laying.own_weights()
        boundary = self._boundary(self._running)
        if self._goal > self._running:
            if self._newest is not None:
                self._newest.copy()
            if kind not in boundary.tensors:
                self._guess(boundary.line or calling_line())
        elif kind not in boundary.tensors:
            self._record(boundary, kind)
        return frozenset((kind,)) | boundary.tensors.keys()

    def _record(self, boundary: CallBoundary, kind: str) -> None:
        boundary.keep_tensors(self._context.held, kind)
        if self.tensor_bytes > self.bound_bytes:
            boundary.drop_tensors(calling_line())
            self._say(boundary.line)

    def _say(self, line: str) -> None:
        told = [boundary.line for boundary in self._boundaries if boundary.line]
        generation = self._context.current
        if told.count(line) > 1 or generation is None:
            return
        variable = self._variable()
        data = {"line": line, "variable": variable, "bound_bytes": self.bound_bytes, "cure": CURE}
        if self._context.reporter.tell("boundary.unrecorded", generation.number, data):
            most = f"more than {self.bound_bytes >> 20} MiB"
            made = f"{variable or self._nameless()} is computed from weights that are not recorded ({most})"
            print(f"ringleader: {NO_HARM}, but in {line}: {made}: {CURE}.")

    def _variable(self) -> str:
        """The variable that the running line sets; empty where it sets none, or its text is not known."""
        held = self._context.held
        optimizers = [optimizer for optimizer, _ in held.optimizers]
        frames = list(running_frames())
        return assigned_now(frames, self._before, [*held.models, *optimizers, *held.kept.values()])

    def _nameless(self) -> str:
        known = all(text_of(frame.f_code.co_filename) for frame in running_frames())
        return (
            "a value" if known else "a variable (of unknown name, as the program's source is not available)"
        )

    def _guess(self, line: str) -> None:
        variable = self._variable()
        named = f"{variable} in {line}" if variable else line
        if named not in self._guessed:
            self._guessed.append(named)
            print(f"ringleader: the weights will not be reproducible: {self.why_other_bits}")


def _on_saves(held: TrainingState, touches: TensorAccess) -> Iterator[RemovableHandle]:
    """Count `state_dict()` of this thread on optimizers, which gives the states out without an operation on them."""
    program = get_ident()

    def saved(_: Optimizer) -> None:
        if get_ident() == program:
            touches.reach(OPTIMIZERS)

    for optimizer, _ in held.optimizers:
        # Well-known wrappers leave torch's own `__init__` out, and have hooks for `step` alone.
        with suppress(AttributeError):
            yield optimizer.register_state_dict_pre_hook(saved)


class _Newest:
    """A state put aside while another one is live. Tensors are copied once somebody is about to change them.

    Args:
        tensors: weights and optimizer states belong to it.
    """

    def __init__(self, held: TrainingState, *, tensors: bool = True) -> None:
        self._optimizers = [optimizer for optimizer, _ in held.optimizers]
        self._held = held
        self._whole = tensors
        self._settings = [settings_of(optimizer) for optimizer, _ in held.optimizers]
        self._attributes = [held.attributes.kept(o) for o, _ in held.optimizers]
        self._schedulers = [copy.deepcopy(scheduler.state_dict()) for scheduler in held.schedulers]
        self._kept = held.kept.copies()
        self._groups = [list(optimizer.param_groups) for optimizer, _ in held.optimizers]
        self._states = [
            {parameter: dict(state) for parameter, state in optimizer.state.items()}
            for optimizer, _ in held.optimizers
        ]
        self._memory = [(parameter, parameter.data) for parameter in held.weights]
        self._tensors: Tensors | None = None

    def copy(self) -> None:
        if self._tensors is not None:
            return
        # What is to be copied is in the memory of then, wherever the program has pointed `.data` since.
        elsewhere = [(p, p.data, memory) for p, memory in self._memory if p.data_ptr() != memory.data_ptr()]
        for parameter, _, memory in elsewhere:
            point_at(parameter, memory)
        # The program may have put other states, or another optimizer, in place since, unseen.
        later = [optimizer.state for optimizer, _ in self._held.optimizers[len(self._states) :]]
        states = [*self._states, *later]
        self._tensors = copied_tensors(self._held, states=states)
        for parameter, live, _ in elsewhere:
            point_at(parameter, live)

    def put_back(self, held: TrainingState, waiting: Collection[int] = ()) -> None:
        """Make this the live state. An optimizer that the program has made in place of another one since gets that
        one's, unless a state of its own is `waiting` under its number."""
        for number, former in enumerate(self._optimizers):
            optimizer, _ = held.optimizers[number]
            added: list[dict[str, Any]] = []
            if optimizer is former:
                added = optimizer.param_groups[len(self._groups[number]) :]  # by lines that have run since
                optimizer.param_groups[:] = self._groups[number]
            elif number in waiting:
                # Given for this very optimizer: it is loaded by name as soon as the lines are over.
                continue
            put_settings(optimizer, self._settings[number])
            held.attributes.put(optimizer, self._attributes[number])
            optimizer.param_groups += added
            if self._whole and self._tensors is None:
                put_states(optimizer, self._states[number])
        for parameter, memory in self._memory if self._whole else ():
            if parameter.data_ptr() != memory.data_ptr() and self._tensors is None:
                point_at(parameter, memory)
        # Lines behind the last loop that change models' structure make the weights here, as they did on the others.
        if self._tensors is not None and suits(held, self._tensors):
            put_tensors(held, self._tensors)
        for scheduler, state in zip(held.schedulers, self._schedulers, strict=False):
            scheduler.load_state_dict(state)
        held.kept.put(self._kept)
