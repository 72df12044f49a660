"""What every mode of synchronising gives to a session: the loops over batches of one member, one at a time."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from ringleader.train.body.turns import BodyTurns
from ringleader.train.generation.member import Member
from ringleader.train.modes.batch_loop import BatchLoop
from ringleader.train.modes.step_checks import StepRecorder
from ringleader.train.ports import RecordSink


class Mode(ABC):
    """A mode on one member. `registry` names the class for a job.

    Attributes:
        turns: the turns of the loop's body.
        recorder: makes the records of committed steps.
    """

    def __init__(
        self, member: Member, sink: RecordSink, device: torch.device, turns: BodyTurns | None = None
    ) -> None:
        self._member = member
        self._sink = sink
        self._device = device
        self.turns = turns or BodyTurns(member.spec.seed, member.timeline, member.held.models, member.unkept)
        self.recorder = StepRecorder(member)
        self._loop: BatchLoop | None = None
        self._stop = False

    @abstractmethod
    def run(self, loop: BatchLoop) -> Iterator[Any]:
        """Yield the batches of this member's slices, from the committed position to the loop's end; those that a
        failure took back again."""

    @abstractmethod
    def step(self, loss: Tensor, weight: float | None, values: dict[str, Any]) -> None:
        """End the turn: run the slice's backward, and commit where it is this member's last one.

        Raises:
            StepMisuse: naming what is wrong with the call.
        """

    @abstractmethod
    def end(self, number: int) -> None:
        """End the loop of that call, which was left by `break`: all agree on where it is over."""

    def undo(self) -> None:  # noqa: B027 - most have nothing to take back
        """Take back what the body computed since the commit, where weights hold it: the body has left the loop."""

    def request_stop(self) -> None:
        """Ask for the end of the loop, for all members."""
        self._stop = True

    @property
    def mid_batch(self) -> bool:
        """Whether slices are computed that nobody has committed, so that the loop cannot be left here."""
        return False

    @property
    def accumulates(self) -> bool:
        """Whether parameters have gradients of earlier slices, to which others will be added."""
        return False

    @property
    def _running(self) -> BatchLoop:
        """The loop whose turns run, or ran last. Raises LookupError before the first."""
        if self._loop is None:
            raise LookupError("no loop has begun")
        return self._loop

    @property
    def _lanes(self) -> int:
        """The number of slices in a batch."""
        return self._member.lanes

    def _begin_loop(self, loop: BatchLoop) -> None:
        """Make `loop` the running one. Raises StepMisuse: an optimiser updates what no registered model has."""
        self._loop, self.turns.running, self._stop = loop, None, False
        self._member.progress.begin_loop(loop.index)
        self._member.check_covered()

    def _report_phase(self, loop: BatchLoop, phase: str, step: int | None = None) -> None:
        """Report the phase of the training thread, at the committed step or at `step`."""
        step = self._member.progress.step if step is None else step
        loop.tell(self._sink, phase, step=step, lanes=self._lanes)
