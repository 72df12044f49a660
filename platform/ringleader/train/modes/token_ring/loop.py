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
from ringleader.train.modes.token_ring.recovery import ComputeRound
from ringleader.train.modes.token_ring.settled_steps import SettledSteps, encode
from ringleader.train.modes.token_ring.work_plan import WorkPlan
from ringleader.train.modes.token_ring.worker_tokens import TokenStretch, WorkerTokens
from ringleader.train.ports import RecordSink
from ringleader.train.rows.slices import Slice, to_device

POLL_S = 0.02
"""Seconds after which a waiting member looks whether its generation is over."""


class TokenRingLoop(Mode):
    """Runs one loop at a time for one worker, in stretches: the tokens go round until a stretch is over for all."""

    def __init__(self, group: Member, outlet: RecordSink, device: torch.device) -> None:
        super().__init__(group, outlet, device)
        self._kept: WorkerTokens | None = None
        self._settling: SettledSteps | None = None
        self._circulation: TokenStretch | None = None
        self._stint: WorkPlan | None = None
        self._mates: GroupView | None = None
        self._doing = ComputeRound(0, (), ())
        self._left: list[int] = []
        self._open = self._finished = False
        self._leaves = False
        group.keeps, group.stand = self._keeps, self._stand

    @property
    def _work(self) -> WorkPlan:
        """What this member computes in the stretch. Raises LookupError before the first."""
        if self._stint is None:
            raise LookupError("no stretch has begun")
        return self._stint

    @property
    def _node(self) -> GroupView:
        """The members on this node. Raises LookupError before the first stretch."""
        if self._mates is None:
            raise LookupError("no stretch has begun")
        return self._mates

    @property
    def tokens(self) -> WorkerTokens:
        """The weights as tokens, from the first loop on."""
        if self._kept is None:
            self._kept = WorkerTokens(self._group)
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
        if self._circulation is not None:
            self._circulation.halt()
        while self._circulation is not None or self._enter(loop):
            self._end_stretch(loop)

    def run(self, loop: BatchLoop) -> Iterator[Any]:
        """Yield the slices of owned shards that some token lacks, until all tokens hold all items of the loop."""
        self._begin_loop(loop)
        self._leaves, self._circulation = False, None
        self._group.trained.check_settled()
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
        self._group.draws.begin(*turn.stream)
        self._backward(loop, turn, loss)
        if turn.shard == 0:
            self.tokens.keep_buffers(item)
        self._left.remove(turn.shard)
        if not self._left:
            self._end_round(loop)

    def missed(self, loop: BatchLoop) -> None:
        """Give up the position of a member that was healed in the middle of a loop and got no tokens: others could not
        go on from its state."""
        if self._group.progress.opened == loop.number and self.tokens.lost:
            # Behind all others: the next plan heals this member, and heals nobody from it.
            self._group.progress.forfeit()

    def _enter(self, loop: BatchLoop) -> bool:
        """Begin a stretch, in this generation or the next; False: the loop is over."""
        group = self._group
        while True:
            group.enter()
            if group.progress.calls.is_finished(loop.number):
                return False
            if not loop.epoch.steps:
                group.finish_call(loop.number)
                return False
            exchange = group.generation.exchange
            try:
                standings = self.tokens.meet(exchange, loop)
                if group.progress.opened != loop.number:
                    # The opening is a transaction: a member that missed it is behind, and takes a peer's whole state.
                    group.progress.open_loop(loop.number)
                self._circulation, crew = self.tokens.circulate(exchange)
                self._mates = GroupView(crew, self._circulation, self.tokens)
                self._stint = WorkPlan(group, loop, self.tokens.place.crew, standings)
            except ExchangeBroken as error:
                self.missed(loop)
                group.broke(error)
                continue
            self._open = self._finished = False
            return True

    def _slices(self, loop: BatchLoop) -> Iterator[Any]:
        """The turns of one stretch."""
        group, stint = self._group, self._work
        pieces = stint.batches()
        for doing in stint.rounds():
            mine = stint.mine(doing)
            if not self._may_begin(loop, doing, mine):
                return
            self._tick(group.progress.calls.base + doing.offset)
            for shard in mine:
                piece = stint.slice(doing.offset, shard)
                self._report_phase(loop, "forward")
                with group.split.idle():
                    batch = to_device(next(pieces), self._device)
                self.turns.begin(piece)
                yield batch
                self.turns.check_ended()
                if self._circulation is None:
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
            for parameter in self._group.parameters:
                parameter.grad = None
        return begun

    def _begins(self, loop: BatchLoop, doing: ComputeRound) -> bool:
        """Decide the same for a member without a conductor."""
        most = self._group.spec.sync.token_staleness
        while self._circulation is not None and not self._circulation.halted:
            self._look(loop)
            # Bounds how old the weights of a slice are: without it a quick worker computes on its own weights only.
            if self.tokens.spans.num_owed <= most * len(doing.shards):
                break
            self._report_phase(loop, "exchange")
            self._call(GroupCallKind.WAIT)
            with self._group.split.exposed():
                self.tokens.spans.wait(POLL_S)
        if self._circulation is None or self._circulation.halted:
            return False
        self.tokens.freshen()
        self._call(GroupCallKind.WORK)
        return self._circulation is not None

    def _end_round(self, loop: BatchLoop, *, void: bool = False) -> None:
        """End a round of which all slices of this member are computed: add up with the node group, and take one
        step."""
        mates, stint = self._node, self._work
        try:
            void = mates.add_up(void=void)
        except ExchangeBroken as error:
            self._broke(error)
            return
        self._open = False
        if void:
            return
        group, doing = self._group, self._doing
        if group.timeline is not None:
            group.timeline.begin("local step", slice=doing.shards[0])
        if not mates.alone:
            # One step for the slices of several members: all that take it draw by its first slice.
            group.draws.begin(*stint.slice(doing.offset, doing.shards[0]).stream)
        if not (mates.follow and self.tokens.place.serves):
            # Followers of a ring step too, to keep the optimiser's state: one of them may have to conduct. A
            # server steps alone.
            group.held.update()
        if group.timeline is not None:
            group.timeline.end()
        if not mates.follow:
            rows = len(loop.epoch.rows_of(doing.offset, doing.shards))
            items = [doing.offset * loop.epoch.shards + shard for shard in doing.shards]
            self.tokens.spans.owe(items, rows / loop.epoch.batch_rows(doing.offset), doing.spans)
        group.held.commit_kept()
        if self._circulation is not None:
            self._circulation.added()
            self._look(loop)

    # --- a group --------------------------------------------------------------------------------------------------

    @property
    def _follows(self) -> bool:
        """Whether another member decides what this one computes."""
        return self._mates is not None and self._mates.follow

    def _call(self, kind: GroupCallKind) -> None:
        """Send the call of a conductor; others have nobody to call."""
        if self._circulation is None or self._mates is None:
            return
        try:
            self._mates.call(kind, finished=self._finished)
        except ExchangeBroken as error:
            self._broke(error)

    def _hear(self, loop: BatchLoop) -> GroupCallKind | None:
        """Wait as a follower for work, or the end. Returns None when the generation is over."""
        mates = self._node
        while self._circulation is not None and not mates.closed:
            if self._look(loop) and self._circulation is None:
                return None
            try:
                kind = mates.hear()
            except ExchangeBroken as error:
                self._broke(error)
                return None
            if kind is not GroupCallKind.WAIT:
                return kind
        return None

    def _look(self, loop: BatchLoop) -> bool:
        """Look for news: a break, a plan, a stop, settled steps. Returns whether the stretch is over."""
        group, circulation = self._group, self._circulation
        assert circulation is not None
        try:
            if group.coordinator.interrupted():
                why = "the generation was given up"
                raise ExchangeBroken(rank=group.generation.rank, phase="forward", bucket=None, why=why)
            over = circulation.over()
        except ExchangeBroken as error:
            self._broke(error)
            return True
        if self._stop or group.coordinator.plan_pending():
            # A planned change needs a moment at which all copies are equal, as does a stop.
            circulation.halt()
        self._settle(loop)
        return over

    def _end_stretch(self, loop: BatchLoop) -> None:
        """End the stretch: begin no more items, wait until all copies are equal, then agree on what comes next."""
        # The others of the group wait for the gradients of a round that was called: void ones end it.
        if self._open and self._circulation is not None:
            self._end_round(loop, void=True)
        while self._follows and self._hear(loop) is GroupCallKind.WORK:
            self._end_round(loop, void=True)
        if self._circulation is None:
            return
        self._circulation.finish()
        self._finished = True
        self._report_phase(loop, "exchange")
        try:
            while self._circulation is not None and not self._look(loop):
                self._call(GroupCallKind.WAIT)
                if self._circulation is not None:
                    self._circulation.over(POLL_S)
            if self._circulation is not None:
                self._agree(loop)
        except ExchangeBroken as error:
            self._broke(error)
        self._circulation = None

    def _agree(self, loop: BatchLoop) -> None:
        """Agree on what comes next, when all copies are equal: the loop is over, or the generation, or neither. Raises
        ExchangeBroken."""
        group, exchange = self._group, self._group.generation.exchange
        items = self.tokens.rest(exchange)
        if not self._follows:
            self.tokens.freshen()
            self._call(GroupCallKind.CLOSE)
        elif self.tokens.place.holds:
            self.tokens.freshen()
        self._settle(loop)
        word = group.layout.write(
            rank=group.generation.rank,
            call=loop.number,
            kind=BATCHES + loop.index,
            step=group.progress.step,
            pending=group.coordinator.plan_pending(),
            stop=self._stop,
            stance=LoopStance.LEAVES if self._leaves else LoopStance.FOLLOWS,
            wish=group.securing.wish,
        )
        reduced = exchange.meet(word)
        group.check(reduced)
        told = group.layout.read(reduced, world=len(group.generation.plan.members), present=[])
        if told.stop or items.floor >= loop.epoch.steps * loop.epoch.shards:
            # An item that was computed twice may have been reported twice: rank 0's loss is the loss.
            mine = (group.progress.loss or 0.0) if group.generation.rank == 0 else 0.0
            agreed = exchange.all_reduce(torch.tensor([mine], dtype=torch.float64))
            self._settling_of().close(loop.epoch, items, self.turns.names)
            if told.left:
                group.progress.leave_loop(loop.number)
            self._finish(loop, float(agreed))
        else:
            group.committed()
        if told.pending:
            group.leave_at_boundary()

    def _finish(self, loop: BatchLoop, loss: float) -> None:
        group = self._group
        # Members tick with their own slices: only here are all at the same step.
        self._tick(group.progress.step)
        group.held.commit_kept()
        group.progress.take_loss(loss)
        group.finish_call(loop.number)
        group.progress.commit_transaction()
        group.committed()
        self._stop = self._leaves = False
        self._report_phase(loop, "committed")

    def _keeps(self) -> dict[str, Any]:
        """The position for a checkpoint, while all members are at one state; until an attempt has met in its loop, the
        position that it began with."""
        return self._group.inside or self.tokens.position()

    def _stand(self) -> None:
        self.tokens.stand(self._group.generation.exchange, self._loop)

    def _broke(self, error: ExchangeBroken) -> None:
        self._circulation = None
        self._open = False
        self._group.broke(error)

    def _settle(self, loop: BatchLoop) -> None:
        before = self._group.progress.step
        everywhere = self.tokens.spans.everywhere()
        for _ in range(self._settling_of().advance(loop.epoch, everywhere, self.turns.names)):
            before += 1
            self._report_phase(loop, "committed", before)
        if self._circulation is not None and self._group.securing.wanted:
            self._circulation.halt()  # a checkpoint is of a moment at which all copies agree

    def _tick(self, step: int) -> None:
        """Run schedules and callbacks once for each step before `step`: they follow this member's own slices."""
        group = self._group
        while group.progress.ticked < step:
            group.progress.tick()
            group.held.after_update(
                group.spec.seed, group.progress.ticked, published=group.spec.sync.server_count > 0
            )

    def _backward(self, loop: BatchLoop, turn: Slice, loss: Tensor) -> None:
        """Run the backward of the slice's part in the mean gradient of the round."""
        timeline = self._group.timeline
        if timeline is not None:
            timeline.begin("backward", slice=turn.shard)
        share = len(turn.rows) / len(loop.epoch.rows_of(self._doing.offset, self._doing.shards))
        (loss * share).backward()  # type: ignore[no-untyped-call]
        part_gradients(self._group.parameters)
        self._group.trained.check_reached()
        if timeline is not None:
            timeline.end()

    def _settling_of(self) -> SettledSteps:
        if self._settling is None:
            self._settling = SettledSteps(self._group, self.tokens.news, self.recorder)
        return self._settling
