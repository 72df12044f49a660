"""Loops of plain torch lines on a session: `loss.backward()` ends a turn, the update comes with a step's last slice.

While the program runs, `backward` and `zero_grad` of torch's classes are the session's where the program calls them,
and torch's own wherever else they are called.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from threading import get_ident
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ringleader.adapters.loop_text import calls_of, loop_at
from ringleader.adapters.loop_turns import LoopTurn
from ringleader.adapters.ray_train.loop_registrations import CLIP, CLIPPING, ONE_STEP, LoopRegistrations
from ringleader.adapters.session_loop import NOTHING, PassRows, check_batch_size, program_place, refuse
from ringleader.train import Session

Method = Callable[..., Any]
PREPARE = "Loop over what prepare_data_loader returns, with model.train() before the loop."


class TorchLoops:
    """The training loops of one program.

    Attributes:
        turn: the turn of a training loop that the program is in.
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        self.turn = LoopTurn(session)
        self._registrations = LoopRegistrations(session)
        self._thread = get_ident()
        self._session_acts = False
        self._stepped: set[Optimizer] = set()
        self._cleared = True

    @property
    def models(self) -> list[nn.Module]:
        """Those that the program has given to the session."""
        return self._registrations.models

    @contextmanager
    def served(self) -> Iterator[None]:
        """Serve the program's calls in the block."""
        with ExitStack() as replaced:
            for owner, name, of in (
                (Tensor, "backward", self._backward),
                (torch.autograd, "backward", self._backward_of_many),
                (nn.Module, "zero_grad", self._zero_grad),
                (Optimizer, "__init__", self._noted),
                (torch.amp.GradScaler, "scale", self._unscaled),
            ):
                before = getattr(owner, name)
                replaced.callback(setattr, owner, name, before)
                setattr(owner, name, of(before))
            try:
                yield
            finally:
                for optimizer, step in self._registrations.optimizers.items():
                    optimizer.step = step  # type: ignore[method-assign]

    @contextmanager
    def acting(self) -> Iterator[None]:
        """Let the session act in the block: what is called there is torch's own."""
        before, self._session_acts = self._session_acts, True
        try:
            yield
        finally:
            self._session_acts = before

    def register(self, model: nn.Module) -> None:
        """Give a model to the session."""
        with self.acting():
            self.models.append(self.session.model(model))

    def trains(self) -> bool:
        """Whether the loop that begins now trains: a model is in training mode, or its body has a backward."""
        if not torch.is_grad_enabled() or not self.models:
            return False
        if any(model.training for model in self.models):
            return True
        loop = loop_at(program_place())
        return loop is not None and bool(calls_of(loop, "backward"))

    def turns(self, rows: PassRows) -> Iterator[Any]:
        """The turns of one training loop of the program."""
        check_batch_size(self.session, rows.batch_size or 1, 1, whole=True)
        with self.acting():
            new = self._registrations.register(self._step_of_schedule)
        for optimizer in new:
            self._serve(optimizer)
        return self.turn.of(self._checked(iter(rows.turns(self.session))))

    def _checked(self, batches: Any) -> Iterator[Any]:
        self._cleared = True
        try:
            while True:
                with self.acting():
                    batch = next(batches, NOTHING)
                if batch is NOTHING:
                    return
                self._stepped = set()
                yield batch
                self._check_turn()
        finally:
            with self.acting():
                batches.close()

    def _serve(self, optimizer: Optimizer) -> None:
        own_step, clear = optimizer.step, optimizer.zero_grad
        self._registrations.optimizers[optimizer] = own_step

        def step(_: Optimizer, closure: Any = None) -> Any:
            if not self.is_program():
                return own_step() if closure is None else own_step(closure)
            if closure is not None:
                refuse(
                    "optimizer.step(closure)", "A step has one gradient: LBFGS and the like cannot be kept."
                )
            self._check_ended("optimizer.step()")
            self._stepped.add(optimizer)
            return None

        def zero_grad(set_to_none: bool = True) -> None:
            if self.is_program():
                self._clear()
            else:
                clear(set_to_none)

        # Torch's schedules look for this mark, by which they know that `step` is followed.
        step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]
        optimizer.step = MethodType(step, optimizer)  # type: ignore[method-assign]
        optimizer.zero_grad = zero_grad  # type: ignore[method-assign]

    def clip_grad_norm_(self, parameters: Any, max_norm: float, *given: Any, **named: Any) -> Tensor:
        """Nothing: the session clips. Returns the norm of the newest update's gradient; NaN where it is not known."""
        self._check_ended(CLIP)
        declared = self._registrations.norm
        if declared != float(max_norm):
            refuse(f"{CLIP}(…, {max_norm:g}) where the loop began with {declared}", CLIPPING)
        norm = self.session.norm
        return torch.tensor(torch.nan if norm is None else norm)

    # --- the program's calls -----------------------------------------------------------------------------------------

    def is_program(self) -> bool:
        """Whether the program calls, and not the session or a thread of it."""
        return not self._session_acts and get_ident() == self._thread

    def _backward(self, own: Method) -> Method:
        def backward(loss: Tensor, *given: Any, **named: Any) -> Any:
            if not self.is_program():
                return own(loss, *given, **named)
            if given or any(value not in (None, False) for value in named.values()):
                refuse("backward() with arguments", "Call loss.backward() of a loss of one number.")
            return self._end_turn(loss)

        return backward

    def _backward_of_many(self, own: Method) -> Method:
        def backward(*given: Any, **named: Any) -> Any:
            if self.is_program():
                refuse("torch.autograd.backward(…)", "Add losses up, and call loss.backward() once.")
            return own(*given, **named)

        return backward

    def _end_turn(self, loss: Tensor) -> None:
        if not self.turn.inside:
            refuse("backward() outside of a loop over a prepared loader", PREPARE)
        if self.turn.ended:
            refuse("a second backward() in one turn", ONE_STEP)
        if not self._cleared:
            refuse(
                "a loop that never calls zero_grad(), whose gradients add up from step to step",
                "Call optimizer.zero_grad() in each turn: a step's gradient is that of its rows.",
            )
        self._cleared = False
        with self.acting():
            self.turn.step(loss, None)

    def _zero_grad(self, own: Method) -> Method:
        def zero_grad(module: nn.Module, *given: Any, **named: Any) -> Any:
            if self.is_program() and self.turn.looping:
                return self._clear()
            return own(module, *given, **named)

        return zero_grad

    def _noted(self, own: Method) -> Method:
        def init(optimizer: Optimizer, *given: Any, **named: Any) -> None:
            own(optimizer, *given, **named)
            if self.is_program():
                self._registrations.note(optimizer)

        return init

    def _unscaled(self, own: Method) -> Method:
        def scale(scaler: torch.amp.GradScaler, outputs: Any) -> Any:
            if scaler.is_enabled() and self.is_program():
                refuse(
                    "a GradScaler",
                    "Write precision: fp16 (or bf16) in the job file, and leave the scaler out.",
                )
            return own(scaler, outputs)

        return scale

    def _step_of_schedule(self, *given: Any, **named: Any) -> None:
        """Nothing: the session advances a registered schedule with each step."""
        if not self.turn.looping:
            refuse(
                "step() between loops of a schedule that a loop's body steps",
                "Step a schedule in each turn, or between loops.",
            )
        self._check_ended("scheduler.step()")

    def _clear(self) -> None:
        if self.turn.inside and self.turn.ended and len(self._stepped) < len(self._registrations.optimizers):
            refuse("zero_grad() between backward() and optimizer.step()", "Call it before backward.")
        self._cleared = True

    def _check_ended(self, what: str) -> None:
        if not (self.turn.inside and self.turn.ended):
            refuse(f"{what} before loss.backward()", "Call loss.backward() once in each turn, before it.")

    def _check_turn(self) -> None:
        """Check that the turn has made the step of a usual loop. Raises StepMisuse."""
        if not self.turn.ended:
            refuse(
                "a turn of a training loop without loss.backward()",
                "Call it once in each turn; for an evaluation call model.eval() before the loop.",
            )
        missing = [each for each in self._registrations.optimizers if each not in self._stepped]
        if missing:
            refuse(f"a turn without a step of {type(missing[0]).__name__}", ONE_STEP)
