"""Token ring: the transaction is one slice in one span. The weights go round the members as tokens, and nobody waits.

A worker computes the slices of its shards in the order of steps, each with an ordinary step of its own optimiser. What
that moved its weights by, times the slice's share of the batch, it owes to every token, and each takes it along when it
comes by. What has been computed is never rolled back: a generation that breaks costs the running transfers only.

Where a node is one member of the ring, its crew does the same together: the conductor calls for a batch's slices and
gives the weights to compute them on, the gradients are added up, and what the one step moves is the conductor's to owe.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from ringleader.elastic.tokens import Round, Standing, rounds
from ringleader.errors import ExchangeBroken
from ringleader.sync.crew import Call, Crew, Following, Kind
from ringleader.train.evidence import Recorder
from ringleader.train.group import Group
from ringleader.train.seams import Outlet
from ringleader.train.settling import Settling, encode
from ringleader.train.slices import Ahead, Slice, to_device
from ringleader.train.steps import Loop
from ringleader.train.streams import seed_all
from ringleader.train.tokens import Stretch, Tokens
from ringleader.train.turns import Turns
from ringleader.train.word import BATCHES

POLL_S = 0.02
"""How often a waiting member looks whether its generation is over."""


class Laps:
    """Runs one loop at a time for one worker, in stretches: the tokens go round until a stretch is over for all."""

    def __init__(self, group: Group, outlet: Outlet, device: torch.device) -> None:
        self._group = group
        self._outlet = outlet
        self._device = device
        self._turns = Turns(group.spec.seed)
        self.recorder = Recorder(group)
        self._kept: Tokens | None = None
        self._settling: Settling | None = None
        self._circulation: Stretch | None = None
        self._standings: list[Standing] = []
        self._crew: Crew | None = None
        self._doing = Round(0, (), ())
        self._left: list[int] = []
        self._open = self._finished = self._closed = False
        self._stop = False
        self._loop: Loop | None = None
        group.keeps = self._keeps

    @property
    def turn(self) -> Slice | None:
        """The slice the loop body is at."""
        return self._turns.running

    @property
    def tokens(self) -> Tokens:
        """The weights as tokens, from the first loop on."""
        if self._kept is None:
            self._kept = Tokens(self._group)
        return self._kept

    def leave(self) -> None:
        self._turns.leave(self._group.timeline)

    def request_stop(self) -> None:
        self._stop = True

    @property
    def mid_batch(self) -> bool:
        """A slice that is computed is applied, whatever becomes of the others of its batch."""
        return False

    def end(self, number: int) -> None:
        """The loop of that call was left by `break`, which ends it for all; the slice it was at is not applied."""
        loop = self._running
        assert loop.number == number
        self._turns.running, self._stop = None, True
        if self._circulation is not None:
            self._circulation.halt()
        while self._circulation is not None or self._enter(loop):
            self._end_stretch(loop)

    def run(self, loop: Loop) -> Iterator[Any]:
        """Yield the slices of owned shards that some token lacks, until all tokens hold all items of the loop."""
        group, self._loop, self._turns.running = self._group, loop, None
        group.epoch = loop.index
        self._stop, self._circulation = False, None
        group.held.check_covered(group.parameters)
        while self._enter(loop):
            yield from self._slices(loop)
            self._end_stretch(loop)

    def step(self, loss: Tensor, weight: float | None, values: dict[str, Any]) -> None:
        """Backward of a slice; after the last of this member's one step, whose move is owed to the tokens."""
        turn, report = self._turns.end(loss, weight, values)
        if self._group.timeline is not None:
            self._group.timeline.end()
        loop, doing = self._running, self._doing
        item = doing.offset * loop.epoch.shards + turn.shard
        # Whoever gets a token with this item gets the report with it.
        self.tokens.news.report(item, encode(report))
        seed_all(self._group.spec.seed, "update", *turn.stream)
        self._backward(loop, turn, loss)
        if turn.shard == 0:
            self.tokens.keep_buffers(item)
        self._left.remove(turn.shard)
        if not self._left:
            self._end_round(loop)

    def missed(self, loop: Loop) -> None:
        """Who was healed in the middle of a loop and got no tokens holds no state that others could go on from."""
        if self._group.opened == loop.number and self.tokens.lost:
            self._group.applied = 0

    def _enter(self, loop: Loop) -> bool:
        """Begin a stretch, in this generation or the next; False: the loop is over."""
        group = self._group
        while True:
            exchange = group.enter()
            if group.calls.is_finished(loop.number):
                return False
            if not loop.epoch.steps:
                group.finish_call(loop.number)
                return False
            try:
                self._standings = self.tokens.meet(exchange, loop)
                if group.opened != loop.number:
                    group.opened = loop.number
                    group.applied += 1
                self._circulation, self._crew = self.tokens.circulate(exchange)
            except ExchangeBroken as error:
                self.missed(loop)
                group.broke(error)
                continue
            self._open = self._finished = self._closed = False
            return True

    def _slices(self, loop: Loop) -> Iterator[Any]:
        """The turns of one stretch."""
        group = self._group
        pieces = self._load(loop)
        for doing in self._rounds(loop):
            if not self._may_begin(loop, doing):
                return
            self._tick(group.calls.base + doing.offset)
            for shard in self._mine(doing):
                piece = self._slice(loop, doing.offset, shard)
                self._progress(loop, "forward")
                with group.split.idle():
                    batch = to_device(next(pieces), self._device)
                self._turns.begin(piece)
                if group.timeline is not None:
                    group.timeline.begin("forward", slice=shard)
                yield batch
                self._turns.check_ended()
                if self._circulation is None:
                    return
            if not self._mine(doing):
                self._progress(loop, "exchange")
                self._end_round(loop)

    def _may_begin(self, loop: Loop, doing: Round) -> bool:
        """Whether another round may begin; waits until few enough of this member's items are on their way."""
        begun = self._hear(loop) is Kind.WORK if self._follows else self._begins(loop, doing)
        if begun:
            self._doing, self._left, self._open = doing, self._mine(doing), True
            for parameter in self._group.parameters:
                parameter.grad = None
        return begun

    def _begins(self, loop: Loop, doing: Round) -> bool:
        """The same for a member that nobody conducts."""
        most = self._group.spec.sync.staleness
        while self._circulation is not None and not self._circulation.halted:
            self._look(loop)
            if most is None or self.tokens.spans.num_owed <= most * len(doing.shards):
                break
            self._progress(loop, "exchange")
            self._call(loop, Kind.WAIT)
            with self._group.split.idle():
                self.tokens.spans.wait(POLL_S)
        if self._circulation is None or self._circulation.halted:
            return False
        self.tokens.freshen()
        self._call(loop, Kind.WORK)
        return self._circulation is not None

    def _end_round(self, loop: Loop, *, void: bool = False) -> None:
        """All slices of this member are computed: add up with the others of its crew, and take one step."""
        try:
            if self._crew is not None:
                void = self._add_up(self._crew, void=void)
        except ExchangeBroken as error:
            self._broke(error)
            return
        self._open = False
        if void:
            return
        group, doing = self._group, self._doing
        if group.timeline is not None:
            group.timeline.begin("local step", slice=doing.shards[0])
        if self._crew is not None:
            seed_all(group.spec.seed, "update", *self._slice(loop, doing.offset, doing.shards[0]).stream)
        if not (self._follows and self.tokens.place.serves):
            group.held.update()
        if group.timeline is not None:
            group.timeline.end()
        if not self._follows:
            rows = len(loop.epoch.rows_of(doing.offset, doing.shards))
            items = [doing.offset * loop.epoch.shards + shard for shard in doing.shards]
            self.tokens.spans.owe(items, rows / loop.epoch.batch_rows(doing.offset), doing.spans)
        group.held.commit_kept()
        if self._circulation is not None:
            self._circulation.added()
            self._look(loop)

    # --- a crew ---------------------------------------------------------------------------------------------------

    @property
    def _follows(self) -> bool:
        """Whether somebody else says what this member computes."""
        return self._crew is not None and not self._crew.leads

    def _call(self, loop: Loop, kind: Kind) -> None:
        """A conductor says how things are, and hears its crew; others have nobody to tell."""
        circulation, crew, spans = self._circulation, self._crew, self.tokens.spans
        if crew is None or not crew.leads or circulation is None:
            return
        with_weights = kind is Kind.WORK or (kind is Kind.CLOSE and self.tokens.place.serves)
        try:
            crew.call(
                Call(kind, self._finished, spans.everywhere()), spans.local.cpu() if with_weights else None
            )
            if kind is Kind.WAIT and crew.answers():
                circulation.halt()
        except ExchangeBroken as error:
            self._broke(error)

    def _hear(self, loop: Loop) -> Kind | None:
        """A mate waits for work, or the end; None: the generation is over."""
        crew, tokens = self._crew, self.tokens
        assert crew is not None
        while self._circulation is not None and not self._closed:
            if self._look(loop) and self._circulation is None:
                return None
            try:
                with self._group.split.idle():
                    call = crew.hear()
                if call.kind is Kind.WORK or (call.kind is Kind.CLOSE and tokens.place.serves):
                    weights = torch.empty_like(tokens.spans.local, device="cpu")
                    crew.weights(weights)
                    tokens.spans.put(weights)
                    tokens.rewind()
                self._follow(call, crew)
            except ExchangeBroken as error:
                self._broke(error)
                return None
            if call.kind is not Kind.WAIT:
                return call.kind
        return None

    def _follow(self, call: Call, crew: Crew) -> None:
        """Take in what the conductor says, and answer where it waits."""
        circulation, spans = self._circulation, self.tokens.spans
        assert circulation is not None
        if call.finished:
            circulation.finish()
        if not self.tokens.place.holds:
            spans.heard(call.settled)
        if call.kind is Kind.WAIT:
            crew.answer(circulation.halted)
        self._closed = call.kind is Kind.CLOSE
        if self._closed and isinstance(circulation, Following):
            spans.close(call.settled)
            circulation.close()

    def _add_up(self, crew: Crew, *, void: bool) -> bool:
        """The crew's gradients become this member's. Returns whether the round is void: somebody left it by `break`."""
        circulation = self._circulation
        assert circulation is not None
        if self._follows:
            crew.answer(circulation.halted)
        elif crew.answers():
            circulation.halt()
        sent = self.tokens.spans.gradients(void=void)
        crew.add_up(sent)
        return self.tokens.spans.take_gradients(sent)

    def _look(self, loop: Loop) -> bool:
        """What is new since the last look: a break, a plan, a stop, settled steps. Returns whether all is over."""
        group, circulation = self._group, self._circulation
        assert circulation is not None
        assert group.seat is not None
        try:
            if group.coordinator.interrupted():
                why = "the generation was given up"
                raise ExchangeBroken(rank=group.seat.rank, phase="forward", bucket=None, why=why)
            over = circulation.over()
        except ExchangeBroken as error:
            self._broke(error)
            return True
        if self._stop or group.coordinator.plan_pending():
            circulation.halt()
        self._settle(loop)
        return over

    def _end_stretch(self, loop: Loop) -> None:
        """This member begins no more items: wait until all copies are equal, then agree on what comes next."""
        if self._open and self._circulation is not None:
            self._end_round(loop, void=True)
        while self._follows and self._circulation is not None and not self._closed:
            if self._hear(loop) is Kind.WORK:
                self._end_round(loop, void=True)
        if self._circulation is None:
            return
        self._circulation.finish()
        self._finished = True
        self._progress(loop, "exchange")
        try:
            while self._circulation is not None and not self._look(loop):
                self._call(loop, Kind.WAIT)
                if self._circulation is not None:
                    self._circulation.over(POLL_S)
            if self._circulation is not None:
                self._agree(loop)
        except ExchangeBroken as error:
            self._broke(error)
        self._circulation = None

    def _agree(self, loop: Loop) -> None:
        """All copies are equal. The loop is over, or the generation, or neither. Raises ExchangeBroken."""
        group, exchange = self._group, self._group.exchange
        assert exchange is not None
        assert group.seat is not None
        items = self.tokens.rest(exchange)
        if not self._follows:
            self.tokens.freshen()
            self._call(loop, Kind.CLOSE)
        elif self.tokens.place.holds:
            self.tokens.freshen()
        self._settle(loop)
        word = group.layout.write(
            rank=group.seat.rank,
            call=loop.number,
            kind=BATCHES + loop.index,
            step=group.step,
            pending=group.coordinator.plan_pending(),
            stop=self._stop,
        )
        reduced = exchange.meet(word)
        group.check(reduced)
        told = group.layout.read(reduced, world=len(group.seat.plan.members), present=[])
        if told.stop or items.floor >= loop.epoch.steps * loop.epoch.shards:
            # An item that was computed twice may have been reported twice: rank 0's loss is the loss.
            mine = (group.loss or 0.0) if group.seat.rank == 0 else 0.0
            agreed = exchange.all_reduce(torch.tensor([mine], dtype=torch.float64))
            self._settling_of().close(loop.epoch, items, self._turns.names)
            self._finish(loop, float(agreed))
        else:
            group.committed()
        if told.pending:
            group.leave_at_boundary()

    def _finish(self, loop: Loop, loss: float) -> None:
        group = self._group
        self._tick(group.step)
        group.held.commit_kept()
        group.loss = loss
        group.finish_call(loop.number)
        group.applied += 1
        group.committed()
        self._stop = False
        self._progress(loop, "committed")

    def _keeps(self) -> dict[str, Any]:
        """Between two stretches, or between two loops."""
        loop = self._loop
        open_call = loop is not None and not self._group.calls.is_finished(loop.number)
        return self.tokens.position(loop.number if loop is not None and open_call else -1)

    def _broke(self, error: ExchangeBroken) -> None:
        self._circulation = None
        self._open = False
        self._group.broke(error)

    def _settle(self, loop: Loop) -> None:
        before = self._group.step
        everywhere = self.tokens.spans.everywhere()
        for _ in range(self._settling_of().advance(loop.epoch, everywhere, self._turns.names)):
            before += 1
            self._progress(loop, "committed", before)
        if self._circulation is not None and self._group.due:
            self._circulation.halt()  # a checkpoint is of a moment at which all copies agree

    def _tick(self, step: int) -> None:
        """Schedules and callbacks follow this member's own slices: they run once for each step before `step`."""
        group = self._group
        while group.ticked < step:
            seed_all(group.spec.seed, "tick", group.ticked)
            group.ticked += 1
            group.held.after_update(published=group.spec.sync.server_count > 0)

    def _backward(self, loop: Loop, turn: Slice, loss: Tensor) -> None:
        """The slice's part in the mean gradient of the round."""
        timeline = self._group.timeline
        if timeline is not None:
            timeline.begin("backward", slice=turn.shard)
        share = len(turn.rows) / len(loop.epoch.rows_of(self._doing.offset, self._doing.shards))
        (loss * share).backward()  # type: ignore[no-untyped-call]
        if timeline is not None:
            timeline.end()

    def _rounds(self, loop: Loop) -> Iterator[Round]:
        """What this member, or its crew, has to compute; all of a crew come to the same."""
        seat, crew = self._group.seat, self.tokens.place.crew
        assert seat is not None
        shards = sorted(shard for rank in crew for shard in seat.plan.shards_of(rank))
        together = len(crew) > 1
        return rounds(self._standings, shards, loop.epoch.shards, loop.epoch.steps, together=together)

    def _mine(self, doing: Round) -> list[int]:
        seat = self._group.seat
        assert seat is not None
        return [shard for shard in doing.shards if shard in seat.plan.shards_of(seat.rank)]

    def _load(self, loop: Loop) -> Ahead:
        pieces = (
            self._slice(loop, doing.offset, shard)
            for doing in self._rounds(loop)
            for shard in self._mine(doing)
        )
        return loop.batches(pieces, self._group.spec.seed)

    def _slice(self, loop: Loop, offset: int, shard: int) -> Slice:
        step = self._group.calls.base + offset
        return Slice(("step", step, shard), shard, loop.epoch.rows(offset, shard))

    @property
    def _running(self) -> Loop:
        assert self._loop is not None, "no loop has begun"
        return self._loop

    def _settling_of(self) -> Settling:
        if self._settling is None:
            self._settling = Settling(self._group, self.tokens.news, self.recorder)
        return self._settling

    def _progress(self, loop: Loop, phase: str, step: int | None = None) -> None:
        step = self._group.step if step is None else step
        loop.tell(self._outlet, phase, step=step, lanes=self._group.lanes)
