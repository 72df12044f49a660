"""Asynchronous servers: workers lease items, servers count their pushes. The transaction is an item, or a clock of
items; all members stand at the same state only where a loop ends and at a generation's boundary."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from ringleader.elastic.plan import Plan
from ringleader.exchange.parameter_server import ParameterServer
from ringleader.train.generation.control_word import SliceReport
from ringleader.train.generation.member import Member
from ringleader.train.modes.async_server.server.committed_step import StepCommits
from ringleader.train.modes.async_server.server.server import AsyncServer
from ringleader.train.modes.async_server.server_position import ServerPosition
from ringleader.train.modes.async_server.worker.client import ServerClient
from ringleader.train.modes.async_server.worker.in_process_client import InProcessClient
from ringleader.train.modes.async_server.worker.worker import AsyncWorker, ItemSource
from ringleader.train.modes.batch_loop import BatchLoop
from ringleader.train.modes.mode import Mode
from ringleader.train.modes.mode_rules import ModeRules
from ringleader.train.ports import RecordSink
from ringleader.train.rows.slices import Slice
from ringleader.train.state.progress import Progress


class AsyncServerRules(ModeRules):
    """The rules where server 0 counts the items, and servers make updates between two steps."""

    commits_together = False
    leased = True

    @property
    def spoken(self) -> str:
        return f"{super().spoken}, consistency: {self._sync.consistency}"

    @property
    def has_whole_gradient(self) -> bool:
        # Each ssp server makes the updates of its part by itself.
        return not (self._sync.consistency == "ssp" and self.in_parts)

    def speaker(self, plan: Plan) -> int:
        # Server 0 counts the items, so it knows first that a step is committed.
        return plan.world if plan.servers else 0

    def has_updates(self, plan: Plan) -> bool:
        # Steps do not show them: an update counts as soon as server 0 has it.
        return plan.backups > 0 and plan.generation > 1

    def is_ahead(self, progress: Progress) -> bool:
        return False

    def is_apart(self, progress: Progress) -> bool:
        # Inside a loop of leased items servers make steps of their own.
        return self._sync.order_free or progress.calls.offset > 0

    def stay(self, progress: Progress) -> None:
        progress.update_to(progress.step)


class AsyncServerLoop(Mode):
    """The mode in which a worker has the turns, and a server counts; a stretch ends with the loop, or with its
    generation."""

    rules = AsyncServerRules

    def __init__(self, member: Member, sink: RecordSink, device: torch.device) -> None:
        super().__init__(member, sink, device)
        self._worker = AsyncWorker(member, device, self.turns, self._advance, self._report_phase)
        self._server = AsyncServer(member, StepCommits(member, self.recorder, self._report_phase))
        member.seating.when_open(self._server.open_generation)
        member.inside.tell(self._server.loop_state)

    @property
    def mid_batch(self) -> bool:
        """See `AsyncWorker.mid_batch`."""
        return self._worker.mid_batch

    @property
    def in_step(self) -> bool:
        return self._member.spec.sync.leased_in_step

    def request_stop(self) -> None:
        self._worker.request_stop()

    @property
    def _slice_count(self) -> int:
        return self._member.spec.shards

    def _begin_loop(self, loop: BatchLoop) -> None:
        super()._begin_loop(loop)
        self._server.begin()
        self._worker.begin()

    def _run_stretch(self, loop: BatchLoop) -> Iterator[Any]:
        """The leased slices of this generation; a server has none."""
        self._meet(loop)
        if self._member.serves:
            self._report_phase("exchange")
            self._server.serve(loop, self._worker.layout)
        else:
            self._worker.go(self._item_source(loop))
            yield from self._worker.slices(loop)
        self._settle(loop)

    def _last_stretch(self, loop: BatchLoop) -> None:
        # The generation broke since the body's last item, or this worker has just come: meet before leaving.
        if self._broken:
            self._meet(loop)
            self._worker.go(self._item_source(loop))
        self._worker.leave()
        self._settle(loop)

    def _take(self, turn: Slice, loss: Tensor, report: SliceReport) -> None:
        """Run the backward of one slice; its gradient is on the way when this returns."""
        self._worker.step(self._running, turn, loss, report)

    @property
    def _broken(self) -> bool:
        return self._worker.item_source is None

    def _give_up(self) -> None:
        self._worker.rest()
        self._server.give_up()
        if self._member.current is not None:
            # First: threads that serve workers end, and cannot count a push for a generation that is over.
            self._member.current.exchange.abort()

    def _meet(self, loop: BatchLoop) -> None:
        self._worker.rest()
        loop.meet(self._member)

    def _item_source(self, loop: BatchLoop) -> ItemSource:
        """This generation's source of items; for a member that is alone, a server queue in its own process."""
        exchange, plan = self._member.generation.exchange, self._member.generation.plan
        if plan.servers == 0:
            server_queue, rows = self._server.alone(loop, self._worker.layout)
            return InProcessClient(server_queue, exchange.buckets, rows)
        assert isinstance(exchange, ParameterServer)
        servers = range(plan.world, len(plan.members))
        return ServerClient(
            exchange.communicator, exchange.buckets, servers, plan.held_by, self._worker.layout
        )

    def _settle(self, loop: BatchLoop) -> None:
        """Take over server 0's position and all servers' weights, on every member, while no worker computes."""
        member, exchange = self._member, self._member.generation.exchange
        self._worker.rest()
        said = ServerPosition.decode(exchange.all_reduce(self._server.position()))
        # Server 0 decides, whose position this is: where items are leased nobody votes.
        member.securing.agree(said.wanted)
        if (server_state := self._server.state) is not None:
            # Before positions are taken over: every gradient of these steps is here, and their updates are due.
            server_state.allow(said.step - server_state.base)
        self._advance(said.step)
        member.progress.take_counts(samples=said.samples, loss=said.loss, staleness=said.staleness)
        member.buffers.put(said.buffers)
        if said.over and said.left:
            member.progress.leave_loop(loop.number)
        if exchange.updates and said.over:  # who holds the weights commits before they travel
            self._finish(loop)
        if server_state is not None:  # of tables only rows are published: those of the whole loop
            exchange.buckets.tables.have_changed(server_state.published_weights.touched.after(0))
        member.publish()
        if said.over:
            self._finish(loop)
        member.committed()
        if said.leaves and not said.over:
            member.leave_at_planned_boundary()

    def _finish(self, loop: BatchLoop) -> None:
        member = self._member
        if not member.progress.calls.is_finished(loop.number):
            member.finish_call(loop.number)
            member.progress.commit_transaction()

    def _advance(self, step: int) -> None:
        """Commit steps that servers have committed: what runs once a step runs here."""
        member = self._member
        news = max(0, step - member.progress.step)
        while member.progress.step < step:
            member.progress.follow_step()
            member.held.after_update(member.spec.seed, member.progress.step)
        self.recorder.follow(news)
        if news:
            self._sink.settled(step + 1)
            self._report_phase("committed")
