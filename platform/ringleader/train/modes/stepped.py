"""The skeleton of modes in which all members commit together: a batch, or a round of several, is a transaction."""

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ringleader.elastic.plan import owned
from ringleader.train.between_calls.session_calls import FinishedCall
from ringleader.train.generation.control_word import SliceReport, StepReport
from ringleader.train.generation.member import Member
from ringleader.train.modes.batch_loop import BatchLoop
from ringleader.train.modes.empty_transactions import EmptyTransactions
from ringleader.train.modes.loop_exit import LoopExit
from ringleader.train.modes.mode import Mode
from ringleader.train.ports import RecordSink
from ringleader.train.rows.order.batch_sizes import present_shards
from ringleader.train.rows.order.cursor import Epoch
from ringleader.train.rows.slices import Prefetched

NOTHING_TOLD: Mapping[str, float] = {}


class GradientTerms:
    """The terms of the sum that is a batch's gradient, and whose they are in the generation that runs.

    A term is the gradient of a logical shard's slice, or, where no bits are promised, of all slices of a worker, which
    run as one.
    """

    def __init__(self, member: Member) -> None:
        self._member = member

    def shards(self, term: int) -> range:
        """The logical shards of a term."""
        if self._member.same_bits:
            return range(term, term + 1)
        return owned(term, self._member.term_count, self._member.spec.shards)

    def present(self, epoch: Epoch, offset: int) -> list[int]:
        """The terms with rows in a batch, ascending."""
        present, terms = (
            present_shards(epoch.batch_rows(offset), epoch.shards),
            range(self._member.term_count),
        )
        if self._member.same_bits:
            return sorted(present)
        return [term for term in terms if not present.isdisjoint(self.shards(term))]

    def mine(self, epoch: Epoch, offset: int) -> list[int]:
        """Those of them that this worker computes."""
        generation = self._member.generation
        own = generation.plan.shards_of(generation.rank) if self._member.same_bits else (generation.rank,)
        return [term for term in self.present(epoch, offset) if term in own]


class SteppedMode(Mode):
    """A mode whose stretch is a transaction: members begin one, give their slices to the body, and commit together or
    not at all."""

    def __init__(self, member: Member, sink: RecordSink, device: torch.device) -> None:
        super().__init__(member, sink, device)
        self._leaving = LoopExit(member)
        self._terms = GradientTerms(member)
        self._twice = member.beside.repeated
        self._empty = EmptyTransactions(member, self._leaving, self._twice)
        self._reports: dict[int, SliceReport] = {}
        self._pieces: Prefetched | None = None
        self._failed, self._loaded_in = False, -1
        # The slices of the running transaction's first batch, and those of them that are computed here.
        self._present, self._mine = list[int](), list[int]()

    @property
    def mid_batch(self) -> bool:
        """Whether slices of the running transaction are computed, but not all of them committed.

        A newcomer sees only behind its first slice what the others saw behind their last: it leaves with them.
        """
        computed = bool(self._reports) and not self._failed and self._leaving.saw
        return computed or self._member.progress.phases > 0

    def request_stop(self) -> None:
        """Ask for the end of the loop. Behind the first time of a step that is made twice this is dropped: the body
        asks again behind the second."""
        if self.turns.running is not None or self._reports or not self._twice.again:
            super().request_stop()

    def _begin_loop(self, loop: BatchLoop) -> None:
        super()._begin_loop(loop)
        self._failed, self._pieces = False, None
        self._member.trained.begin()
        self._member.laying.make_dense()
        self._leaving.begin()
        self._twice.begin_loop(loop.line, loop.dataset, leaves=loop.leaves)

    def begin_phase(self, loop: BatchLoop, phase: int) -> None:
        if not self._member.progress.calls.offset:
            # Its body is another one, of which the first turns are compared too.
            self._twice.begin_loop(f"{loop.line} (phase {phase})", loop.dataset, leaves=False)

    def begin_steps(self, loop: BatchLoop) -> None:
        """Begin a loop whose lines see every transaction, on servers and on workers without a slice, too."""
        self._begin_loop(loop)
        self._leaving.see_all()
        self._member.enter()

    def step_turns(self, loop: BatchLoop) -> Iterator[Any]:
        """The batches of this member's slices of the next transaction, until it commits; those that a failure took back
        again."""
        progress = self._member.progress
        stands = progress.stands
        while True:
            with self._attempt():
                yield from self._run_stretch(loop)
            # Behind a failure the state may be another member's, of before that commit or of behind it. The loop
            # does not end here: a committed step has its lines to come.
            if self._failed:
                self._member.enter()
            if progress.stands != stands or progress.calls.is_finished(loop.number):
                return

    def _at_end(self, loop: BatchLoop) -> bool:
        progress, calls = self._member.progress, self._member.progress.calls
        return (calls.stopped and not progress.phases) or calls.offset >= loop.epoch.steps

    def _run_stretch(self, loop: BatchLoop) -> Iterator[Any]:
        member = self._member
        if member.laying.due(loop.number):
            # An agreement alone: no slice is computed for a set that is about to change.
            self._last_stretch(loop)
            return
        # A new generation may give this worker other shards, and a failure makes the transaction start over.
        if self._pieces is None or self._failed or self._loaded_in != member.generation.number:
            loaded = self._twice.loaded(loop.collate, self._load(loop))
            self._pieces, self._loaded_in, self._failed = Prefetched(loaded), member.generation.number, False
        self._begin_transaction(loop)
        self._reports, self._mine = {}, self._terms.mine(loop.epoch, member.progress.calls.offset)
        yield from self._slices(loop, self._pieces)
        if not self._mine:  # who has no slice sends its part of the sums at once
            self._finish()

    def _last_stretch(self, loop: BatchLoop) -> None:
        """Take part in the next transaction with nothing but the control word."""
        exchange = self._member.generation.exchange
        self._reports, self._pieces, self._mine = {}, None, []
        self._begin_transaction(loop)
        # Zeros for every owned slice: the sum is complete only with all its terms.
        for term in self._terms.mine(loop.epoch, self._member.progress.calls.offset):
            exchange.begin_slice(term)
            exchange.end_slice()
        self._finish()

    def _leave(self) -> None:
        super()._leave()
        self.undo()

    def _begin_transaction(self, loop: BatchLoop) -> None:
        """Begin a transaction on the exchange. Raises ExchangeBroken."""
        member = self._member
        member.comparison.begin(loop.number)
        self._twice.begin_step()
        member.settings.begin_transaction()
        self._present = self._terms.present(loop.epoch, member.progress.calls.offset)
        member.generation.exchange.begin_step(frozenset(self._present), loop.stepped(member))

    @abstractmethod
    def _slices(self, loop: BatchLoop, pieces: Prefetched) -> Iterator[Any]:
        """The turns of one transaction. May raise ExchangeBroken."""

    @abstractmethod
    def _load(self, loop: BatchLoop) -> Prefetched:
        """The batches of all owned slices from the committed offset on."""

    @property
    def _broken(self) -> bool:
        return self._failed

    def _give_up(self) -> None:
        self._failed = True

    def _forget(self) -> None:
        """Forget what outlives a broken transaction, since the one that it belongs to is dropped."""

    @property
    def _sees(self) -> bool:
        """Whether the loop's body sees the end of the running transaction."""
        return bool(self._mine)

    @property
    def _used(self) -> Sequence[bool]:
        """Which parameters this member's gradients reached, where the word says so."""
        return ()

    @property
    def _said(self) -> Sequence[int]:
        """The slices of which the word is read as a whole; a mode of several batches reads them batch by batch."""
        return self._present

    @abstractmethod
    def _apply(self, report: StepReport, reduced: Tensor) -> None:
        """Commit the transaction that all members have agreed on. Raises ExchangeBroken."""

    @abstractmethod
    def _sums(self, report: StepReport) -> Mapping[int, Tensor]:
        """The sums of the transaction that this member has, by number."""

    @abstractmethod
    def _outcome(self, report: StepReport, reduced: Tensor) -> FinishedCall:
        """What the session shows once the transaction is committed."""

    def _finish(self) -> None:
        """Exchange the word, then commit, unless a member objects. Raises ExchangeBroken."""
        member, reduced = self._member, self._exchange_word()
        report = member.layout.read(reduced, world=len(member.generation.plan.members), present=self._said)
        if not self._is_put_off(report, reduced):
            self.recorder.tell_waits(reduced)
            self._apply(report, reduced)
            member.committed(ends=not member.progress.phases)
            self._report_phase("between")

    def _exchange_word(self) -> Tensor:
        """The sum of all members' words, once the sums of the transaction are here too."""
        member, loop = self._member, self._running
        member.timeline.begin("exchange")
        if self._pieces is not None and loop.reads_ahead:
            with member.split.loading():
                self._pieces.take()  # the sums are on their way: load the next slice meanwhile
        self._report_phase("exchange")  # only now: a read that hangs is this worker's, and noticed
        word = member.layout.write(
            rank=member.generation.rank,
            call=loop.number,
            kind=loop.kind,
            step=member.progress.step,
            pending=member.coordinator.plan_pending(),
            stop=self._stop,
            wish=member.securing.wish,
            said=member.comparison.said,
            lays=member.laying.due(loop.number),
            sets=member.settings.sets,
            repeats=self._twice.asks,
            known=member.findings.known,
            pace=self.recorder.pace,
            stance=self._leaving.stance(leaves=self._leaves, turns=bool(self._mine)),
            slices=self._reports,
            used=self._used,
            buffers=member.buffers.encode(),
        )
        reduced = member.generation.exchange.finish(word, member.check)
        member.timeline.end()
        return reduced

    def _is_put_off(self, report: StepReport, reduced: Tensor) -> bool:
        """Whether an empty transaction has come before this one, which is dropped then: bodies see its end behind this
        turn, and make this one again or leave."""
        empty = self._empty.due(self._running.number, report, reduced)
        said = self._member.settings.said
        if empty is None:
            self._twice.compare(partial(self._sums, report), said)
            return False
        if empty.repeats:
            self._twice.keep(self._sums(report), said, self._outcome(report, reduced))
        self._reports = {}
        if not empty.leaves:
            self._forget()
        self._give_up()  # as after a failure: the slices are loaded and computed again
        self._empty.commit(empty, sees=self._sees, pending=report.pending)
        if empty.leaves:
            self._report_phase("between")
        elif not empty.repeats:  # the first time has printed what the step prints
            self._redo()
        empty.behind()
        return True

    def _redo(self) -> None:
        super()._redo()
        self._twice.drop()

    def _commit_buffers(self, reduced: Tensor) -> None:
        """Commit the buffers that the first shard's slice left."""
        if 0 in self._present:
            self._member.buffers.commit(self._member.layout.buffers_of(reduced))
        else:  # the last batch may have fewer rows than there are shards
            self._member.buffers.forget()

    def _end_commit(
        self, offset: int, reports: Sequence[StepReport], told: Mapping[str, float] = NOTHING_TOLD
    ) -> None:
        """Record the steps that are committed now, from the one at `offset` on, and do what the members have said.
        `told`: metrics of the newest one, beside those of its report."""
        member, loop = self._member, self._running
        records = self.recorder.records(loop.epoch, offset, reports, self.turns.names)
        records[-1].values = {**told, **records[-1].values}
        member.reporter.open(records)
        self._commit_stop(reports[0])
        if reports[0].pending:
            member.leave_at_planned_boundary()
        self._report_phase("committed")

    def _commit_stop(self, report: StepReport) -> None:
        """Commit the end of the loop with this transaction, where a member has asked for it."""
        # The program's lines behind this step come first, where all members run them.
        if report.stop and self._leaving.sees_all:
            self._member.progress.stop_loop()
        elif report.stop:
            self._member.finish_call(self._running.number)
        self._stop = self._stop and not report.stop
