"""Turns of the loop body: `session.step` is called exactly once in each, with the same metrics in all."""

import reprlib
from collections.abc import Sequence
from math import isfinite
from typing import Any, Protocol
from zlib import crc32

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ringleader.comm.timeline import Timeline
from ringleader.errors import StepMisuse
from ringleader.train.generation.control_word import MAX_METRICS, SliceReport
from ringleader.train.rows.order.cursor import checksum
from ringleader.train.rows.random_streams import Generator, generators_of, own_generators, seed_all, seed_own
from ringleader.train.rows.slices import Slice

STEP_METRICS = frozenset(
    [
        *("samples_per_s", "world_size", "comm_bytes", "loss_scale", "skipped_updates"),
        *("comm_exposed_fraction", "exchange_fraction", "idle_fraction", "loading_fraction"),
        *("staleness_mean", "staleness_max"),
    ]
)
"""Metrics of every step, which take the place of a program's own. `lr` is no such one: the program's wins."""
BY_TURNS = (
    "For several optimizers by turns write for critic, generator in session.steps(rows, phases=[critic_optimizer, "
    "generator_optimizer]), and in it a loop over each, with session.step(loss) of its own."
)


class TurnWatch(Protocol):
    """Looks at something before and behind the forward of each turn."""

    def begin_turn(self) -> None: ...

    def end_turn(self) -> None: ...


class BodyTurns:
    """The running turn, and the names of the metrics that every turn must give. In a trace its forward is a span.

    Attributes:
        running: the slice that the loop body is at.
        phase: the phase of the step that the body is in, where it has phases.
    """

    def __init__(
        self,
        seed: int,
        timeline: Timeline,
        models: Sequence[nn.Module],
        watched: Sequence[TurnWatch],
    ) -> None:
        self.running: Slice | None = None
        self.phase = 0
        self._names: dict[int, tuple[str, ...]] = {}
        self._seed = seed
        self._timeline = timeline
        self._models = models
        self._watched = watched
        self._owners: Any = ()
        self._own: list[tuple[str, Generator]] | None = None

    def begin_loop(self, owners: Any) -> None:
        """Begin the turns of a loop.

        Args:
            owners: what gives it its rows; a generator of theirs may be one that the body draws from, too.
        """
        self._owners, self._own = owners, None
        self.enter(0)

    def enter(self, phase: int) -> None:
        """Begin the turns of a phase, numbered from 0."""
        self.phase = phase

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the metrics that every turn of this phase gives, sorted."""
        return self.names_of(self.phase)

    def names_of(self, phase: int) -> tuple[str, ...]:
        return self._names.get(phase, ())

    def learn(self, values: dict[str, Any]) -> None:
        """Learn the metrics' names from a turn that counts for nothing."""
        self._names.setdefault(self.phase, tuple(sorted(values)))

    def begin(self, piece: Slice) -> None:
        self.running = piece
        seed_all(self._seed, *piece.stream)
        if self._own is None:
            # Looked for once in a loop: in a large network that takes 2 ms.
            self._own = [*generators_of(self._models), *own_generators(self._owners)]
        seed_own(self._own, self._seed, *piece.stream)
        for each in self._watched:
            each.begin_turn()
        self._timeline.begin("forward", slice=piece.shard)

    def leave(self) -> None:
        """Drop the running turn: a session call begins, or the loop was left by `break`; it is part of no step."""
        self.running = self._own = None
        self._timeline.unwind("the loop was left")

    def end(self, loss: Tensor, weight: float | None, values: dict[str, Any]) -> tuple[Slice, SliceReport]:
        """End the turn at its `step`; returns the slice and its report.

        Raises:
            StepMisuse: naming what is wrong with the call.
        """
        turn = self.running
        if turn is None:
            raise StepMisuse(
                "session.step was called twice in one turn of the loop, or outside of a loop.",
                hint="Call session.step(loss) exactly once for every batch that session.batches yields. "
                + BY_TURNS,
            )
        for each in self._watched:
            each.end_turn()
        _check_loss(loss)
        names = self._checked(tuple(sorted(values)))
        weight = float(len(turn.rows)) if weight is None else float(weight)
        if not (isfinite(weight) and weight > 0):
            raise StepMisuse(f"session.step got weight={weight}.", hint="Give a finite weight above 0.")
        slots = tuple(_mean(name, values[name]) for name in names)
        # Only now: an error above is reported with the turn in which it was raised.
        self.running = None
        # 24 bits: the control word's float32 entries hold no more exactly.
        sign = crc32("\n".join(names).encode()) & 0xFF_FFFF
        self._timeline.end()
        return turn, SliceReport(weight, loss.detach(), checksum(turn.rows), sign, slots)

    def check_ended(self) -> None:
        """Check the turn before, when the loop body comes for its next slice.

        Raises:
            StepMisuse: it did not call `step`.
        """
        if self.running is not None:
            raise StepMisuse(
                "session.step was not called in this turn of the loop.",
                hint="Call session.step(loss) exactly once for every batch that session.batches yields. To "
                "leave rows out, call session.step(loss * 0) before `continue`: they count with a gradient of 0.",
            )

    def _checked(self, names: tuple[str, ...]) -> tuple[str, ...]:
        if len(names) > MAX_METRICS:
            raise StepMisuse(f"session.step got {len(names)} metrics.", hint=f"Give at most {MAX_METRICS}.")
        if self.names and names != self.names:
            raise StepMisuse(
                f"session.step got the metrics {list(names)}, but {list(self.names)} before.",
                hint="Give the same metrics in every turn of every loop.",
            )
        if not self.names and (own := STEP_METRICS.intersection(names)):
            raise StepMisuse(
                f"session.step got the metric {min(own)!r}, which Ringleader measures itself.",
                hint="Give the metric another name: one of the two values would be lost.",
            )
        self._names[self.phase] = names
        return names


def _check_loss(loss: Any) -> None:
    """Raise StepMisuse where the loss has no gradients, or is not one number."""
    if not isinstance(loss, Tensor):
        raise StepMisuse(
            f"session.step got {reprlib.repr(loss)}, a {type(loss).__name__}, as the loss, which has no gradient.",
            hint="Write session.step(loss) with the tensor from the loss function, without .item() or float().",
        )
    if loss.numel() != 1:
        raise StepMisuse(
            f"session.step got a loss of shape {tuple(loss.shape)} instead of a single number.",
            hint="Write session.step(loss.mean()), the mean over the slice's rows.",
        )


def _mean(name: str, value: Any) -> Tensor:
    """The mean of a metric's values, shape (). Raises StepMisuse: there is none."""
    try:
        return torch.as_tensor(value, dtype=torch.float32).detach().mean()
    except (TypeError, ValueError, RuntimeError) as error:
        hint = "Give numbers or tensors of numbers, session.step(loss, accuracy=accuracy), and print text."
        raise StepMisuse(
            f"the metric {name!r} is {reprlib.repr(value)}, a {type(value).__name__}, which has no mean.",
            hint=BY_TURNS if isinstance(value, Optimizer) else hint,
        ) from error
