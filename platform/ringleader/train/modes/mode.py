"""The interface of every mode to the session: the loops over batches of one member, one at a time."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
from torch import Tensor

from ringleader.errors import ExchangeBroken
from ringleader.train.body.turns import BodyTurns
from ringleader.train.generation.control_word import SliceReport
from ringleader.train.generation.member import Member
from ringleader.train.modes.batch_loop import BatchLoop
from ringleader.train.modes.mode_rules import ModeRules
from ringleader.train.modes.step_checks import StepRecorder
from ringleader.train.ports import RecordSink
from ringleader.train.rows.slices import Slice, to_device
from ringleader.train.state.parameters.sparse import check_optimizers


class Mode(ABC):
    """A mode on one member. It runs a loop in stretches, each from one state that all members have to the next: a
    transaction, or many. A stretch that breaks is begun again in the next generation. `registry` names the class for a
    job.

    Attributes:
        turns: the turns of the loop's body.
        recorder: makes the records of committed steps.
        rules: its rules outside of loops.
    """

    rules: ClassVar[type[ModeRules]] = ModeRules

    def __init__(self, member: Member, sink: RecordSink, device: torch.device) -> None:
        self._member = member
        self._sink = sink
        self._device = device
        self.turns = BodyTurns(
            member.spec.seed,
            member.timeline,
            member.held.models,
            (member.unkept, member.first, member.update_inputs, member.kernels, member.beside.repeated),
        )
        self.recorder = StepRecorder(member)
        self._loop: BatchLoop | None = None
        self._stop = self._leaves = False

    def run(self, loop: BatchLoop) -> Iterator[Any]:
        """Yield the batches of this member's slices, from the committed position to the loop's end; those that a
        failure took back again."""
        self._begin_loop(loop)
        while not self._over(loop):
            with self._attempt():
                yield from self._run_stretch(loop)

    def begin_steps(self, loop: BatchLoop) -> None:
        """Begin a loop of which the program's lines see every step."""
        raise LookupError("this mode has no step that all members commit together")

    def begin_phase(self, loop: BatchLoop, phase: int) -> None:
        """Begin the turns of a phase of the running step that is not its first."""
        raise LookupError("this mode has no step that all members commit together")

    def step_turns(self, loop: BatchLoop) -> Iterator[Any]:
        """The batches of this member's slices of the next transaction, until it commits."""
        raise LookupError("this mode has no step that all members commit together")

    def over(self, loop: BatchLoop) -> bool:
        """Wait for a plan where one is due. Returns whether the loop is finished."""
        return self._over(loop)

    def step(self, loss: Tensor, weight: float | None, values: dict[str, Any]) -> None:
        """End the turn: run the slice's backward, and commit where it is this member's last one.

        Raises:
            StepMisuse: naming what is wrong with the call.
        """
        turn, report = self.turns.end(loss, weight, values)
        # The exchange broke within the turn: what it computed is computed again.
        if not self._broken:
            with self._attempt():
                self._take(turn, loss, report)

    def end(self, number: int) -> None:
        """End the loop of that call, which was left by `break`: all agree on where it is over."""
        loop = self._running
        assert loop.number == number
        self.turns.leave()
        self._leave()
        while not self._over(loop):
            with self._attempt():
                self._last_stretch(loop)

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
    def in_step(self) -> bool:
        """Whether all members have the same gradients and buffers while the program's own lines run."""
        return True

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
    def _slice_count(self) -> int:
        """The number of slices in a batch."""
        return self._member.term_count

    def _begin_loop(self, loop: BatchLoop) -> None:
        """Make `loop` the running one. Raises StepMisuse: an optimizer updates what it may not."""
        member = self._member
        self._loop, self._stop, self._leaves = loop, False, False
        self.turns.begin_loop((loop.dataset, loop.collate))
        member.progress.begin_loop(loop.index)
        member.check_covered()
        member.trained.check_settled()
        check_optimizers(member.held.optimizers, member.tables, published=member.rules.has_servers)

    def _over(self, loop: BatchLoop) -> bool:
        """Wait for a plan where one is due. Returns whether the loop is finished."""
        member = self._member
        member.enter()
        # `enter` may have healed this member past the end of the loop.
        if not member.progress.calls.is_finished(loop.number) and self._at_end(loop):
            member.finish_call(loop.number)
        return member.progress.calls.is_finished(loop.number)

    def _at_end(self, loop: BatchLoop) -> bool:
        """Whether the loop is over for this member without an agreement."""
        return not loop.epoch.steps

    @abstractmethod
    def _run_stretch(self, loop: BatchLoop) -> Iterator[Any]:
        """The turns of the next stretch. May raise ExchangeBroken."""

    @abstractmethod
    def _last_stretch(self, loop: BatchLoop) -> None:
        """Take part, without turns, in the stretch that ends the loop for all. May raise ExchangeBroken."""

    @abstractmethod
    def _take(self, turn: Slice, loss: Tensor, report: SliceReport) -> None:
        """Take in what a turn has computed. May raise ExchangeBroken."""

    @property
    @abstractmethod
    def _broken(self) -> bool:
        """Whether the exchange broke since the running turn began."""

    @abstractmethod
    def _give_up(self) -> None:
        """Forget what this member has computed of the broken stretch, as far as it is computed again."""

    def _leave(self) -> None:
        """Record that the loop's body has left it here."""
        self._leaves = True

    @contextmanager
    def _attempt(self) -> Iterator[None]:
        """Run a part of a stretch; where the exchange breaks, the stretch did not happen."""
        try:
            yield
        except ExchangeBroken as error:
            self._give_up()
            self._member.broke(error)
            self._redo()

    def _redo(self) -> None:
        """Drop what the broken stretch has printed: its turns come again."""
        self._sink.replayed()

    def _turn(self, piece: Slice, batches: Iterator[Any]) -> Iterator[Any]:
        """One turn of the loop's body, on the next batch."""
        with self._member.split.loading():
            batch = to_device(next(batches), self._device)
        self.turns.begin(piece)
        yield batch
        self.turns.check_ended()

    def _report_phase(self, phase: str, step: int | None = None) -> None:
        """Report the phase of the training thread, at the committed step or at `step`."""
        loop = self._running
        self._sink.progress(
            step=self._member.progress.step if step is None else step,
            total_steps=loop.total_steps,
            epoch=loop.index,
            phase=phase,
            rows=loop.epoch.batch // max(1, self._slice_count),
        )
