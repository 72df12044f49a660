"""Token ring: the transaction is one slice in one span. The weights go round the members as tokens, and nobody waits.

A worker computes the slices of its shards in the order of steps, each with an ordinary step of its own optimizer. What
that moved its weights by, times the slice's share of the batch, is pending for every token, which takes it along when
it comes by. What has been computed is never rolled back: a generation that breaks costs the running transfers only.

Where a node is one member of the ring, its node group does the same together: the conductor calls for a batch's slices
and sends the weights to compute them on, the gradients are added up, and what the one step moves is pending at the
conductor.
"""

from collections.abc import Iterator
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from ringleader.checkpoint.parts import CheckpointPart
from ringleader.elastic.plan import Plan
from ringleader.errors import ExchangeBroken, StepMisuse
from ringleader.train.generation.control_word import LoopStance, SliceReport
from ringleader.train.generation.generation import Generation
from ringleader.train.generation.member import Member
from ringleader.train.modes.batch_loop import BatchLoop
from ringleader.train.modes.items import ItemSet
from ringleader.train.modes.mode import Mode
from ringleader.train.modes.mode_rules import ModeRules
from ringleader.train.modes.token_ring.settled_steps import SettledSteps
from ringleader.train.modes.token_ring.stretch import Stretch
from ringleader.train.modes.token_ring.worker_tokens import WorkerTokens
from ringleader.train.ports import RecordSink
from ringleader.train.rows.slices import Slice


class TokenRingRules(ModeRules):
    """The rules where weights travel, and the members' optimizers differ."""

    commits_together = False
    sums_gradients = False

    @property
    def steps_alone(self) -> bool:
        return not self.has_servers

    def has_parts(self, plan: Plan) -> bool:
        return False

    def saved_part(self, generation: Generation) -> CheckpointPart | None:
        """One member writes all: server 0, which comes behind all workers; without copies on servers the first
        worker."""
        plan = generation.plan
        writer = plan.world if plan.servers and self._sync.servers_are_copies else 0
        return CheckpointPart() if generation.rank == writer else None


class TokenRingLoop(Mode):
    """The mode in which the tokens go round until a stretch is over for all."""

    rules = TokenRingRules

    def __init__(self, member: Member, sink: RecordSink, device: torch.device) -> None:
        super().__init__(member, sink, device)
        self._stretch: Stretch | None = None
        member.inside.tell(self._loop_state, gather=self._gather_loop_state)

    @cached_property
    def tokens(self) -> WorkerTokens:
        """The weights as tokens, from the first loop on."""
        return WorkerTokens(self._member)

    @cached_property
    def _settled(self) -> SettledSteps:
        return SettledSteps(self._member, self.tokens.news, self.recorder)

    @property
    def in_step(self) -> bool:
        return False

    @property
    def accumulates(self) -> bool:
        """See `Stretch.accumulates`."""
        return self._stretch is not None and self._stretch.accumulates

    def missed(self, loop: BatchLoop) -> None:
        """Give up the position of a member that was healed in the middle of a loop and got no tokens: others could not
        go on from its state."""
        if self._member.progress.opened == loop.number and self.tokens.lost:
            # Behind all others: the next plan heals this member, and heals nobody from it.
            self._member.progress.forfeit()

    def _run_stretch(self, loop: BatchLoop) -> Iterator[Any]:
        """The turns of the slices of owned shards that some token lacks."""
        stretch = self._stretch = self._begin_stretch(loop)
        batches = stretch.plan.batches()
        for compute in stretch.plan.rounds():
            if not stretch.begin(compute):
                break
            self._tick(self._member.progress.calls.base + compute.offset)
            mine = list(stretch.left)
            for shard in mine:
                self._report_phase("forward")
                yield from self._turn(stretch.plan.slice(compute.offset, shard), batches)
                if self._broken:
                    return
            if not mine:
                self._report_phase("exchange")
                stretch.end_round()
        self._end_stretch(loop, stretch)

    def _last_stretch(self, loop: BatchLoop) -> None:
        # Another one where the generation broke: the end is agreed on as a stretch ends.
        stretch = self._stretch = self._stretch or self._begin_stretch(loop)
        self._end_stretch(loop, stretch)

    def _leave(self) -> None:
        """The slice that the body was at is not applied."""
        super()._leave()
        self._stop = True
        if self._stretch is not None:
            self._stretch.halt()

    def _take(self, turn: Slice, loss: Tensor, report: SliceReport) -> None:
        """Run the backward of a slice; after this member's last one take one step, whose move is pending for the
        tokens. Raises StepMisuse: a move counts by its rows, no weight reaches it."""
        if report.weight != len(turn.rows):
            raise StepMisuse(
                f"session.step got weight={report.weight} for {len(turn.rows)} rows in a token ring.",
                hint="A token ring weights slices by their rows: leave weight= out, or choose another sync.",
            )
        assert self._stretch is not None
        self._stretch.take(turn, loss, report)

    @property
    def _broken(self) -> bool:
        return self._stretch is None

    def _give_up(self) -> None:
        self._stretch = None

    def _redo(self) -> None:
        """Do nothing: what has been computed is never rolled back."""

    def _begin_stretch(self, loop: BatchLoop) -> Stretch:
        """Begin a stretch, with all members at the newest copies. Raises ExchangeBroken."""
        member = self._member
        try:
            regenerated = self.tokens.meet(member.generation.exchange, loop)
            if member.progress.opened != loop.number:
                # The opening is a transaction: a member that missed it is behind, and takes a peer's whole state.
                member.progress.open_loop(loop.number)
            return Stretch(
                member,
                loop,
                self.tokens,
                regenerated,
                heed=self._heed,
                tell=self._report_phase,
            )
        except ExchangeBroken:
            self.missed(loop)
            raise

    def _end_stretch(self, loop: BatchLoop, stretch: Stretch) -> None:
        """End the stretch, and agree, where all copies are equal, on what comes next: the loop is over, or the
        generation, or neither. Raises ExchangeBroken."""
        member, exchange = self._member, self._member.generation.exchange
        items = stretch.end()
        self._settle(loop)
        word = member.layout.write(
            rank=member.generation.rank,
            call=loop.number,
            kind=loop.kind,
            step=member.progress.step,
            pending=member.coordinator.plan_pending(),
            stop=self._stop,
            stance=LoopStance.LEAVES if self._leaves else LoopStance.FOLLOWS,
            wish=member.securing.wish,
        )
        reduced = exchange.meet(word)
        member.check(reduced)
        told = member.layout.read(reduced, world=len(member.generation.plan.members), present=[])
        if told.stop or items.floor >= loop.epoch.steps * loop.epoch.shards:
            self._finish(loop, items, left=told.left)
        else:
            member.committed()
        if told.pending:
            member.leave_at_planned_boundary()
        self._stretch = None

    def _finish(self, loop: BatchLoop, items: ItemSet, *, left: bool) -> None:
        """End the loop for all. Raises ExchangeBroken."""
        member = self._member
        # An item that was computed twice may have been reported twice: rank 0's loss is the loss.
        mine = (member.progress.loss or 0.0) if member.generation.rank == 0 else 0.0
        loss = member.generation.exchange.all_reduce(torch.tensor([mine], dtype=torch.float64))
        self._settled.close(loop.epoch, items, self.turns.names)
        if left:
            member.progress.leave_loop(loop.number)
        # Members tick with their own slices: only here are all at the same step.
        self._tick(member.progress.step)
        member.held.kept.commit()
        member.progress.take_loss(float(loss))
        member.finish_call(loop.number)
        member.progress.commit_transaction()
        member.committed()
        self._report_phase("committed")

    def _loop_state(self) -> dict[str, Any]:
        """The position for a checkpoint, while all members are at one state; until an attempt has met in its loop, the
        position that it began with."""
        return self._member.inside.given or self.tokens.position()

    def _gather_loop_state(self) -> None:
        self.tokens.stand(self._member.generation.exchange, self._loop)

    def _heed(self) -> bool:
        """Commit what has settled. Returns whether a moment is wanted at which all copies are equal: for a planned
        change, a stop, or a checkpoint."""
        wanted = self._stop or self._member.coordinator.plan_pending()
        self._settle(self._running)
        return wanted or self._member.securing.wanted

    def _settle(self, loop: BatchLoop) -> None:
        before = self._member.progress.step
        everywhere = self.tokens.spans.everywhere()
        for _ in range(self._settled.advance(loop.epoch, everywhere, self.turns.names)):
            before += 1
            self._report_phase("committed", before)

    def _tick(self, step: int) -> None:
        """Run schedules and callbacks once for each step before `step`: they follow this member's own slices."""
        member = self._member
        while member.progress.ticked < step:
            member.progress.tick()
            member.held.after_update(
                member.spec.seed, member.progress.ticked, published=member.spec.sync.server_count > 0
            )
