"""Asynchronous servers: workers lease items, servers count their pushes. The transaction is an item, or a clock of
items; all members stand at the same state only where a loop ends and at a generation's boundary."""

from collections import Counter
from collections.abc import Iterator
from math import isnan, nan
from typing import Any

import torch
from torch import Tensor

from ringleader.errors import ExchangeBroken
from ringleader.exchange import Exchange
from ringleader.exchange.parameter_server import ParameterServer
from ringleader.train.generation.control_word import BATCHES
from ringleader.train.generation.member import Member
from ringleader.train.generation.saving.cadence import CheckpointVote
from ringleader.train.modes.async_server.server.apply_updates import AppliedItem
from ringleader.train.modes.async_server.server.committed_step import StepCommits
from ringleader.train.modes.async_server.server.endpoint import ReceiveBuffers, ServerEndpoint
from ringleader.train.modes.async_server.server.replicated_log import agree, newest_entry
from ringleader.train.modes.async_server.server.server_queue import ServerQueue
from ringleader.train.modes.async_server.server.server_state import ServerState, tell_nobody
from ringleader.train.modes.async_server.server_share import ServerShare
from ringleader.train.modes.async_server.worker.client import ServerClient
from ringleader.train.modes.async_server.worker.in_process_client import InProcessClient
from ringleader.train.modes.async_server.worker.worker import AsyncWorker, ItemSource
from ringleader.train.modes.batch_loop import BatchLoop
from ringleader.train.modes.items import ItemSet
from ringleader.train.modes.mode import Mode
from ringleader.train.ports import RecordSink
from ringleader.train.state.parameters.sparse import check_optimizers

KNOWN = 7
"""Numbers at the front of server 0's position: whether the loop is over, whether a body left it, and whether the
generation ends; steps, samples, loss, and whether it wants a checkpoint."""
STALENESS_BINS = 17
"""Bins of the histogram: 0, 1, ..., 15, and more."""


class AsyncServerLoop(Mode):
    """Runs one loop at a time: on a worker the turns, on a server the counting."""

    def __init__(self, member: Member, sink: RecordSink, device: torch.device) -> None:
        self._worker = AsyncWorker(member, device, self._advance, self._report_phase)
        super().__init__(member, sink, device, self._worker.turns)
        self._server_queue: ServerQueue | None = None
        self._rows: ReceiveBuffers | None = None
        self._staleness: Counter[int] = Counter()
        self._commits = StepCommits(member, self.recorder, self._report_phase)
        member.seating.when_open(self._on_generation_open)
        member.inside.tell(self._loop_state)

    @property
    def mid_batch(self) -> bool:
        """See `AsyncWorker.mid_batch`."""
        return self._worker.mid_batch

    def request_stop(self) -> None:
        self._worker.request_stop()

    def run(self, loop: BatchLoop) -> Iterator[Any]:
        """Yield leased slices until every item is applied; a server yields none."""
        self._begin_loop(loop)
        while not self._done(loop):
            try:
                self._meet(loop)
                if self._member.serves:
                    self._serve(loop)
                else:
                    self._worker.go(self._item_source(loop))
                    yield from self._worker.slices()
                self._settle(loop)
            except ExchangeBroken as error:
                self._broke(error)

    def end(self, number: int) -> None:
        """End the loop of that call for all members: its body was left by `break` here."""
        loop = self._running
        assert loop.number == number
        self.turns.leave()
        while not self._done(loop):
            try:
                # The generation broke since the body's last item, or this worker has just come: meet before leaving.
                if self._worker.item_source is None:
                    self._meet(loop)
                    self._worker.go(self._item_source(loop))
                self._worker.leave()
                self._settle(loop)
            except ExchangeBroken as error:
                self._broke(error)

    def step(self, loss: Tensor, weight: float | None, values: dict[str, Any]) -> None:
        """Run the backward of one slice; its gradient is on the way when this returns."""
        turn, report = self.turns.end(loss, weight, values)
        # The generation broke within this turn: the item goes back to the queue and comes again.
        if self._worker.item_source is None:
            return
        try:
            self._worker.step(turn, loss, report)
        except ExchangeBroken as error:
            self._broke(error)

    @property
    def _server_state(self) -> ServerState | None:
        return self._server_queue.state if self._server_queue is not None else None

    # --- both -----------------------------------------------------------------------------------------------------

    @property
    def _lanes(self) -> int:
        return self._member.spec.shards

    def _begin_loop(self, loop: BatchLoop) -> None:
        member = self._member
        super()._begin_loop(loop)
        member.trained.check_settled()
        check_optimizers(member.held.optimizers, member.tables, published=member.spec.sync.server_count > 0)
        self._server_queue = None
        self._worker.begin(loop)

    def _done(self, loop: BatchLoop) -> bool:
        """Wait for a plan where one is due. Returns whether the loop is finished."""
        member = self._member
        member.enter()
        # `enter` may have healed this member past the end of the loop.
        if member.progress.calls.is_finished(loop.number):
            return True
        if loop.epoch.steps == 0:
            member.finish_call(loop.number)
            return True
        return False

    def _meet(self, loop: BatchLoop) -> None:
        """Check that all members are at this loop, with the same state before its first step; the error names two that
        are not at the same call."""
        member, exchange = self._member, self._member.generation.exchange
        self._worker.item_source = None
        while True:
            member.comparison.begin(loop.number)
            word = member.layout.write(
                rank=member.generation.rank,
                call=loop.number,
                kind=BATCHES + loop.index,
                # The loop's first step: inside the loop members are at different ones.
                step=member.progress.step - member.progress.calls.offset,
                pending=False,
                said=member.comparison.said,
            )
            reduced = exchange.meet(word)
            member.check(reduced)
            if not member.comparison.differs(reduced):
                member.comparison.agreed(loop.number)
                return
            member.comparison.correct(reduced)

    def _broke(self, error: ExchangeBroken) -> None:
        self._worker.item_source = None
        if self._server_queue is not None:  # a server that waits for server 0's word counts as ahead of it
            server_state = self._server_queue.state
            self._member.progress.update_to(server_state.base + server_state.complete)
        if self._member.current is not None:
            # First: threads that serve workers end, and cannot count a push for a generation that is over.
            self._member.current.exchange.abort()
        self._member.broke(error)
        self._sink.replayed()

    def _on_generation_open(self) -> None:
        """Begin a generation: servers make the updates that server 0 has made. All members take part."""
        exchange, server_state = self._member.generation.exchange, self._server_state
        if self._ordered:
            self._apply_newest_entry(exchange)
            return
        said = torch.zeros(2, dtype=torch.float64)
        # Zeros from all others, so that the sum is what server 0 says.
        if self._keeps_queue and server_state is not None:
            said[:] = torch.tensor([server_state.loop.number, server_state.leases.version])
        call, version = exchange.all_reduce(said).tolist()
        # A version counts within one loop: a server may still have the state of the loop before.
        here = server_state if server_state is not None and server_state.loop.number == call else None
        if here is not None:
            here.allow(int(version))
        if self._stages:
            self._agree(exchange, here)

    @property
    def _ordered(self) -> bool:
        """Whether all servers make the same updates in the same order, so that one can stand in for another."""
        return bool(self._member.spec.sync.server_backups)

    @property
    def _stages(self) -> bool:
        """Whether servers hold items until server 0 has taken them."""
        sync = self._member.spec.sync
        return self._ordered or (sync.consistency == "async" and sync.server_count > 1)

    def _apply_newest_entry(self, exchange: Exchange) -> None:
        """Apply on all servers the newest entry that any of them has heard of: a lost server has done no more."""
        generation, server_state = self._member.generation, self._server_state
        if not generation.plan.servers:
            return
        known = server_state.known if server_state is not None else (-1, 0, 0)
        call, count, last = newest_entry(exchange, generation.server, generation.plan.servers, known)
        if server_state is not None and server_state.loop.number == call:
            server_state.apply_newest_entry(count, last)

    def _agree(self, exchange: Exchange, server_state: ServerState | None) -> None:
        """Apply on all servers, or on none, the items that a break left on some of them."""
        generation = self._member.generation
        held = server_state.held if server_state is not None else []
        taken = server_state.leases.taken if server_state is not None and self._keeps_queue else ItemSet()
        agreed = agree(exchange, generation.server, generation.plan.servers, held, taken)
        if server_state is not None:
            server_state.settle(agreed)

    def _settle(self, loop: BatchLoop) -> None:
        """Take over server 0's position and all servers' weights, on every member, while no worker computes."""
        member, exchange = self._member, self._member.generation.exchange
        self._worker.item_source = None
        said = exchange.all_reduce(self._position())
        over, left, leaves, step, samples, loss, wanted = said[:KNOWN].tolist()
        member.securing.agreed = bool(wanted)
        if (server_state := self._server_state) is not None:
            # Before positions are taken over: every gradient of these steps is here, and their updates are due.
            server_state.allow(int(step) - server_state.base)
        self._advance(loop, int(step))
        member.progress.take_counts(
            samples=int(samples),
            loss=None if isnan(loss) else loss,
            staleness=said[KNOWN : KNOWN + STALENESS_BINS].to(torch.int64).tolist(),
        )
        # A byte in each float64: zeros from all others leave it as it is.
        member.buffers.put(said[KNOWN + STALENESS_BINS :].to(torch.uint8))
        if over and left:
            member.progress.leave_loop(loop.number)
        if exchange.updates and over:  # who holds the weights commits before they travel
            self._finish(loop)
        if server_state is not None:  # of tables only rows are published: those of the whole loop
            exchange.buckets.tables.changed = server_state.touched.after(0)
        member.publish()
        if over:
            self._finish(loop)
        member.committed()
        if leaves and not over:
            member.leave_at_planned_boundary()

    @property
    def _keeps_queue(self) -> bool:
        """Whether this member is server 0, or alone."""
        generation = self._member.generation
        return generation.server == 0 or generation.plan.servers == 0

    def _finish(self, loop: BatchLoop) -> None:
        member = self._member
        if not member.progress.calls.is_finished(loop.number):
            member.finish_call(loop.number)
            member.progress.commit_transaction()

    def _position(self) -> Tensor:
        """Server 0's position as (n,) float64; zeros from all others."""
        member = self._member
        words = torch.zeros(KNOWN + STALENESS_BINS + member.buffers.size_bytes, dtype=torch.float64)
        if not self._keeps_queue:
            return words
        assert self._server_state is not None
        # NaN stands for none: the vector holds numbers only, and the others' zeros leave it NaN.
        loss = nan if member.progress.loss is None else member.progress.loss
        leaves = member.coordinator.plan_pending()
        known = [
            self._server_state.ends.over,
            self._server_state.ends.left,
            leaves,
            member.progress.step,
            member.progress.samples,
            loss,
            member.securing.wish is CheckpointVote.WANTS,
        ]
        words[:KNOWN] = torch.tensor(known, dtype=torch.float64)
        for staleness, count in self._staleness.items():
            words[KNOWN + min(staleness, STALENESS_BINS - 1)] += count
        words[KNOWN + STALENESS_BINS :] = member.buffers.committed_bytes()
        return words

    def _advance(self, loop: BatchLoop, step: int) -> None:
        """Commit steps that servers have committed: what runs once a step runs here."""
        member = self._member
        news = max(0, step - member.progress.step)
        while member.progress.step < step:
            member.progress.follow_step()
            member.held.after_update(member.spec.seed, member.progress.step)
        self.recorder.follow(news)
        if news:
            self._sink.settled(step + 1)
            self._report_phase(loop, "committed")

    # --- a worker -------------------------------------------------------------------------------------------------

    def _item_source(self, loop: BatchLoop) -> ItemSource:
        """This generation's source of items; for a member that is alone, a server queue in its own process."""
        member, exchange = self._member, self._member.generation.exchange
        plan = member.generation.plan
        if plan.servers == 0:
            self._rows = self._rows or ReceiveBuffers(exchange.buckets.buckets)
            self._server_queue = self._server_queue or self._new_server_queue(loop)
            everything = ServerShare.whole(exchange.buckets)
            self._server_queue.open(None, self._rows, everything, everything, leads=True)
            return InProcessClient(self._server_queue, exchange.buckets, self._rows)
        assert isinstance(exchange, ParameterServer)
        servers = range(plan.world, len(plan.members))
        return ServerClient(
            exchange.communicator, exchange.buckets, servers, plan.held_by, self._worker.layout
        )

    # --- a server -------------------------------------------------------------------------------------------------

    def _serve(self, loop: BatchLoop) -> None:
        member, exchange = self._member, self._member.generation.exchange
        assert isinstance(exchange, ParameterServer)
        plan = member.generation.plan
        number = member.generation.server
        held = ServerShare.held(exchange.buckets, plan.held_by, number)
        shown = ServerShare.shown(exchange.buckets, plan.held_by, number)
        # Kept over generations, as are the gradients in it that wait for their update.
        self._rows = self._rows or ReceiveBuffers(held.buckets)
        self._server_queue = self._server_queue or self._new_server_queue(loop)
        self._report_phase(loop, "exchange")
        endpoint = ServerEndpoint(
            exchange.communicator,
            shown.buckets,
            held.tables,
            self._rows,
            self._worker.layout,
            number=number,
            workers=plan.world,
            # Where nothing is staged, server 0's word comes with the workers' pulls: it need not tell the
            # others itself.
            servers=plan.servers if self._stages else 1,
            acknowledged=self._ordered,
        )
        self._server_queue.open(
            exchange.communicator,
            self._rows,
            held,
            shown,
            leads=number == 0,
            tell=endpoint.tell if number == 0 else tell_nobody,
        )
        self._server_queue.serve(endpoint.serve(self._server_queue))

    def _new_server_queue(self, loop: BatchLoop) -> ServerQueue:
        member = self._member

        def committed(counted: list[AppliedItem], names: tuple[str, ...]) -> None:
            self._commits.commit(loop, counted, names)
            # A checkpoint inside a loop needs a moment at which no item is leased.
            if self._keeps_queue and member.serves and member.securing.wanted:
                server_queue.drain()

        self._staleness = Counter(
            dict(enumerate(member.progress.staleness))
        )  # of earlier loops, if elsewhere
        server_state = ServerState(member, loop, committed, self._worker.blocks, self._staleness)
        server_queue = ServerQueue(member, server_state)
        # Once an attempt: in later generations the server's own state is the newer one.
        given = member.inside.take()
        if given.get("call") == loop.number:
            server_state.go_on(given)
        return server_queue

    def _loop_state(self) -> dict[str, Any]:
        """The position inside the running loop for a checkpoint at a boundary, while no worker computes; empty between
        loops."""
        server_state = self._server_state
        inside = server_state is not None and not self._member.progress.calls.is_finished(
            server_state.loop.number
        )
        return server_state.position if server_state is not None and inside else {}
