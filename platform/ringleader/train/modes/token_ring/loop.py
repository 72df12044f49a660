"""Token ring: the transaction is one slice in one span. The weights go round the members as tokens, and nobody waits.

A worker computes the slices of its shards in the order of steps, each with an ordinary step of its own optimiser. What
that moved its weights by, times the slice's share of the batch, is pending for every token, which takes it along when
it comes by. What has been computed is never rolled back: a generation that breaks costs the running transfers only.

Where a node is one member of the ring, its node group does the same together: the conductor calls for a batch's slices
and sends the weights to compute them on, the gradients are added up, and what the one step moves is pending at the
conductor.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from ringleader.comm.buckets import part_gradients
from ringleader.errors import ExchangeBroken, StepMisuse
from ringleader.train.generation.control_word import BATCHES, LoopStance
from ringleader.train.generation.member import Member
from ringleader.train.modes.batch_loop import BatchLoop
from ringleader.train.modes.mode import Mode
from ringleader.train.modes.token_ring.group_view import GroupView
from ringleader.train.modes.token_ring.node_group import GroupCallKind
from ringleader.train.modes.token_ring.regeneration import ComputeRound
from ringleader.train.modes.token_ring.settled_steps import SettledSteps, encode
from ringleader.train.modes.token_ring.work_plan import WorkPlan
from ringleader.train.modes.token_ring.worker_tokens import TokenStretch, WorkerTokens
from ringleader.train.ports import RecordSink
from ringleader.train.rows.slices import Slice, to_device

POLL_S = 0.02
"""Seconds after which a waiting member looks whether its generation is over."""


class TokenRingLoop(Mode):
    """Runs one loop at a time for one worker, in stretches: the tokens go round until a stretch is over for all."""

    def __init__(self, member: Member, sink: RecordSink, device: torch.device) -> None:
        super().__init__(member, sink, device)
        self._kept: WorkerTokens | None = None
        self._settling: SettledSteps | None = None
        self._stretch_tokens: TokenStretch | None = None
        self._work_plan: WorkPlan | None = None
        self._group_view: GroupView | None = None
        self._doing = ComputeRound(0, (), ())
        self._left: list[int] = []
        self._open = self._finished = False
        self._leaves = False
        member.inside.tell(self._loop_state, gather=self._gather_loop_state)

    @property
    def _work(self) -> WorkPlan:
        """What this member computes in the stretch. Raises LookupError before the first."""
        if self._work_plan is None:
            raise LookupError("no stretch has begun")
        return self._work_plan

    @property
    def _node(self) -> GroupView:
        """The members on this node. Raises LookupError before the first stretch."""
        if self._group_view is None:
            raise LookupError("no stretch has begun")
        return self._group_view

    @property
    def tokens(self) -> WorkerTokens:
        """The weights as tokens, from the first loop on."""
        if self._kept is None:
            self._kept = WorkerTokens(self._member)
        return self._kept

    @property
    def accumulates(self) -> bool:
        """Whether the parameters have gradients of slices before, to which others will be added."""
        return self._open and bool(self._left)

    def end(self, number: int) -> None:
        """End the loop of that call, which was left by `break`, for all; the slice it was at is not applied."""
        loop = self._running
        assert loop.number == number
        self.turns.running, self._stop, self._leaves = None, True, True
        if self._stretch_tokens is not None:
            self._stretch_tokens.halt()
        # Another stretch where the generation broke: the end is agreed on as one ends.
        while self._stretch_tokens is not None or self._enter(loop):
            self._end_stretch(loop)

    def run(self, loop: BatchLoop) -> Iterator[Any]:
        """Yield the slices of owned shards that some token lacks, until all tokens hold all items of the loop."""
        self._begin_loop(loop)
        self._leaves, self._stretch_tokens = False, None
        self._member.trained.check_settled()
        while self._enter(loop):
            yield from self._slices(loop)
            self._end_stretch(loop)

    def step(self, loss: Tensor, weight: float | None, values: dict[str, Any]) -> None:
        """Run the backward of a slice; after this member's last one take one step, whose move is pending for the
        tokens.

        Raises:
            StepMisuse: naming what is wrong with the call; a move counts by its rows, no weight reaches it.
        """
        turn, report = self.turns.end(loss, weight, values)
        if report.weight != len(turn.rows):
            raise StepMisuse(
                f"session.step got weight={report.weight} for {len(turn.rows)} rows in a token ring.",
                hint="A token ring weights slices by their rows: leave weight= out, or choose another sync.",
            )
        loop, doing = self._running, self._doing
        item = doing.offset * loop.epoch.shards + turn.shard
        # Whoever gets a token with this item gets the report with it.
        self.tokens.news.report(item, encode(report))
        self._member.draws.begin(*turn.stream)
        self._backward(loop, turn, loss)
        if turn.shard == 0:
            self.tokens.keep_buffers(item)
        self._left.remove(turn.shard)
        if not self._left:
            self._end_round(loop)

    def missed(self, loop: BatchLoop) -> None:
        """Give up the position of a member that was healed in the middle of a loop and got no tokens: others could not
        go on from its state."""
        if self._member.progress.opened == loop.number and self.tokens.lost:
            # Behind all others: the next plan heals this member, and heals nobody from it.
            self._member.progress.forfeit()

    def _enter(self, loop: BatchLoop) -> bool:
        """Begin a stretch, in this generation or the next; False: the loop is over."""
        member = self._member
        while True:
            member.enter()
            if member.progress.calls.is_finished(loop.number):
                return False
            if not loop.epoch.steps:
                member.finish_call(loop.number)
                return False
            exchange = member.generation.exchange
            try:
                regenerated = self.tokens.meet(exchange, loop)
                if member.progress.opened != loop.number:
                    # The opening is a transaction: a member that missed it is behind, and takes a peer's whole state.
                    member.progress.open_loop(loop.number)
                self._stretch_tokens, node_group = self.tokens.begin_stretch(exchange)
                self._group_view = GroupView(node_group, self._stretch_tokens, self.tokens)
                self._work_plan = WorkPlan(member, loop, self.tokens.place.group_ranks, regenerated)
            except ExchangeBroken as error:
                self.missed(loop)
                member.broke(error)
                continue
            self._open = self._finished = False
            return True

    def _slices(self, loop: BatchLoop) -> Iterator[Any]:
        """The turns of one stretch."""
        member, work_plan = self._member, self._work
        pieces = work_plan.batches()
        for doing in work_plan.rounds():
            mine = work_plan.mine(doing)
            if not self._may_begin(loop, doing, mine):
                return
            self._tick(member.progress.calls.base + doing.offset)
            for shard in mine:
                piece = work_plan.slice(doing.offset, shard)
                self._report_phase(loop, "forward")
                with member.split.idle():
                    batch = to_device(next(pieces), self._device)
                self.turns.begin(piece)
                yield batch
                self.turns.check_ended()
                if self._stretch_tokens is None:
                    return
            if not mine:
                self._report_phase(loop, "exchange")
                self._end_round(loop)

    def _may_begin(self, loop: BatchLoop, doing: ComputeRound, mine: list[int]) -> bool:
        """Whether another round may begin; waits until few enough of this member's items are on their way."""
        begun = self._hear(loop) is GroupCallKind.WORK if self._follows else self._begins(loop, doing)
        if begun:
            self._doing, self._left, self._open = doing, list(mine), True
            # From zero: the slices of a round add up in `.grad`.
            for parameter in self._member.parameters:
                parameter.grad = None
        return begun

    def _begins(self, loop: BatchLoop, doing: ComputeRound) -> bool:
        """Decide the same for a member without a conductor."""
        most = self._member.spec.sync.token_staleness
        while self._stretch_tokens is not None and not self._stretch_tokens.halted:
            self._look(loop)
            # Bounds how old the weights of a slice are: without it a quick worker computes on its own weights only.
            if self.tokens.spans.num_owed <= most * len(doing.shards):
                break
            self._report_phase(loop, "exchange")
            self._call(GroupCallKind.WAIT)
            with self._member.split.exposed():
                self.tokens.spans.wait(POLL_S)
        if self._stretch_tokens is None or self._stretch_tokens.halted:
            return False
        self.tokens.freshen()
        self._call(GroupCallKind.WORK)
        return self._stretch_tokens is not None

    def _end_round(self, loop: BatchLoop, *, void: bool = False) -> None:
        """End a round of which all slices of this member are computed: add up with the node group, and take one
        step."""
        group_view, work_plan = self._node, self._work
        try:
            void = group_view.add_up(void=void)
        except ExchangeBroken as error:
            self._broke(error)
            return
        self._open = False
        if void:
            return
        member, doing = self._member, self._doing
        member.timeline.begin("local step", slice=doing.shards[0])
        if not group_view.alone:
            # One step for the slices of several members: all that take it draw by its first slice.
            member.draws.begin(*work_plan.slice(doing.offset, doing.shards[0]).stream)
        if not (group_view.follow and self.tokens.place.serves):
            # Followers of a ring step too, to keep the optimiser's state: one of them may have to conduct. A
            # server steps alone.
            member.held.update()
        member.timeline.end()
        if not group_view.follow:
            rows = len(loop.epoch.rows_of(doing.offset, doing.shards))
            items = [doing.offset * loop.epoch.shards + shard for shard in doing.shards]
            self.tokens.spans.owe(items, rows / loop.epoch.batch_rows(doing.offset), doing.spans)
        member.held.commit_kept()
        if self._stretch_tokens is not None:
            self._stretch_tokens.added()
            self._look(loop)

    # --- a group --------------------------------------------------------------------------------------------------

    @property
    def _follows(self) -> bool:
        """Whether another member decides what this one computes."""
        return self._group_view is not None and self._group_view.follow

    def _call(self, kind: GroupCallKind) -> None:
        """Send the call of a conductor; others have nobody to call."""
        if self._stretch_tokens is None or self._group_view is None:
            return
        try:
            self._group_view.call(kind, finished=self._finished)
        except ExchangeBroken as error:
            self._broke(error)

    def _hear(self, loop: BatchLoop) -> GroupCallKind | None:
        """Wait as a follower for work, or the end. Returns None when the generation is over."""
        group_view = self._node
        while self._stretch_tokens is not None and not group_view.closed:
            if self._look(loop) and self._stretch_tokens is None:
                return None
            try:
                kind = group_view.hear()
            except ExchangeBroken as error:
                self._broke(error)
                return None
            if kind is not GroupCallKind.WAIT:
                return kind
        return None

    def _look(self, loop: BatchLoop) -> bool:
        """Look for news: a break, a plan, a stop, settled steps. Returns whether the stretch is over."""
        member, stretch_tokens = self._member, self._stretch_tokens
        assert stretch_tokens is not None
        try:
            if member.coordinator.interrupted():
                why = "the generation was given up"
                raise ExchangeBroken(rank=member.generation.rank, phase="forward", bucket=None, why=why)
            over = stretch_tokens.over()
        except ExchangeBroken as error:
            self._broke(error)
            return True
        if self._stop or member.coordinator.plan_pending():
            # A planned change needs a moment at which all copies are equal, as does a stop.
            stretch_tokens.halt()
        self._settle(loop)
        return over

    def _end_stretch(self, loop: BatchLoop) -> None:
        """End the stretch: begin no more items, wait until all copies are equal, then agree on what comes next."""
        # The others of the group wait for the gradients of a round that was called: void ones end it.
        if self._open and self._stretch_tokens is not None:
            self._end_round(loop, void=True)
        while self._follows and self._hear(loop) is GroupCallKind.WORK:
            self._end_round(loop, void=True)
        if self._stretch_tokens is None:
            return
        self._stretch_tokens.finish()
        self._finished = True
        self._report_phase(loop, "exchange")
        try:
            while self._stretch_tokens is not None and not self._look(loop):
                self._call(GroupCallKind.WAIT)
                if self._stretch_tokens is not None:
                    self._stretch_tokens.over(POLL_S)
            if self._stretch_tokens is not None:
                self._agree(loop)
        except ExchangeBroken as error:
            self._broke(error)
        self._stretch_tokens = None

    def _agree(self, loop: BatchLoop) -> None:
        """Agree on what comes next, when all copies are equal: the loop is over, or the generation, or neither. Raises
        ExchangeBroken."""
        member, exchange = self._member, self._member.generation.exchange
        items = self.tokens.rest(exchange)
        if not self._follows:
            self.tokens.freshen()
            self._call(GroupCallKind.CLOSE)
        elif self.tokens.place.holds:
            self.tokens.freshen()
        self._settle(loop)
        word = member.layout.write(
            rank=member.generation.rank,
            call=loop.number,
            kind=BATCHES + loop.index,
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
            # An item that was computed twice may have been reported twice: rank 0's loss is the loss.
            mine = (member.progress.loss or 0.0) if member.generation.rank == 0 else 0.0
            agreed = exchange.all_reduce(torch.tensor([mine], dtype=torch.float64))
            self._settling_of().close(loop.epoch, items, self.turns.names)
            if told.left:
                member.progress.leave_loop(loop.number)
            self._finish(loop, float(agreed))
        else:
            member.committed()
        if told.pending:
            member.leave_at_planned_boundary()

    def _finish(self, loop: BatchLoop, loss: float) -> None:
        member = self._member
        # Members tick with their own slices: only here are all at the same step.
        self._tick(member.progress.step)
        member.held.commit_kept()
        member.progress.take_loss(loss)
        member.finish_call(loop.number)
        member.progress.commit_transaction()
        member.committed()
        self._stop = self._leaves = False
        self._report_phase(loop, "committed")

    def _loop_state(self) -> dict[str, Any]:
        """The position for a checkpoint, while all members are at one state; until an attempt has met in its loop, the
        position that it began with."""
        return self._member.inside.given or self.tokens.position()

    def _gather_loop_state(self) -> None:
        self.tokens.stand(self._member.generation.exchange, self._loop)

    def _broke(self, error: ExchangeBroken) -> None:
        self._stretch_tokens = None
        self._open = False
        self._member.broke(error)

    def _settle(self, loop: BatchLoop) -> None:
        before = self._member.progress.step
        everywhere = self.tokens.spans.everywhere()
        for _ in range(self._settling_of().advance(loop.epoch, everywhere, self.turns.names)):
            before += 1
            self._report_phase(loop, "committed", before)
        if self._stretch_tokens is not None and self._member.securing.wanted:
            self._stretch_tokens.halt()  # a checkpoint is of a moment at which all copies agree

    def _tick(self, step: int) -> None:
        """Run schedules and callbacks once for each step before `step`: they follow this member's own slices."""
        member = self._member
        while member.progress.ticked < step:
            member.progress.tick()
            member.held.after_update(
                member.spec.seed, member.progress.ticked, published=member.spec.sync.server_count > 0
            )

    def _backward(self, loop: BatchLoop, turn: Slice, loss: Tensor) -> None:
        """Run the backward of the slice's part in the mean gradient of the round."""
        timeline = self._member.timeline
        timeline.begin("backward", slice=turn.shard)
        share = len(turn.rows) / len(loop.epoch.rows_of(self._doing.offset, self._doing.shards))
        (loss * share).backward()  # type: ignore[no-untyped-call]
        part_gradients(self._member.parameters)
        self._member.trained.check_reached()
        timeline.end()

    def _settling_of(self) -> SettledSteps:
        if self._settling is None:
            self._settling = SettledSteps(self._member, self.tokens.news, self.recorder)
        return self._settling
