"""Lines of a usual training loop that a program must not call itself, because the session does: refused by name, each
with the line to write instead.

Nothing of torch is patched: registered optimizers get a hook and a `zero_grad` of their own, registered schedules a
subclass of theirs, a few small parameters show that a backward has reached them, and in some turns what is in `.grad`
refuses to be read.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from ringleader.errors import StepMisuse
from ringleader.program_text.current_line import calling_line, line_of_turn_matching, running_place
from ringleader.train.body.unready_gradient import UnreadyGradient
from ringleader.train.state.buffers import persistent_buffers
from ringleader.train.state.hidden_state import looked_at
from ringleader.train.state.optimizers.served_state import ServedOptimizerStates
from ringleader.train.state.parameters.tensor_version import version_of
from ringleader.train.state.training_state import TrainingState

SMALL = 1 << 14
"""The most elements of a parameter that is watched: larger ones would cost memory."""
WATCHED = 64

CHANGES = r"\.data\b(\[[^=]*\])?\s*[-+*/]*=[^=]|\.\w*[a-z]_\(|load_state_dict\("
"""A pattern of lines that change a tensor in place."""

_Marks = tuple[list[int], list[int]]
_BufferMarks = dict[str, tuple[int, int]]
_version = attrgetter("_version")

CLIP_NORM = "session.optimizer(optimizer, clip_norm=1.0)"


class CallChecks:
    """The checks of one session.

    Args:
        held: the state with the models.
        accumulates: whether gradients of earlier turns are in the parameters, and those of later ones are added.
        warn: called once, for a line that does nothing: the subject, a sentence, what to do.
        states: those of the optimizers, closed while the program's lines run.
    """

    def __init__(
        self,
        held: TrainingState,
        *,
        accumulates: Callable[[], bool],
        warn: Callable[[str, str, str], None],
        states: ServedOptimizerStates,
    ) -> None:
        self._held = held
        self._accumulates = accumulates
        self._warn = warn
        self._states = states
        self._weights: list[Parameter] = []
        self._marks: _Marks = ([], [])
        self._frozen: list[Parameter] = []
        self._values: list[tuple[Parameter, Tensor]] = []
        self._body = False
        self._turns = 0
        self._hooks: dict[Parameter, RemovableHandle] = {}
        self._unready: dict[Parameter, UnreadyGradient] = {}
        self._seen: list[_Seen] = []
        self._clips, self._reads = CLIP_NORM, False
        self._where = "inside a loop"
        self._buffers: _BufferMarks | None = None
        self._warned: set[str] = set()

    def optimizer(self, optimizer: Optimizer) -> None:
        """Refuse from now on that the program steps it in a loop's body."""
        clear = optimizer.zero_grad

        def zero_grad(set_to_none: bool = True) -> None:
            if self._body:
                self._cleared()
            else:
                clear(set_to_none)

        optimizer.register_step_pre_hook(self._refuse_step)
        # On this instance alone: the class, and optimizers that are not registered, stay as torch made them.
        optimizer.zero_grad = zero_grad  # type: ignore[method-assign]

    @contextmanager
    def session_steps(self, *, gives_slice: bool = False) -> Iterator[None]:
        """Stop the checks for the block: in `session.step` the session acts, and not the program. `gives_slice`: the
        program goes on with another slice, whose forward may change buffers."""
        if not self._body:
            yield
            return
        self._leave()
        self._check_buffers()
        try:
            yield
        finally:
            self._enter()
            if not gives_slice:
                self.watch_buffers()

    def watch_buffers(self) -> None:
        """Warn from here on, until the session's next act, where the program changes buffers."""
        self._buffers = _buffer_marks(self._held) if looked_at(self._turns) else None

    def turns(
        self, turns: Iterator[Any], call: str, clips: str = CLIP_NORM, *, reads_gradients: bool = False
    ) -> Iterator[Any]:
        """Watch each of the turns.

        Args:
            call: what the loop goes over, as the program writes it.
            clips: what the program writes to have its gradients clipped.
            reads_gradients: its lines may read some: what is in `.grad` is watched in every turn.

        Raises:
            StepMisuse: naming what the body did, and what to write instead.
        """
        _check_hooks(self._held.weights)
        # Such a hook runs in backward() alone: torch.autograd.grad, which is allowed, accumulates nothing.
        for parameter in self._small():
            if parameter not in self._hooks:
                self._hooks[parameter] = parameter.register_post_accumulate_grad_hook(self._reached)  # type: ignore[no-untyped-call]
        self._weights = [p for p in dict.fromkeys(self._held.weights) if p.layout is torch.strided]
        self._frozen = [p for p in self._held.weights if _is_small_and_frozen(p)][:WATCHED]
        self._clips, self._reads = clips, reads_gradients
        self._where = f"inside a loop over {call}"
        try:
            for batch in turns:
                self._turns += 1
                self._enter()
                yield batch
                self._leave()
                self._check_buffers()
        finally:
            self._body, self._values = False, []
            self._states.show()
            self._put_back()

    def release(self) -> None:
        """Remove the hooks when training is over; idempotent."""
        for hook in self._hooks.values():
            hook.remove()
        self._hooks = {}

    def _enter(self) -> None:
        """Start the checks: the program goes on, and its changes to gradients will show."""
        self._body = True
        self._states.hide()
        self._marks = _marks(self._weights)
        if looked_at(self._turns):
            # `.data` leaves no version behind, nor do running statistics that are frozen parameters: some parameters
            # are compared by value in some turns.
            self._values = [(p, p.detach().clone()) for p in (*self._hooks, *self._frozen)]
            self._hide_gradients()
        elif self._reads:
            self._hide_gradients()

    def _hide_gradients(self) -> None:
        for parameter in self._weights:
            if _can_be_watched(parameter):
                unready = self._unready.get(parameter)
                if unready is None or not unready.suits(parameter):
                    refuse = partial(self._refuse_gradient, parameter)
                    unready = self._unready[parameter] = UnreadyGradient.of(parameter, refuse)
                unready.begin_turn()
                self._seen.append(_Seen.of(parameter, unready))

    def _leave(self) -> None:
        """End the checks for now. Raises StepMisuse: the program has changed weights or gradients."""
        self._body = False
        self._states.show()
        self._check_weights()
        marks = [(seen, mark) for seen in self._seen if (mark := seen.mark())]
        lost = any(mark == "cleared" and seen.gradient is not None for seen, mark in marks)
        self._put_back()
        if any(mark == "changed" for _, mark in marks) or (lost and self._accumulates()):
            raise StepMisuse(
                f"gradients were changed by hand {self._where}, where that has no effect or a wrong one: session.step "
                f"computes, sums and applies them.",
                hint=self._instead,
            )
        if marks:
            self._cleared()

    def _check_weights(self) -> None:
        """Raise StepMisuse where the body has changed a weight."""
        values, self._values = self._values, []
        marks, changed = _marks(self._weights), None
        if marks != self._marks:
            each = zip(self._weights, zip(*marks, strict=True), zip(*self._marks, strict=True), strict=True)
            changed = next(p for p, now, was in each if now != was)
        if changed is None:
            changed = next((p for p, value in values if not _same(p, value)), None)
        if changed is None:
            return
        name = next((name for name, p in self._held.spoken_parameters.items() if p is changed), "(frozen)")
        raise StepMisuse(
            f"the weights {name!r} were changed {self._where} ({line_of_turn_matching(CHANGES)}): each worker runs "
            f"the body for some slices of a batch only, and parameter servers do not see the change.",
            hint="Change weights between two loops, or, with sync: ring, once per step in session.on_commit(callback). "
            "An average of weights, such as a momentum encoder, is session.ema(model, decay); other state that a "
            "forward pass changes belongs in a buffer.",
        )

    def _check_buffers(self) -> None:
        """Warn of buffers that the body has changed since its step."""
        marks, self._buffers = self._buffers, None
        now = _buffer_marks(self._held) if marks is not None else {}
        changed = [name for name, mark in (marks or {}).items() if now.get(name) != mark]
        if changed:
            self._say(
                "buffers",
                f"the buffer {changed[0]!r} was changed after session.step in a turn of the loop in "
                f"{running_place()}: that is not committed, and the next step starts without it.",
                "Change buffers before session.step(loss); score in eval() mode, in which a forward leaves them "
                "alone.",
            )

    def _put_back(self) -> None:
        for seen in self._seen:
            seen.put_back()
        self._seen = []

    def _small(self) -> list[Parameter]:
        """The parameters to watch: some small ones, or else the smallest."""
        fit = [p for p in self._held.weights if _can_be_watched(p)]
        fit = sorted(dict.fromkeys(fit), key=lambda p: p.numel())
        return [p for p in fit if p.numel() <= SMALL][:WATCHED] or fit[:1]

    def _refuse_step(self, optimizer: Optimizer, _arguments: Any, _named: Any) -> None:
        if not self._body and self._states.closed:
            raise StepMisuse(
                f"{type(optimizer).__name__}.step() was called between session calls ({calling_line()}): its state "
                f"is on the parameter servers, so every member would make a different update.",
                hint="Use an optimizer that is not registered for such a step, or sync: ring.",
            )
        if not self._body:
            return
        raise StepMisuse(
            f"{type(optimizer).__name__}.step() was called {self._where}: the session steps registered optimizers "
            f"itself, so each update would be applied twice.",
            hint="Delete the line: session.step(loss) does backward, the sum over workers, the update and the commit.",
        )

    def _reached(self, _parameter: Tensor) -> None:
        """Refuse a backward that has reached a registered parameter in the body."""
        if not self._body:
            return
        raise StepMisuse(
            f"backward() was called {self._where}: session.step computes the gradients, and these would be dropped.",
            hint="Write session.step(loss), or session.step(loss_a + loss_b) for several losses. For the gradient "
            "of an "
            "input use torch.autograd.grad(loss, input).",
        )

    def _refuse_gradient(self, parameter: Parameter) -> None:
        """Refuse that the program reads or changes the gradient of a parameter."""
        name = next((name for name, p in self._held.spoken_parameters.items() if p is parameter), "(frozen)")
        raise StepMisuse(
            f"the gradient of {name!r} was read or changed {self._where} ({calling_line()}): before session.step there "
            f"is none, and behind it none that counts: each worker has computed some slices of the batch, and the sum "
            f"over all of them is applied already.",
            hint=self._instead,
        )

    @property
    def _instead(self) -> str:
        return (
            f"The norm of the newest update's gradient is session.norm (clip_norm=float('inf') only measures it); with "
            f"sync: ring the gradient itself is in .grad in session.on_commit(callback). To clip it, write "
            f"{self._clips}; to change what each slice adds, p.register_hook(lambda g: g.clamp(-v, v)) at the top."
        )

    def _cleared(self) -> None:
        message = f"zero_grad() {self._where} does nothing: session.step starts every gradient at zero."
        self._say("zero_grad", message, "Delete the line.")

    def _say(self, about: str, message: str, hint: str) -> None:
        if about not in self._warned:
            self._warned.add(about)
            self._warn(about, message, hint)


@dataclass(frozen=True, slots=True)
class _Seen:
    """A parameter's gradient as the program left it, and what stands there while its lines run."""

    parameter: Parameter
    gradient: Tensor | None
    unready: UnreadyGradient

    @classmethod
    def of(cls, parameter: Parameter, unready: UnreadyGradient) -> "_Seen":
        seen = cls(parameter, parameter.grad, unready)
        parameter.grad = unready
        return seen

    def mark(self) -> str:
        """The change that was made to it: empty, "cleared" or "changed"."""
        if self.parameter.grad is not self.unready:
            return "cleared" if self.parameter.grad is None else "changed"
        return "cleared" if self.unready.cleared else ""

    def put_back(self) -> None:
        if self.parameter.grad is self.unready:
            self.parameter.grad = self.gradient


def _check_hooks(parameters: Iterable[Parameter]) -> None:
    """Check that no hook of the program's takes gradients where they are accumulated, which the session does. Raises
    StepMisuse."""
    for parameter in parameters:
        for hook in (getattr(parameter, "_post_accumulate_grad_hooks", None) or {}).values():
            function = getattr(hook, "__func__", hook)
            module = str(getattr(function, "__module__", ""))
            if module.partition(".")[0] != "ringleader":
                name = getattr(function, "__qualname__", type(function).__qualname__)
                raise StepMisuse(
                    f"a weight of shape {tuple(parameter.shape)} has a hook by register_post_accumulate_grad_hook "
                    f"({module}.{name}), which would see the gradient of a slice, and not the sum over all workers.",
                    hint="Change what each slice adds to a gradient by weight.register_hook, and give the optimizer to "
                    "session.optimizer, which steps it with the sum.",
                )


def _same(parameter: Parameter, value: Tensor) -> bool:
    """Whether the values are equal, each NaN being equal to any other."""
    return torch.allclose(parameter.detach(), value, rtol=0.0, atol=0.0, equal_nan=True)


def _marks(parameters: list[Parameter]) -> _Marks:
    """Two lists, whose entries differ once a tensor was replaced, or changed in place."""
    try:
        return list(map(Tensor.data_ptr, parameters)), list(map(_version, parameters))
    except RuntimeError:  # tensors of inference mode have no version
        return [p.data_ptr() for p in parameters], [0 if p.is_inference() else p._version for p in parameters]


def _buffer_marks(held: TrainingState) -> _BufferMarks:
    """Marks by name, which differ once a buffer was replaced, or changed in place."""
    buffers = (pair for model in held.models for pair in persistent_buffers(model))
    return {name: (buffer.data_ptr(), version_of(buffer)) for name, buffer in buffers}


def _can_be_watched(parameter: Parameter) -> bool:
    return parameter.requires_grad and _has_values(parameter)


def _is_small_and_frozen(parameter: Parameter) -> bool:
    return not parameter.requires_grad and parameter.numel() <= SMALL and _has_values(parameter)


def _has_values(parameter: Parameter) -> bool:
    dense = parameter.layout is torch.strided and not parameter.is_meta
    return parameter.is_floating_point() and dense and parameter.numel() > 0
