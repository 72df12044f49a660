"""The skeleton of modes in which all members commit together: a batch, or a round of several, is a transaction."""

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from ringleader.errors import ExchangeBroken
from ringleader.train.generation.control_word import BATCHES, SliceReport, StepReport
from ringleader.train.generation.member import Member
from ringleader.train.modes.batch_loop import BatchLoop
from ringleader.train.modes.loop_exit import LoopExit
from ringleader.train.modes.mode import Mode
from ringleader.train.ports import RecordSink
from ringleader.train.rows.slices import Prefetched


class SteppedMode(Mode):
    """Runs transactions until the loop is over: members begin one, give their slices to the body, and commit together
    or not at all; a broken one is done again in the next generation."""

    def __init__(self, member: Member, sink: RecordSink, device: torch.device) -> None:
        super().__init__(member, sink, device)
        self._leaving = LoopExit(member)
        self._reports: dict[int, SliceReport] = {}
        self._failed = False
        self._pieces: Prefetched | None = None
        # The lanes that the word has reports of; a mode of several batches reads them batch by batch.
        self._present: Sequence[int] = ()

    @property
    def mid_batch(self) -> bool:
        """Whether slices of the running transaction are computed, but not all of them committed.

        A worker that has just joined sees only behind its first slice what the others saw behind their last: it leaves
        with them.
        """
        return bool(self._reports) and not self._failed and self._leaving.saw

    def run(self, loop: BatchLoop) -> Iterator[Any]:
        member = self._member
        self._begin_loop(loop)
        self._pieces, loaded_in = None, -1
        while not loop.over(member):
            if member.laying.due(loop.number):
                # An agreement alone: no slice is computed for a set that is about to change.
                self._try(lambda: self._pass(loop))
                continue
            # A new generation may give this worker other shards, and a failure makes the transaction start over.
            if self._pieces is None or self._failed or loaded_in != member.generation.number:
                self._pieces, loaded_in, self._failed = self._load(loop), member.generation.number, False
            self._try(
                lambda: self._begin_transaction(loop)
            )  # who has no slice sends its part of the sums at once
            if not self._failed:
                yield from self._slices(loop, self._pieces)

    def end(self, number: int) -> None:
        loop = self._running
        assert loop.number == number
        self.turns.leave()
        self._leaving.ask()
        self.undo()
        while not loop.over(self._member):
            self._try(lambda: self._pass(loop))

    def _begin_loop(self, loop: BatchLoop) -> None:
        super()._begin_loop(loop)
        self._failed = False
        self._member.trained.begin()
        self._member.laying.make_dense()
        self._leaving.begin()

    @abstractmethod
    def _begin_transaction(self, loop: BatchLoop) -> None:
        """Begin a transaction on the exchange. Raises ExchangeBroken."""

    @abstractmethod
    def _slices(self, loop: BatchLoop, pieces: Prefetched) -> Iterator[Any]:
        """The turns of one transaction."""

    @abstractmethod
    def _load(self, loop: BatchLoop) -> Prefetched:
        """The batches of all owned slices from the committed offset on."""

    @abstractmethod
    def _pass(self, loop: BatchLoop) -> None:
        """Take part in the next transaction with nothing but the control word. Raises ExchangeBroken."""

    @abstractmethod
    def _give_up(self) -> None:
        """Forget what this member has computed of the broken transaction."""

    def _forget(self) -> None:
        """Forget what outlives a broken transaction, since the one that it belongs to is dropped."""

    def _try(self, act: Callable[[], Any]) -> None:
        """Run a part of the transaction; a broken exchange means that it did not happen."""
        try:
            act()
        except ExchangeBroken as error:
            self._failed = True
            self._give_up()
            self._member.broke(error)
            self._sink.replayed()

    @property
    @abstractmethod
    def _computes(self) -> bool:
        """Whether this member has slices of the running transaction."""

    @property
    def _sees(self) -> bool:
        """Whether the loop's body sees the end of the running transaction."""
        return self._computes

    @property
    def _used(self) -> Sequence[bool]:
        """Which parameters this member's gradients reached, where the word says so."""
        return ()

    def _read(self, reduced: Tensor) -> StepReport:
        """What the summed word says of the transaction as a whole."""
        member = self._member
        return member.layout.read(reduced, world=len(member.generation.plan.members), present=self._present)

    @abstractmethod
    def _apply(self, report: StepReport, reduced: Tensor) -> None:
        """Commit the transaction that all members have agreed on. Raises ExchangeBroken."""

    def _is_repeated(self, _report: StepReport) -> bool:
        """Whether the transaction, whose gradients are summed, has to be computed once more: in a check of the
        program."""
        return False

    def _finish(self) -> None:
        """Exchange the word, then commit, unless a member objects. Raises ExchangeBroken."""
        reduced = self._exchange_word()
        report = self._read(reduced)
        if not self._is_put_off(report, reduced):
            self._apply(report, reduced)
            self._member.committed()
            self._report_phase(self._running, "between")

    def _exchange_word(self) -> Tensor:
        """The sum of all members' words, once the sums of the transaction are here too."""
        member, loop = self._member, self._running
        member.timeline.begin("exchange")
        if self._pieces is not None:
            self._pieces.take()  # the sums are on their way: load the next slice meanwhile
        self._report_phase(loop, "exchange")  # only now: a read that hangs is this worker's, and noticed
        word = member.layout.write(
            rank=member.generation.rank,
            call=loop.number,
            kind=BATCHES + loop.index,
            step=member.progress.step,
            pending=member.coordinator.plan_pending(),
            stop=self._stop,
            wish=member.securing.wish,
            said=member.comparison.said,
            lays=member.laying.due(loop.number),
            sets=member.settings.sets,
            stance=self._leaving.stance(turns=self._computes),
            slices=self._reports,
            used=self._used,
            buffers=member.buffers.encode(),
        )
        reduced = member.generation.exchange.finish(word, member.check)
        member.timeline.end()
        return reduced

    def _is_put_off(self, report: StepReport, reduced: Tensor) -> bool:
        """Whether something comes before the transaction: members differ, a body has left the loop, other parameters
        are trained, or a body has to see the end of the one before."""
        member, loop = self._member, self._running
        if member.comparison.differs(reduced):
            self._look_first(report, first=lambda: member.comparison.correct(reduced))
            return True
        member.comparison.agreed(loop.number)
        if report.left:
            self._leave(loop, report)
        elif report.lays:
            self._lay_anew(loop, report)
        elif report.unseen or self._is_repeated(report):
            self._look_first(report)
        else:
            return False
        return True

    def _leave(self, loop: BatchLoop, report: StepReport) -> None:
        """End the loop for all, before this transaction: what it computed is dropped, the weights stay."""
        self._reports = {}
        self._give_up()
        self._member.leave_call(loop.number)
        if report.pending:
            self._member.leave_at_planned_boundary()
        self._report_phase(loop, "between")

    def _lay_anew(self, loop: BatchLoop, report: StepReport) -> None:
        """Agree on what is trained, and by which optimisers, since that has changed before this loop; the transaction
        is made again with it."""
        trained = self._member.trained
        numbers = trained.agree()
        self._look_first(report, lambda: trained.go_by(numbers, loop.number))
        if not report.pending:  # the next generation is laid so
            self._member.lay_anew()

    def _look_first(
        self,
        report: StepReport,
        end: Callable[[], None] = lambda: None,
        *,
        first: Callable[[], None] = lambda: None,
    ) -> None:
        """Drop the transaction: no loop body has seen the end of the one before. All do behind this turn, and make it
        again or leave. `first` runs before weights are published."""
        # As after a failure: the slices are loaded and computed again.
        member, self._reports, self._failed = self._member, {}, True
        self._forget()
        self._give_up()
        member.held.rewind_kept()
        member.buffers.forget()
        first()
        member.pass_over(end)
        self._leaving.committed(turns=self._sees)
        if report.pending:
            member.leave_at_planned_boundary()
        self._sink.replayed()
