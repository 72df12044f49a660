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
from ringleader.train.generation.checkpoint_cadence import CheckpointVote
from ringleader.train.generation.control_word import BATCHES
from ringleader.train.generation.member import Member
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
from ringleader.train.state.sparse_parameters import check_optimizers

KNOWN = 7
"""Numbers at the front of server 0's position: whether the loop is over, whether a body left it, and whether the
generation ends; steps, samples, loss, and whether it wants a checkpoint."""
STALENESS_BINS = 17
"""Bins of the histogram: 0, 1, ..., 15, and more."""


class AsyncServerLoop(Mode):
    """Runs one loop at a time: on a worker the turns, on a server the counting."""

    def __init__(self, group: Member, outlet: RecordSink, device: torch.device) -> None:
        self._tenant = AsyncWorker(group, device, self._advance, self._report_phase)
        super().__init__(group, outlet, device, self._tenant.turns)
        self._office: ServerQueue | None = None
        self._rows: ReceiveBuffers | None = None
        self._staleness: Counter[int] = Counter()
        self._commits = StepCommits(group, self.recorder, self._report_phase)
        group.level = self._level
        group.keeps = self._keeps

    @property
    def mid_batch(self) -> bool:
        """See `AsyncWorker.mid_batch`."""
        return self._tenant.mid_batch

    def request_stop(self) -> None:
        self._tenant.request_stop()

    def run(self, loop: BatchLoop) -> Iterator[Any]:
        """Yield leased slices until every item is applied; a server yields none."""
        self._begin_loop(loop)
        while not self._done(loop):
            try:
                self._meet(loop)
                if self._group.serves:
                    self._serve(loop)
                else:
                    self._tenant.go(self._way(loop))
                    yield from self._tenant.slices()
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
                if self._tenant.way is None:
                    self._meet(loop)
                    self._tenant.go(self._way(loop))
                self._tenant.leave()
                self._settle(loop)
            except ExchangeBroken as error:
                self._broke(error)

    def step(self, loss: Tensor, weight: float | None, values: dict[str, Any]) -> None:
        """Run the backward of one slice; its gradient is on the way when this returns."""
        turn, report = self.turns.end(loss, weight, values)
        # The generation broke within this turn: the item goes back to the queue and comes again.
        if self._tenant.way is None:
            return
        try:
            self._tenant.step(turn, loss, report)
        except ExchangeBroken as error:
            self._broke(error)

    @property
    def _books(self) -> ServerState | None:
        return self._office.books if self._office is not None else None

    # --- both -----------------------------------------------------------------------------------------------------

    @property
    def _lanes(self) -> int:
        return self._group.spec.shards

    def _begin_loop(self, loop: BatchLoop) -> None:
        group = self._group
        super()._begin_loop(loop)
        group.trained.check_settled()
        check_optimizers(group.held.optimizers, group.tables, published=group.spec.sync.server_count > 0)
        self._office = None
        self._tenant.begin(loop)

    def _done(self, loop: BatchLoop) -> bool:
        """Wait for a plan where one is due. Returns whether the loop is finished."""
        group = self._group
        group.enter()
        # `enter` may have healed this member past the end of the loop.
        if group.progress.calls.is_finished(loop.number):
            return True
        if loop.epoch.steps == 0:
            group.finish_call(loop.number)
            return True
        return False

    def _meet(self, loop: BatchLoop) -> None:
        """Check that all members are at this loop; the error names two that differ."""
        group, exchange = self._group, self._group.generation.exchange
        self._tenant.way = None
        word = group.layout.write(
            rank=group.generation.rank,
            call=loop.number,
            kind=BATCHES + loop.index,
            step=group.progress.step - group.progress.calls.offset,
            pending=False,
        )
        group.check(exchange.meet(word))

    def _broke(self, error: ExchangeBroken) -> None:
        self._tenant.way = None
        if self._office is not None:  # a server that waits for server 0's word counts as ahead of it
            books = self._office.books
            self._group.progress.update_to(books.base + books.complete)
        if self._group.current is not None:
            # First: threads that serve workers end, and cannot count a push for a generation that is over.
            self._group.current.exchange.abort()
        self._group.broke(error)
        self._outlet.replayed()

    def _level(self) -> None:
        """Begin a generation: servers make the updates that server 0 has made. All members take part."""
        exchange, books = self._group.generation.exchange, self._books
        if self._ordered:
            self._go_by_the_newest_entry(exchange)
            return
        said = torch.zeros(2, dtype=torch.float64)
        # Zeros from all others, so that the sum is what server 0 says.
        if self._keeps_queue and books is not None:
            said[:] = torch.tensor([books.loop.number, books.leases.version])
        call, version = exchange.all_reduce(said).tolist()
        # A version counts within one loop: a server may still have the state of the loop before.
        here = books if books is not None and books.loop.number == call else None
        if here is not None:
            here.allow(int(version))
        if self._stages:
            self._agree(exchange, here)

    @property
    def _ordered(self) -> bool:
        """Whether all servers make the same updates in the same order, so that one can stand in for another."""
        return bool(self._group.spec.sync.server_backups)

    @property
    def _stages(self) -> bool:
        """Whether servers hold items until server 0 has taken them."""
        sync = self._group.spec.sync
        return self._ordered or (sync.consistency == "async" and sync.server_count > 1)

    def _go_by_the_newest_entry(self, exchange: Exchange) -> None:
        """Apply on all servers the newest entry that any of them has heard of: a lost server has done no more."""
        generation, books = self._group.generation, self._books
        if not generation.plan.servers:
            return
        known = books.known if books is not None else (-1, 0, 0)
        call, count, last = newest_entry(exchange, generation.server, generation.plan.servers, known)
        if books is not None and books.loop.number == call:
            books.level(count, last)

    def _agree(self, exchange: Exchange, books: ServerState | None) -> None:
        """Apply on all servers, or on none, the items that a break left on some of them."""
        generation = self._group.generation
        held = books.held if books is not None else []
        taken = books.leases.taken if books is not None and self._keeps_queue else ItemSet()
        agreed = agree(exchange, generation.server, generation.plan.servers, held, taken)
        if books is not None:
            books.settle(agreed)

    def _settle(self, loop: BatchLoop) -> None:
        """Take over server 0's position and all servers' weights, on every member, while no worker computes."""
        group, exchange = self._group, self._group.generation.exchange
        self._tenant.way = None
        said = exchange.all_reduce(self._position())
        over, left, leaves, step, samples, loss, wanted = said[:KNOWN].tolist()
        group.securing.agreed = bool(wanted)
        if (books := self._books) is not None:
            # Before positions are taken over: every gradient of these steps is here, and their updates are due.
            books.allow(int(step) - books.base)
        self._advance(loop, int(step))
        group.progress.take_counts(
            samples=int(samples),
            loss=None if isnan(loss) else loss,
            staleness=said[KNOWN : KNOWN + STALENESS_BINS].to(torch.int64).tolist(),
        )
        group.buffers.put(said[KNOWN + STALENESS_BINS :].to(torch.uint8))
        if over and left:
            group.progress.leave_loop(loop.number)
        if exchange.updates and over:  # who holds the weights commits before they travel
            self._finish(loop)
        if books is not None:  # of tables only rows are published: those of the whole loop
            exchange.buckets.tables.changed = books.touched.after(0)
        exchange.publish()
        if over:
            self._finish(loop)
        group.committed()
        if leaves and not over:
            group.leave_at_boundary()

    @property
    def _keeps_queue(self) -> bool:
        """Whether this member is server 0, or alone."""
        generation = self._group.generation
        return generation.server == 0 or generation.plan.servers == 0

    def _finish(self, loop: BatchLoop) -> None:
        group = self._group
        if not group.progress.calls.is_finished(loop.number):
            group.finish_call(loop.number)
            group.progress.commit_transaction()

    def _position(self) -> Tensor:
        """Server 0's position as (n,) float64; zeros from all others."""
        group = self._group
        words = torch.zeros(KNOWN + STALENESS_BINS + group.buffers.size_bytes, dtype=torch.float64)
        if not self._keeps_queue:
            return words
        assert self._books is not None
        loss = nan if group.progress.loss is None else group.progress.loss
        leaves = group.coordinator.plan_pending()
        known = [
            self._books.ends.over,
            self._books.ends.left,
            leaves,
            group.progress.step,
            group.progress.samples,
            loss,
            group.securing.wish is CheckpointVote.WANTS,
        ]
        words[:KNOWN] = torch.tensor(known, dtype=torch.float64)
        for staleness, count in self._staleness.items():
            words[KNOWN + min(staleness, STALENESS_BINS - 1)] += count
        words[KNOWN + STALENESS_BINS :] = group.buffers.committed_bytes()
        return words

    def _advance(self, loop: BatchLoop, step: int) -> None:
        """Commit steps that servers have committed: what runs once a step runs here."""
        group = self._group
        news = max(0, step - group.progress.step)
        while group.progress.step < step:
            group.progress.follow_step()
            group.held.after_update(group.spec.seed, group.progress.step)
        self.recorder.follow(news)
        if news:
            self._outlet.settled(step + 1)
            self._report_phase(loop, "committed")

    # --- a worker -------------------------------------------------------------------------------------------------

    def _way(self, loop: BatchLoop) -> ItemSource:
        """This generation's source of items; for a member that is alone, a server queue in its own process."""
        group, exchange = self._group, self._group.generation.exchange
        plan = group.generation.plan
        if plan.servers == 0:
            self._rows = self._rows or ReceiveBuffers(exchange.buckets.buckets)
            self._office = self._office or self._new_office(loop)
            everything = ServerShare.whole(exchange.buckets)
            self._office.open(None, self._rows, everything, everything, leads=True)
            return InProcessClient(self._office, exchange.buckets, self._rows)
        assert isinstance(exchange, ParameterServer)
        servers = range(plan.world, len(plan.members))
        return ServerClient(
            exchange.communicator, exchange.buckets, servers, plan.held_by, self._tenant.layout
        )

    # --- a server -------------------------------------------------------------------------------------------------

    def _serve(self, loop: BatchLoop) -> None:
        group, exchange = self._group, self._group.generation.exchange
        assert isinstance(exchange, ParameterServer)
        plan = group.generation.plan
        number = group.generation.rank - plan.world
        held = ServerShare.held(exchange.buckets, plan.held_by, number)
        shown = ServerShare.shown(exchange.buckets, plan.held_by, number)
        # Kept over generations, as are the gradients in it that wait for their update.
        self._rows = self._rows or ReceiveBuffers(held.buckets)
        self._office = self._office or self._new_office(loop)
        self._report_phase(loop, "exchange")
        lessor = ServerEndpoint(
            exchange.communicator,
            shown.buckets,
            held.tables,
            self._rows,
            self._tenant.layout,
            number=number,
            workers=plan.world,
            # Where nothing is staged, server 0's word comes with the workers' pulls: it need not tell the
            # others itself.
            servers=plan.servers if self._stages else 1,
            acknowledged=self._ordered,
        )
        self._office.open(
            exchange.communicator,
            self._rows,
            held,
            shown,
            leads=number == 0,
            tell=lessor.tell if number == 0 else tell_nobody,
        )
        self._office.serve(lessor.serve(self._office))

    def _new_office(self, loop: BatchLoop) -> ServerQueue:
        group = self._group

        def committed(counted: list[AppliedItem], names: tuple[str, ...]) -> None:
            self._commits.commit(loop, counted, names)
            # A checkpoint inside a loop needs a moment at which no item is leased.
            if self._keeps_queue and group.serves and group.securing.wanted:
                office.drain()

        self._staleness = Counter(dict(enumerate(group.progress.staleness)))  # of earlier loops, if elsewhere
        books = ServerState(group, loop, committed, self._tenant.blocks, self._staleness)
        office = ServerQueue(group, books)
        if group.inside.get("call") == loop.number:
            books.go_on(group.inside)
        # Once an attempt: in later generations the server's own state is the newer one.
        group.inside = {}
        return office

    def _keeps(self) -> dict[str, Any]:
        """The position inside the running loop for a checkpoint at a boundary, while no worker computes; empty between
        loops."""
        books = self._books
        inside = books is not None and not self._group.progress.calls.is_finished(books.loop.number)
        return books.position if books is not None and inside else {}
