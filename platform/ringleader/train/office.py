"""A server's office in one loop: threads that serve workers come with asks and pushes and wait for their turn; the
training thread counts, updates and records, so that optimisers, schedules and callbacks run where the training function
runs.
"""

import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from ringleader.comm.communicator import Communicator, Ticket
from ringleader.elastic.leases import Verdict
from ringleader.errors import ExchangeBroken
from ringleader.sync.errands import END, NOT_YET, OVER, Answer, Ask, Push, Wish
from ringleader.sync.lessor import Check, Extras, Reply, Rows
from ringleader.sync.share import Share
from ringleader.train.arrivals import Arrival
from ringleader.train.books import Books, Tell, tell_nobody
from ringleader.train.group import Group

LOOK_S = 0.05
"""How often a waiting thread looks whether the generation is over, or a newer plan is announced."""


class Office:
    """Implements Clerk. One loop's; `open` begins each generation, `serve` runs it."""

    def __init__(self, group: Group, books: Books) -> None:
        self.books = books
        self._group = group
        self._changed = threading.Condition()
        self._arrivals: deque[Arrival] = deque()
        self._communicator: Communicator | None = None
        self._leads = False
        self._tell: Tell = tell_nobody

    # --- the training thread --------------------------------------------------------------------------------------

    def open(
        self,
        communicator: Communicator | None,
        rows: Rows,
        held: Share,
        shown: Share,
        *,
        leads: bool,
        tell: Tell = tell_nobody,
    ) -> None:
        """See `Books.open`."""
        with self._changed:
            self._communicator, self._leads, self._tell = communicator, leads, tell
            self.books.open(communicator, rows, held, shown, leads=leads, tell=tell)
            self._arrivals.clear()

    def drain(self) -> None:
        """Nothing more is leased until what is out is in, and all members stand at the same state."""
        with self._changed:
            self.books.ends.pending = True
            self._changed.notify_all()

    def serve(self, tickets: Sequence[Ticket]) -> None:
        """Until every worker has left. Raises ExchangeBroken when the generation breaks."""
        assert self._communicator is not None
        with self._changed:
            while not all(ticket.finished for ticket in tickets):
                self._communicator.check()
                self._look()
                while self._arrivals:
                    self.books.count(self._arrivals.popleft())
                    self._changed.notify_all()
                if self.books.apply_confirmed() or self.books.update_what_is_due():
                    self._changed.notify_all()
                with self._group.split.idle():
                    self._changed.wait(LOOK_S)
            self.books.finish()
        self._communicator.wait(self._tell(END))

    def count(self, push: Push, rows: list[Tensor], extras: Extras) -> Verdict:
        """The same as `take` where the worker is this thread."""
        arrival = Arrival(0, push, rows, extras)
        with self._changed:
            self.books.count(arrival)
        assert arrival.verdict is not None
        return arrival.verdict

    def _look(self) -> None:
        coordinator = self._group.coordinator
        if coordinator.interrupted():
            raise ExchangeBroken(rank=-1, phase="serve", bucket=None, why="the generation was given up")
        if self._leads and not self.books.ends.pending and coordinator.plan_pending():
            self.drain()

    # --- the threads that serve workers: Clerk --------------------------------------------------------------------

    def answer(self, worker: int, ask: Ask, rows: Sequence[Tensor], check: Check) -> Reply:
        with self._changed:
            check()
            self._hear(worker, ask)
            while (reply := self._reply(worker, ask)) is None:
                self._changed.wait(LOOK_S)
                check()
            if not reply.fresh:
                return Reply(reply)
            stock = self.books.stock
            stock.copy_weights(rows)
            body, counts = stock.rows_since(ask.have)
            answer = replace(reply, rows=counts)
            return Reply(answer, body, self._group.buffers.committed_bytes())

    def take(self, worker: int, push: Push, rows: list[Tensor], extras: Extras, check: Check) -> Verdict:
        arrival = Arrival(worker, push, rows, extras)
        with self._changed:
            check()
            self.books.stock.came([rows.count for rows in extras.rows])
            self._arrivals.append(arrival)
            self._changed.notify_all()
            while arrival.verdict is None:
                self._changed.wait(LOOK_S)
                check()
        return arrival.verdict

    def confirm(self, entry: int, check: Check) -> None:
        with self._changed:
            check()
            self.books.confirm(entry)
            self._changed.notify_all()

    def departed(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _hear(self, worker: int, ask: Ask) -> None:
        """What an ask says, whatever the answer."""
        books = self.books
        if ask.wish is Wish.ITEM and books.roll is not None and books.roll.here(worker, ask.have):
            self._changed.notify_all()
        if ask.stop >= 0:
            books.ends.stop_after(ask.stop)
        if ask.wish is Wish.BREAK:
            books.leases.give_back(worker)
            books.ends.leave()

    def _reply(self, worker: int, ask: Ask) -> Answer | None:
        """What can be said now; None: nothing yet."""
        books, leases = self.books, self.books.leases
        version = leases.version
        if ask.wish is Wish.WEIGHTS:
            if ask.least > books.allowed and not books.ordered:
                books.allowed = ask.least
                self._changed.notify_all()
            return None if version < ask.least else self._answer(-1, -1, fresh=version != ask.have)
        books.look()
        unseen = books.roll is not None and version != ask.have
        if books.ends.nothing_more:
            return self._answer(OVER, -1, fresh=unseen)
        lease = None if books.ends.held_back else leases.lease(worker)
        if lease is not None:
            return self._answer(lease.item, lease.clock, fresh=version != ask.have)
        return self._answer(NOT_YET, -1, fresh=True) if unseen and ask.wish is Wish.ITEM else None

    def _answer(self, item: int, clock: int, *, fresh: bool) -> Answer:
        group, nothing = self._group, (0,) * len(self._group.tables)
        return Answer(item, clock, self.books.leases.version, fresh, group.step, group.loss, nothing)
