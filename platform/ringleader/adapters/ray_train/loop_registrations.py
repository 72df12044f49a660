"""The optimizers, norm and schedules that a program's training loops give to the session before their first turn."""

import ast
from collections.abc import Callable
from types import FrameType
from typing import Any
from weakref import ref

from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from ringleader.adapters.loop_text import (
    NO_VALUE,
    argument_of,
    calls_each_turn,
    calls_of,
    loop_at,
    receiver_of,
    value_of,
)
from ringleader.adapters.session_loop import program_frame, program_place, refuse
from ringleader.train import Session

ONE_STEP = (
    "A step has one backward and one optimizer.step(), and the job adds up slices by itself: raise batch.global_size "
    "instead of accumulating, and add losses up before one backward."
)
CLIP = "clip_grad_norm_"
CLIPS = "clip_grad_norm_(model.parameters(), 1.0) once in each turn of the loop itself"
CLIPPING = (
    f"Bound the norm of all gradients of the one optimizer: {CLIPS}; or change what each slice adds by "
    "p.register_hook at the top."
)


class LoopRegistrations:
    """The objects of one program that its loops train.

    Attributes:
        models: those that the program has given to the session.
        optimizers: registered ones, each with the `step` that it had.
        norm: the bound of the gradient's norm that the newest loop declared.
    """

    def __init__(self, session: Session) -> None:
        self.models: list[nn.Module] = []
        self.optimizers: dict[Optimizer, Callable[..., Any]] = {}
        self.norm: float | None = None
        self._session = session
        self._made: list[ref[Optimizer]] = []

    def note(self, optimizer: Optimizer) -> None:
        """Note an optimizer that the program has made."""
        self._made.append(ref(optimizer))

    def register(self, of_schedules: Callable[..., None]) -> list[Optimizer]:
        """Register what the loop that begins now trains. Returns the optimizers that are new.

        Args:
            of_schedules: what `step` of registered schedules means for the program.

        Raises:
            StepMisuse: naming what the loop does that a session cannot do.
        """
        frame, loop = program_frame(), loop_at(program_place())
        self.norm = None if loop is None else self._declared_norm(loop, frame)
        new = self._optimizers()
        if not self.optimizers and not new:
            refuse(
                "a training loop without an optimizer of the prepared model's parameters",
                "Make it of model.parameters() before the loop.",
            )
        if self.norm is not None and len(self.optimizers) + len(new) > 1:
            refuse(f"{CLIP} with several optimizers", CLIPPING)
        for optimizer in new:
            self._session.optimizer(optimizer, clip_norm=self.norm)
        if loop is not None:
            self._register_schedules(loop, frame, of_schedules)
        return new

    def _optimizers(self) -> list[Optimizer]:
        """The optimizers of prepared models' parameters that are not registered, in the order of their making."""
        trained = {parameter for model in self.models for parameter in model.parameters()}
        made = [optimizer for optimizer in (made() for made in self._made) if optimizer is not None]
        own = {o: {p for group in o.param_groups for p in group["params"]} for o in made}
        return [o for o in made if o not in self.optimizers and own[o] & trained]

    def _declared_norm(self, loop: ast.For, frame: FrameType) -> float | None:
        """The bound that the loop's body gives to `clip_grad_norm_` in each turn: the session clips by it."""
        clips = calls_of(loop, CLIP)
        if not clips:
            return None
        parameters, norm, kind = (
            argument_of(clips[0], place, name)
            for place, name in enumerate(("parameters", "max_norm", "norm_type"))
        )
        of_all = isinstance(parameters, ast.Call) and any(
            receiver_of(parameters, frame) is model for model in self.models
        )
        bound = NO_VALUE if norm is None else value_of(norm, frame)
        usual = kind is None or value_of(kind, frame) == 2
        if clips != calls_each_turn(loop, CLIP) or not (of_all and usual and isinstance(bound, int | float)):
            refuse(f"line {clips[0].lineno}: {ast.unparse(clips[0])}", CLIPPING)
        return float(bound)

    def _register_schedules(self, loop: ast.For, frame: FrameType, of_schedules: Callable[..., None]) -> None:
        """Register the schedules that the loop steps in each turn, which the session does once a step."""
        each_turn = calls_each_turn(loop, "step")
        for call in calls_of(loop, "step"):
            stepped = receiver_of(call, frame)
            if isinstance(stepped, LRScheduler | Optimizer) and call not in each_turn:
                refuse(f"{type(stepped).__name__}.step() under a condition in a loop's body", ONE_STEP)
            if isinstance(stepped, LRScheduler) and stepped not in self._session._held.schedulers:
                self._session.scheduler(stepped)
                # The class that the session has given this one schedule, which refuses the line.
                type(stepped).step = of_schedules  # type: ignore[method-assign]
