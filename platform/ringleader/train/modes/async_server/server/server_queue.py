"""A server's queue in one loop: threads that serve workers queue requests and pushes and wait for their turn; the
training thread counts, updates and records, so that optimizers, schedules and callbacks run where the training function
runs."""

import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from ringleader.comm.communicator import Ticket
from ringleader.train.generation.member import Member
from ringleader.train.modes.async_server.lease_queue import PushVerdict
from ringleader.train.modes.async_server.messages import (
    END,
    NOT_YET,
    OVER,
    PullReply,
    PullRequest,
    PushHeader,
    RequestKind,
)
from ringleader.train.modes.async_server.server.endpoint import Check, PushExtras, QueuedPush, ServerReply
from ringleader.train.modes.async_server.server.server_state import ServerSeat, ServerState
from ringleader.train.ports import check_given_up

LOOK_S = 0.05
"""Seconds after which a waiting thread looks whether the generation is over, or a newer plan is announced."""


class ServerQueue:
    """One loop's queue at a server, a RequestHandler; `open` begins each generation, `serve` runs it."""

    def __init__(self, member: Member, server_state: ServerState) -> None:
        self.state = server_state
        self._member = member
        self._changed = threading.Condition()
        self._arrivals: deque[QueuedPush] = deque()

    # --- the training thread --------------------------------------------------------------------------------------

    def open(self, seat: ServerSeat) -> None:
        """See `ServerState.open`."""
        with self._changed:
            self.state.open(seat)
            # Pushes of the generation before: nobody was told that they came, so their items are computed again.
            while self._arrivals:
                seat.rows.give_back(self._arrivals.popleft().rows)

    def serve(self, tickets: Sequence[Ticket]) -> None:
        """Serve until every worker has left. Raises ExchangeBroken when the generation breaks."""
        seat = self.state.seat
        with self._changed:
            # The lock is let go in `wait` alone, so that threads never copy weights out in the middle of an update.
            while not all(ticket.finished for ticket in tickets):
                seat.check()
                self._look()
                while self._arrivals:
                    self.state.count(self._arrivals.popleft())
                    self._changed.notify_all()
                if self.state.apply_confirmed() or self.state.update_what_is_due():
                    self._changed.notify_all()
                # With a limit: a break of the generation does not notify this condition.
                with self._member.split.idle():
                    self._changed.wait(LOOK_S)
            self.state.finish()
        # Without the lock, and last: the other servers' threads end at this entry.
        seat.spread(END)

    def count(self, push: PushHeader, rows: list[Tensor], extras: PushExtras) -> PushVerdict:
        """Count a push as `take` does, where the worker is this thread."""
        arrival = QueuedPush(0, push, rows, extras)
        with self._changed:
            self.state.count(arrival)
        assert arrival.verdict is not None
        return arrival.verdict

    def _look(self) -> None:
        coordinator = self._member.coordinator
        check_given_up(coordinator, rank=-1, phase="serve")
        if self.state.seat.leads and not self.state.ends.pending and coordinator.plan_pending():
            self.state.ends.drain()
            self._changed.notify_all()

    # --- the threads that serve workers: RequestHandler ------------------------------------------------------------

    def answer(self, worker: int, ask: PullRequest, rows: Sequence[Tensor], check: Check) -> ServerReply:
        with self._changed:
            check()
            # Once, before any wait: a stop or a `break` has to reach the others though its reply may take long.
            self._hear(worker, ask)
            while (reply := self._reply(worker, ask)) is None:
                self._changed.wait(LOOK_S)
                check()
            if not reply.fresh:
                return ServerReply(reply)
            published_weights = self.state.published_weights
            published_weights.copy_weights(rows)
            body, counts = published_weights.rows_since(ask.have)
            answer = replace(reply, rows=counts)
            return ServerReply(answer, body, self._member.buffers.committed_bytes())

    def take(
        self, worker: int, push: PushHeader, rows: list[Tensor], extras: PushExtras, check: Check
    ) -> PushVerdict:
        arrival = QueuedPush(worker, push, rows, extras)
        with self._changed:
            check()
            self.state.published_weights.came([rows.count for rows in extras.rows])
            self._arrivals.append(arrival)
            self._changed.notify_all()
            while arrival.verdict is None:
                self._changed.wait(LOOK_S)
                check()
        return arrival.verdict

    def confirm(self, entry: int, check: Check) -> None:
        with self._changed:
            check()
            self.state.confirm(entry)
            self._changed.notify_all()

    def departed(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _hear(self, worker: int, ask: PullRequest) -> None:
        """Take in what a request tells, whatever the reply."""
        server_state = self.state
        if (
            ask.wish is RequestKind.ITEM
            and server_state.seat.version_barrier is not None
            and server_state.seat.version_barrier.here(worker, ask.have)
        ):
            self._changed.notify_all()
        if ask.stop >= 0:
            server_state.ends.stop_after(ask.stop)
        if ask.wish is RequestKind.BREAK:
            server_state.leases.give_back(worker)
            server_state.ends.leave()

    def _reply(self, worker: int, ask: PullRequest) -> PullReply | None:
        """The reply that is due now; None while there is none."""
        server_state, leases = self.state, self.state.leases
        version = leases.version
        if ask.wish is RequestKind.WEIGHTS:
            # The worker has these weights of server 0, which proves that server 0 has made the update.
            if server_state.hear_of(ask.least):
                self._changed.notify_all()
            return None if version < ask.least else self._answer(-1, -1, fresh=version != ask.have)
        server_state.look()
        # Without staleness a worker that gets no item is told of the commit all the same, before its step returns.
        unseen = server_state.seat.version_barrier is not None and version != ask.have
        if server_state.ends.nothing_more:
            return self._answer(OVER, -1, fresh=unseen)
        lease = None if server_state.ends.held_back else leases.lease(worker)
        if lease is not None:
            return self._answer(lease.item, lease.clock, fresh=version != ask.have)
        return self._answer(NOT_YET, -1, fresh=True) if unseen and ask.wish is RequestKind.ITEM else None

    def _answer(self, item: int, clock: int, *, fresh: bool) -> PullReply:
        member, nothing = self._member, (0,) * len(self._member.tables)
        return PullReply(
            item, clock, self.state.leases.version, fresh, member.progress.step, member.progress.loss, nothing
        )
