"""The step transaction: slices go to the loop body, the last one finishes the exchange, all commit or none.

A step with phases is as many transactions: each computes all slices, and steps the optimizers of its phase. The last
one commits the step.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ringleader.comm.buckets import give_gradient
from ringleader.errors import StepMisuse
from ringleader.train.between_calls.session_calls import FinishedCall
from ringleader.train.body.phases import PhaseUpdate
from ringleader.train.generation.control_word import SliceReport, StepReport
from ringleader.train.generation.member import Member
from ringleader.train.modes.batch_loop import BatchLoop
from ringleader.train.modes.step_checks import check
from ringleader.train.modes.stepped import SteppedMode
from ringleader.train.ports import RecordSink
from ringleader.train.rows.slices import Prefetched, Slice
from ringleader.train.rows.step_batches import StepBatches
from ringleader.train.state.loss_scale import finite, unscale
from ringleader.train.state.norms import scale_by


class SynchronousLoop(SteppedMode):
    """The mode whose transaction is a step, or a phase of one: one batch."""

    def __init__(self, member: Member, sink: RecordSink, device: torch.device) -> None:
        super().__init__(member, sink, device)
        self._stops_later = False
        self._batches = StepBatches()

    def request_stop(self) -> None:
        """Ask for the end of the loop. Between two slices of a batch this counts as behind the last one: workers with
        fewer of them are there already."""
        if self.turns.running is None and self._reports:
            self._stops_later = True
        else:
            super().request_stop()

    def _begin_loop(self, loop: BatchLoop) -> None:
        super()._begin_loop(loop)
        self._stops_later = False

    def _slices(self, loop: BatchLoop, pieces: Prefetched) -> Iterator[Any]:
        offset = self._member.progress.calls.offset
        batches = self._batches.of(pieces, offset, last=self._next_update.ends) if loop.phases else pieces
        self._report_phase("forward")
        for term in self._mine:
            # Each slice starts from the committed buffers, so that they do not depend on who computes it.
            self._member.buffers.rewind()
            yield from self._turn(self._slice(loop, offset, term), batches)
            if self._failed:
                return

    def _take(self, turn: Slice, loss: Tensor, report: SliceReport) -> None:
        """Run the backward of one slice; on the last one exchange and commit."""
        member, exchange = self._member, self._member.generation.exchange
        self._reports[turn.shard] = report.on_the_way()
        if turn.shard == 0:
            member.buffers.keep_left()
        member.timeline.begin("backward", slice=turn.shard)
        exchange.begin_slice(turn.shard)
        # By rows, as far as this worker knows: `_update` scales by the sum of the weights once all are in.
        share = report.weight / self._running.epoch.batch_rows(member.progress.calls.offset)
        scale = member.scaling.scale if member.scaling else 1.0
        member.kernels.backward(loss * (share * scale), self._next_update.trained(member.held))
        exchange.end_slice()
        self._check_phase()
        member.trained.check_reached()
        member.timeline.end()
        if turn.shard == self._mine[-1]:
            self._finish()

    def _check_phase(self) -> None:
        """Raise StepMisuse where a slice's loss has reached nothing that the running phase trains."""
        if self._running.phases and not any(self._member.generation.exchange.used):
            raise StepMisuse(
                f"the loss of phase {self._member.progress.phases} reaches no parameter of the phase's optimizer.",
                hint="Each phase steps its own optimizer alone. Take the iterators of a step in the order of `phases`: "
                "for critic, generator in session.steps(rows, phases=[critic_optimizer, generator_optimizer]).",
            )

    def _give_up(self) -> None:
        super()._give_up()
        self._member.settings.forget()

    def _sums(self, report: StepReport) -> Mapping[int, Tensor]:
        used = enumerate(zip(self._member.parameters, report.used, strict=True))
        return {number: p.grad for number, (p, is_used) in used if is_used and p.grad is not None}

    def _outcome(self, report: StepReport, reduced: Tensor) -> FinishedCall:
        # A phase that is not the last one leaves what is shown of the step before.
        progress = self._member.progress
        shown = (progress.step + 1, report.loss) if self._next_update.ends else (progress.step, progress.loss)
        return FinishedCall(None, *shown)

    @property
    def _next_update(self) -> PhaseUpdate:
        """The update of the running transaction."""
        return self._running.update_of(self._member.progress.phases)

    @property
    def _used(self) -> Sequence[bool]:
        return self._member.generation.exchange.used

    def _apply(self, report: StepReport, reduced: Tensor) -> None:
        """Update and commit."""
        member, loop, exchange = self._member, self._running, self._member.generation.exchange
        slices = {term: self._terms.shards(term) for term in self._present}
        check(report, loop.epoch, member.progress.calls.offset, member.progress.step + 1, slices)
        if report.sets:
            member.settings.take(member.settings.agree(exchange))
        member.draws.begin(*member.progress.update_key)
        skipped = self._overflowed(report)
        # Whoever owns the update commits before it publishes: a peer lost in between takes nothing back.
        if exchange.updates:
            self._donate(report, reduced, skipped=skipped)
            self._report_phase("update")
            self._update(report, skipped=skipped)
            self._commit(report, reduced, skipped=skipped)
            member.publish()
            member.call_back()
        else:
            # Weights first: whoever is at a step has its weights, if the exchange breaks in between.
            member.publish()
            self._report_phase("update")
            self._commit(report, reduced, skipped=skipped)

    def _donate(self, report: StepReport, reduced: Tensor, *, skipped: bool) -> None:
        """Send those who follow this member what it is about to apply."""
        member, loop = self._member, self._running
        rows = loop.epoch.batch_rows(member.progress.calls.offset)
        buffers = member.layout.buffers_of(reduced) if 0 in self._present else None
        member.donations.reduced(report, rows, buffers, update=self._next_update, skipped=skipped)

    @torch.no_grad()
    def _overflowed(self, report: StepReport) -> bool:
        """Whether the reduced gradient of scaled losses is not finite, here or in its other parts. If it is finite,
        divide the scale out of it."""
        member, scaling = self._member, self._member.scaling
        if scaling is None:
            return False
        used = [parameter for parameter, used in zip(member.parameters, report.used, strict=True) if used]
        broken = torch.zeros(len(member.generation.plan.members), dtype=torch.float64)
        broken[member.generation.rank] = not finite(used)
        if member.generation.plan.servers:  # only they hold gradients, each its part
            broken = member.generation.exchange.all_reduce(broken)
        if bool(broken.any()):
            scaling.check(member.progress.step + 1)
            return True
        unscale(used, scaling.scale)
        return False

    @torch.no_grad()
    def _update(self, report: StepReport, *, skipped: bool) -> None:
        member, loop = self._member, self._running
        member.timeline.begin("update")
        rows = loop.epoch.batch_rows(member.progress.calls.offset)
        for parameter, used in zip(member.parameters, report.used, strict=True):
            if not used:
                give_gradient(parameter, None)
            elif report.weight != rows and parameter.grad is not None:
                scale_by(parameter.grad, rows / report.weight)
        if not skipped:
            with member.draws.watched():
                # A server that is ahead repeats the step with the others, and must not update twice.
                member.held.update(self._complete, applied=member.ahead, only=self._next_update.optimizers)
        member.timeline.end()

    def _complete(self, values: Tensor) -> Tensor:
        """The norm's sums over all parts, from every member that updates; servers wait for each other."""
        exchange = self._member.generation.exchange
        if exchange.part is None:
            return exchange.complete(values)
        self._report_phase("exchange")
        whole = exchange.complete(values)
        self._report_phase("update")
        return whole

    def _commit(self, report: StepReport, reduced: Tensor, *, skipped: bool) -> None:
        member, loop, exchange = self._member, self._running, self._member.generation.exchange
        self._commit_buffers(reduced)
        offset = member.progress.calls.offset
        # Where servers update, workers do not have it, and all shall see the same.
        alone = exchange.updates and not member.generation.plan.servers and not skipped
        norm = member.held.norm if alone else None
        ends, rows = self._next_update.ends, loop.epoch.batch_rows(offset)
        if ends:
            told = self._told(report)
            member.progress.commit_step(rows=rows, loss=report.loss, norm=norm, values=report.values)
        else:
            member.progress.commit_phase([report.loss, *report.values], norm)
        member.progress.commit_transaction()
        member.progress.commit_update()
        self._reports = {}
        self._leaving.committed(turns=self._sees)
        if ends:
            self._run_callbacks(skipped=skipped)
        else:
            member.held.kept.commit()  # with what the program's lines before the phase have made of them
        member.settings.committed()
        if member.scaling is not None:
            member.scaling.commit(overflowed=skipped)
        if ends:
            self._end_commit(offset, [report], told)
        else:
            self._commit_stop(report)
            self._report_phase("committed")
        # Asked for between slices of the batch that is committed now: the next one is the last.
        self._stop, self._stops_later = self._stop or self._stops_later, False

    def _run_callbacks(self, *, skipped: bool) -> None:
        """Run what follows a step's update: schedules and callbacks."""
        member, exchange = self._member, self._member.generation.exchange
        # A server that holds a part runs callbacks once all have published: they see all weights of the step.
        later = exchange.updates and exchange.part is not None
        published = not exchange.updates
        member.held.after_update(
            member.spec.seed, member.progress.step, published=published, skipped=skipped, later=later
        )
        if member.held.callbacks:
            member.buffers.adopt()  # what they have set in buffers is committed with the step

    def _told(self, report: StepReport) -> dict[str, float]:
        """The metrics of the running step's phases, of which the last one is about to be committed."""
        if not self._running.phases:
            return {}
        told: dict[str, float] = {}
        for phase, (loss, *values) in enumerate(
            [*self._member.progress.phase_values, [report.loss, *report.values]]
        ):
            # Not strict, as for the records of steps.
            told |= {**dict(zip(self.turns.names_of(phase), values, strict=False)), f"loss/{phase}": loss}
        return told

    def _load(self, loop: BatchLoop) -> Prefetched:
        """Batches of all owned slices from the committed offset on."""
        pieces = (
            loop.slice(self._member, offset, term, self._terms.shards(term))
            for offset in range(self._member.progress.calls.offset, loop.epoch.steps)
            for term in self._terms.mine(loop.epoch, offset)
        )
        return loop.batches(pieces)

    def _slice(self, loop: BatchLoop, offset: int, term: int) -> Slice:
        piece = loop.slice(self._member, offset, term, self._terms.shards(term))
        phase = self._member.progress.phases if loop.phases else 0
        # Draws of its own, of rows that are loaded once for all phases.
        return replace(piece, stream=(*piece.stream, phase)) if phase else piece
