"""Local SGD: the transaction is a round of H batches. Each logical shard trains a replica of its own for H steps from
the committed state; the replicas' moves are summed along the canonical tree and make one outer step.

The loop body sees a replica's H slices in a row, then those of the next owned shard. Nothing travels in between.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ringleader.errors import StepMisuse
from ringleader.train.between_calls.session_calls import FinishedCall
from ringleader.train.generation.control_word import SliceReport, StepReport
from ringleader.train.generation.member import Member
from ringleader.train.modes.batch_loop import BatchLoop
from ringleader.train.modes.local_sgd.outer_step import OuterStep
from ringleader.train.modes.local_sgd.replicas import FinishedReplicas, Replica
from ringleader.train.modes.mode_rules import ModeRules
from ringleader.train.modes.step_checks import check
from ringleader.train.modes.stepped import SteppedMode
from ringleader.train.ports import RecordSink, check_given_up
from ringleader.train.rows.order.batch_sizes import present_shards
from ringleader.train.rows.order.cursor import Epoch
from ringleader.train.rows.slices import Prefetched, Slice


@dataclass(frozen=True, slots=True)
class RoundSpan:
    """The batches of one round: H of them, fewer at the end of an epoch."""

    epoch: Epoch
    offsets: range

    @classmethod
    def at(cls, epoch: Epoch, offset: int, inner_steps: int) -> "RoundSpan":
        return cls(epoch, range(offset, min(offset + inner_steps, epoch.steps)))

    @property
    def rows(self) -> int:
        return sum(self.epoch.batch_rows(offset) for offset in self.offsets)

    def present(self, offset: int) -> list[int]:
        """The shards with rows in a batch, ascending. The first batch of a span has all that any of them has."""
        return sorted(present_shards(self.epoch.batch_rows(offset), self.epoch.shards))

    def offsets_of(self, shard: int) -> list[int]:
        """The batches in which a shard has rows."""
        return [offset for offset in self.offsets if shard in self.present(offset)]

    def slot(self, offset: int, shard: int) -> int:
        """The place of a slice's report in the control word."""
        return (offset - self.offsets.start) * self.epoch.shards + shard


class LocalSgdRules(ModeRules):
    """The rules where replicas step by themselves, and are averaged."""

    averages = True
    no_phases = "sync: local_sgd, where each logical shard steps copies of the optimizers by itself"


class LocalSgdLoop(SteppedMode):
    """The mode whose transaction is a round: several batches, in replicas that are averaged behind them."""

    rules = LocalSgdRules

    def __init__(self, member: Member, sink: RecordSink, device: torch.device) -> None:
        super().__init__(member, sink, device)
        self._finished = FinishedReplicas()
        self._behind: list[int] = []
        self._offset = 0
        self._seen = False
        self._span: RoundSpan | None = None
        member.seating.when_open(self._on_generation_open)

    @property
    def _round(self) -> RoundSpan:
        """The round whose turns run. Raises LookupError before the first."""
        if self._span is None:
            raise LookupError("no round has begun")
        return self._span

    def undo(self) -> None:
        """Take a replica that has moved back to the committed state: the loop's body has left."""
        if self._reports:
            self._outer.rewind()

    def _begin_transaction(self, loop: BatchLoop) -> None:
        self._member.laying.lay_first()
        self._outer.open()
        self._seen = False
        self._span = self._span_at(loop, self._member.progress.calls.offset)
        super()._begin_transaction(loop)

    def _slices(self, loop: BatchLoop, pieces: Prefetched) -> Iterator[Any]:
        span = self._round
        finished = self._finished.of(self._member.progress.transactions)
        open_ones = [shard for shard in self._mine if shard not in finished]
        # Those behind the last open replica wait for it: the round must not end before a turn that can see its end.
        self._behind = [shard for shard in self._mine if open_ones and shard > open_ones[-1]]
        for shard in self._mine[: len(self._mine) - len(self._behind)]:
            if shard in finished:
                self._bring(shard, finished[shard], seen=False)
                continue
            # Every replica starts from the committed state, whichever this worker has trained before.
            self._outer.rewind()
            self._member.settings.begin_replica()
            self._member.buffers.rewind()
            for offset in span.offsets_of(shard):
                self._offset = offset
                self._report_phase("forward")
                yield from self._turn(loop.slice(self._member, offset, shard), pieces)
                if self._failed:
                    return

    def _take(self, turn: Slice, loss: Tensor, report: SliceReport) -> None:
        """Make one inner step of the running replica; on the worker's last one exchange, make the outer step and
        commit."""
        member, span = self._member, self._round
        self._reports[span.slot(self._offset, turn.shard)] = report
        # The exchange would say so only at the end of the round.
        check_given_up(member.coordinator, rank=member.generation.rank, phase="forward")
        # Keyed by the slice: an optimizer that draws makes the same bits on any worker.
        member.draws.begin(*turn.stream)
        member.timeline.begin("inner step", slice=turn.shard)
        self._outer.inner_step(loss, member.trained.check_reached, member.kernels.backward)
        member.settings.inner_step()
        member.timeline.end()
        if self._offset == span.offsets_of(turn.shard)[-1]:
            replica = self._replica(span, turn.shard)
            if member.generation.plan.world > 1:  # who is alone loses nobody
                self._finished.keep(member.progress.transactions, turn.shard, replica)
            self._bring(turn.shard, replica, seen=True)
            if self._behind and self._mine[-1 - len(self._behind)] == turn.shard:
                finished = self._finished.of(member.progress.transactions)
                for shard in self._behind:  # only now: the loop body shall see the end of the round
                    self._bring(shard, finished[shard], seen=True)

    def _replica(self, span: RoundSpan, shard: int) -> Replica:
        """The running replica after its last step."""
        slots = [span.slot(offset, shard) for offset in span.offsets_of(shard)]
        weight = sum(self._reports[slot].weight for slot in slots)
        left = None
        if shard == 0:
            self._member.buffers.keep_left()
            left = self._member.buffers.left_bytes()
        reports = {slot: self._reports[slot] for slot in slots}
        whole = span.offsets_of(shard)[-1] == span.offsets[-1]
        said = self._member.settings.replica if whole else (False, None)
        share = weight / span.rows
        return Replica(
            self._outer.moves(shard, share), reports, left, self._outer.attributes.left(share), said
        )

    def _bring(self, shard: int, replica: Replica, *, seen: bool) -> None:
        """Enter a finished replica into the sum; with the worker's last one the round ends.

        Args:
            seen: whether the loop body waits for this, and sees the result. Of a replica that was finished before, it
                sees nothing before its next turn.
        """
        exchange = self._member.generation.exchange
        self._reports |= replica.reports
        self._member.settings.bring(replica.said)
        if replica.left is not None:
            self._member.buffers.put_left(replica.left)
        exchange.begin_slice(shard)
        self._outer.attributes.bring(shard, replica.attributes)
        self._outer.bring(replica.moves)
        exchange.end_slice()
        if shard == self._mine[-1]:
            self._seen = seen
            self._finish()

    def _on_generation_open(self) -> None:
        """Begin a generation: finished replicas of the running round are handed over, not trained again."""
        self._finished.hand_over(self._member.generation)

    def _give_up(self) -> None:
        super()._give_up()
        self._outer.give_up()

    @property
    def _said(self) -> Sequence[int]:
        return ()

    @property
    def _sees(self) -> bool:
        return self._seen

    def _sums(self, report: StepReport) -> Mapping[int, Tensor]:
        carriers = enumerate(self._outer.carriers)
        return {number: carrier.grad for number, carrier in carriers if carrier.grad is not None}

    def _outcome(self, report: StepReport, reduced: Tensor) -> FinishedCall:
        span = self._round
        last = self._report(reduced, span, span.offsets[-1])
        return FinishedCall(None, self._member.progress.step + len(span.offsets), last.loss)

    def _forget(self) -> None:
        self._finished.forget()

    def _apply(self, report: StepReport, reduced: Tensor) -> None:
        """Make the outer step and commit."""
        member, exchange, span = self._member, self._member.generation.exchange, self._round
        self._report_phase("update")
        member.timeline.begin("update")
        reports = [self._report(reduced, span, offset) for offset in span.offsets]
        # Before the commit: a break in here takes nothing back that is committed.
        row = member.settings.agree(exchange) if report.sets else None
        # Replicas scaled by rows: the sum of the weights is known only now.
        scale = span.rows / sum(report.weight for report in reports)
        self._outer.attributes.agree(exchange, scale)
        self._outer.commit(scale)
        if row is not None:
            member.settings.take(row)
        self._commit_buffers(reduced)
        member.publish()
        member.timeline.end()
        self._commit(span, reports)

    def _report(self, reduced: Tensor, span: RoundSpan, offset: int) -> StepReport:
        """One batch's report from the reduced word, checked."""
        member = self._member
        slots = {span.slot(offset, shard): (shard,) for shard in span.present(offset)}
        report = member.layout.read(reduced, world=len(member.generation.plan.members), present=list(slots))
        check(report, span.epoch, offset, member.progress.step + 1 + offset - span.offsets.start, slots)
        return report

    def _commit(self, span: RoundSpan, reports: list[StepReport]) -> None:
        """Commit all steps of the round at once; what runs once a step runs as often as the round has steps."""
        member, loop = self._member, self._running
        self._reports = {}
        self._finished.forget()
        # First: a break from here on must not take the committed weights back.
        self._outer.close()
        member.progress.commit_transaction()
        self._leaving.committed(turns=self._sees)
        for offset, report in zip(span.offsets, reports, strict=True):
            member.progress.commit_step(rows=loop.epoch.batch_rows(offset), loss=report.loss)
            member.beside.note_step()
            member.held.after_update(member.spec.seed, member.progress.step)
            if member.held.callbacks:
                member.buffers.adopt()  # what they have set in buffers is committed with the step
        member.settings.committed()
        if member.progress.calls.offset < loop.epoch.steps:
            self._check_switched()
        self._end_commit(span.offsets.start, reports)

    def _check_switched(self) -> None:
        """Check that no optimizer keeps other things than when the loop began. Raises StepMisuse: a generation that
        begins in this loop would average them, one that goes on would not."""
        if (option := self._outer.switched) is not None:
            raise StepMisuse(
                f"an optimizer's {option!r} was switched on or off inside a loop with sync: local_sgd, which averages "
                f"the optimizer state that exists when the loop begins.",
                hint="Switch it between two loops, or use sync: ring.",
            )

    def _load(self, loop: BatchLoop) -> Prefetched:
        """Batches of all owned slices from the committed offset on, replica by replica."""
        member, first = self._member, self._member.progress.calls.offset
        finished = self._finished.of(member.progress.transactions)
        pieces = (
            loop.slice(member, offset, shard)
            for start in range(first, loop.epoch.steps, member.spec.sync.round_steps)
            for span in [self._span_at(loop, start)]
            for shard in self._terms.mine(loop.epoch, start)
            # Of the running round only replicas that are not finished need their batches again.
            if start > first or shard not in finished
            for offset in span.offsets_of(shard)
        )
        return loop.batches(pieces)

    def _span_at(self, loop: BatchLoop, offset: int) -> RoundSpan:
        return RoundSpan.at(loop.epoch, offset, self._member.spec.sync.round_steps)

    @property
    def _outer(self) -> OuterStep:
        outer = self._member.outer
        assert outer is not None, "rounds belong to sync: local_sgd"
        return outer
