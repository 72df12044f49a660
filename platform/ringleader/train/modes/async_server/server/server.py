"""A server's side where items are leased: the queue of the running loop, which outlives generations."""

from typing import Any

import torch
from torch import Tensor

from ringleader.exchange import Exchange
from ringleader.exchange.parameter_server import ParameterServer
from ringleader.train.generation.member import Member
from ringleader.train.generation.saving.cadence import CheckpointVote
from ringleader.train.modes.async_server.lease_queue import VersionBarrier
from ringleader.train.modes.async_server.messages import MessageLayout
from ringleader.train.modes.async_server.server.committed_step import StepCommits
from ringleader.train.modes.async_server.server.endpoint import ReceiveBuffers, ServerEndpoint
from ringleader.train.modes.async_server.server.replicated_log import agree, newest_entry
from ringleader.train.modes.async_server.server.server_queue import ServerQueue
from ringleader.train.modes.async_server.server.server_state import ServerSeat, ServerState, tell_nobody
from ringleader.train.modes.async_server.server_position import ServerPosition, histogram
from ringleader.train.modes.async_server.server_share import ServerShare
from ringleader.train.modes.batch_loop import BatchLoop
from ringleader.train.modes.items import ItemSet


class AsyncServer:
    """The server of one loop at a time, on a server or on a worker that is alone. Elsewhere it has no queue, and takes
    part in what all members do as a generation begins."""

    def __init__(self, member: Member, commits: StepCommits) -> None:
        self._member = member
        self._commits = commits
        self._queue: ServerQueue | None = None
        self._rows: ReceiveBuffers | None = None

    @property
    def state(self) -> ServerState | None:
        """The state in the loop; None before this member has served in it."""
        return self._queue.state if self._queue is not None else None

    @property
    def _leads(self) -> bool:
        """Whether this member is server 0, or alone."""
        generation = self._member.generation
        return generation.server == 0 or generation.plan.servers == 0

    def begin(self) -> None:
        """Begin a loop."""
        self._queue = None

    def give_up(self) -> None:
        """End a generation that broke."""
        if (state := self.state) is not None:  # a server that waits for server 0's word counts as ahead of it
            self._member.progress.update_to(state.base + state.complete)

    # --- as a generation begins -----------------------------------------------------------------------------------

    def open_generation(self) -> None:
        """Make the updates that server 0 has made. All members take part. Raises ExchangeBroken."""
        exchange, state = self._member.generation.exchange, self.state
        if self._ordered:
            self._apply_newest_entry(exchange)
            return
        said = torch.zeros(2, dtype=torch.float64)
        # Zeros from all others, so that the sum is what server 0 says.
        if self._leads and state is not None:
            said[:] = torch.tensor([state.loop.number, state.leases.version])
        call, version = exchange.all_reduce(said).tolist()
        # A version counts within one loop: a server may still have the state of the loop before.
        here = state if state is not None and state.loop.number == call else None
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
        generation, state = self._member.generation, self.state
        if not generation.plan.servers:
            return
        known = state.known if state is not None else (-1, 0, 0)
        call, count, last = newest_entry(exchange, generation.server, generation.plan.servers, known)
        if state is not None and state.loop.number == call:
            state.apply_newest_entry(count, last)

    def _agree(self, exchange: Exchange, state: ServerState | None) -> None:
        """Apply on all servers, or on none, the items that a break left on some of them."""
        generation = self._member.generation
        held = state.held if state is not None else []
        taken = state.leases.taken if state is not None and self._leads else ItemSet()
        agreed = agree(exchange, generation.server, generation.plan.servers, held, taken)
        if state is not None:
            state.settle(agreed)

    # --- inside one -----------------------------------------------------------------------------------------------

    def serve(self, loop: BatchLoop, layout: MessageLayout) -> None:
        """Serve until every worker has left. Raises ExchangeBroken."""
        generation, exchange = self._member.generation, self._member.generation.exchange
        assert isinstance(exchange, ParameterServer)
        plan, number = generation.plan, generation.server
        held = ServerShare.held(exchange.buckets, plan.held_by, number)
        shown = ServerShare.shown(exchange.buckets, plan.held_by, number)
        # Kept over generations, as are the gradients in it that wait for their update.
        self._rows = self._rows or ReceiveBuffers(held.buckets)
        endpoint = ServerEndpoint(
            exchange.communicator,
            shown.buckets,
            held.tables,
            self._rows,
            layout,
            number=number,
            workers=plan.world,
            # Where nothing is staged, server 0's word comes with the workers' pulls: it need not tell the
            # others itself.
            servers=plan.servers if self._stages else 1,
            acknowledged=self._ordered,
        )
        leads = number == 0
        tell = endpoint.tell if leads else tell_nobody
        seat = ServerSeat(exchange.communicator, self._rows, held, shown, leads, self._barrier, tell)
        queue = self._open(loop, seat, layout)
        queue.serve(endpoint.serve(queue))

    def alone(self, loop: BatchLoop, layout: MessageLayout) -> tuple[ServerQueue, ReceiveBuffers]:
        """The queue in the process of a worker that is alone, and memory for its gradients."""
        buckets = self._member.generation.exchange.buckets
        self._rows = self._rows or ReceiveBuffers(buckets.buckets)
        everything = ServerShare.whole(buckets)
        seat = ServerSeat(None, self._rows, everything, everything, True, self._barrier)
        return self._open(loop, seat, layout), self._rows

    @property
    def _barrier(self) -> VersionBarrier | None:
        """A barrier at server 0 where there is no staleness: a loop may be left, or stopped, behind any update, so the
        next one is not made until all workers have seen it."""
        needed = self._leads and self._member.spec.sync.leased_in_step
        return VersionBarrier(self._member.generation.plan.world) if needed else None

    def _open(self, loop: BatchLoop, seat: ServerSeat, layout: MessageLayout) -> ServerQueue:
        """The queue of the loop in this generation."""
        member = self._member
        if self._queue is None:
            state = ServerState(member, loop, seat, self._commits, layout.blocks)
            # Once an attempt: in later generations the server's own state is the newer one.
            given = member.inside.take()
            if given.get("call") == loop.number:
                state.go_on(given)
            self._queue = ServerQueue(member, state)
        self._queue.open(seat)
        return self._queue

    # --- where no worker computes ---------------------------------------------------------------------------------

    def position(self) -> Tensor:
        """Server 0's `ServerPosition` as (n,) float64; zeros from all others."""
        member, state = self._member, self.state
        if not self._leads:
            return ServerPosition.silence(member.buffers.size_bytes)
        assert state is not None
        return ServerPosition(
            over=state.ends.over,
            left=state.ends.left,
            leaves=member.coordinator.plan_pending(),
            step=member.progress.step,
            samples=member.progress.samples,
            loss=member.progress.loss,
            wanted=member.securing.wish >= CheckpointVote.WANTS,
            staleness=histogram(state.staleness),
            buffers=member.buffers.committed_bytes(),
        ).encode()

    def loop_state(self) -> dict[str, Any]:
        """The position inside the running loop for a checkpoint at a boundary; empty between loops."""
        state = self.state
        inside = state is not None and not self._member.progress.calls.is_finished(state.loop.number)
        return state.position if state is not None and inside else {}
