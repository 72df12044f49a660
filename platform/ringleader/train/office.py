"""A server's books of one loop: which items are in, the sums on their way, the updates made. They outlive generations.

Threads that serve workers come with asks and pushes and wait for their turn; the training thread counts, updates and
records, so that optimisers, schedules and callbacks run where the training function runs.
"""

import threading
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from torch import Tensor

from ringleader.comm.buckets import Bucket
from ringleader.comm.communicator import Communicator, Ticket
from ringleader.elastic.items import Items
from ringleader.elastic.leases import EachAlone, Verdict
from ringleader.elastic.roll import Roll
from ringleader.errors import ExchangeBroken
from ringleader.sync.errands import NOT_YET, OVER, Answer, Ask, Push, Wish
from ringleader.sync.lessor import Check, Extras, Reply, Rows
from ringleader.train.arrivals import Arrival
from ringleader.train.clocks import Clocks
from ringleader.train.ends import Ends
from ringleader.train.group import Group
from ringleader.train.naming import Naming
from ringleader.train.queue import queue_of
from ringleader.train.staging import Staging
from ringleader.train.steps import Loop
from ringleader.train.stock import Stock
from ringleader.train.touching import Touched
from ringleader.train.updating import Counted, Updates

LOOK_S = 0.05
"""How often a waiting thread looks whether the generation is over, or a newer plan is announced."""


class Office:
    """Implements Clerk. One loop's; `open` begins each generation, `serve` runs it.

    Attributes:
        base: global steps before the loop.

    Args:
        committed: takes what a step of this server is made of, and the metrics' names.
        blocks: of the norms that come with each push; 0 where this server sees whole gradients.
        staleness: counts gradients by the number of versions between their pull and their update.
    """

    def __init__(
        self,
        group: Group,
        loop: Loop,
        committed: Callable[[list[Counted], tuple[str, ...]], None],
        blocks: int,
        staleness: Counter[int],
    ) -> None:
        self.loop = loop
        self.base = group.step - group.calls.offset
        self.leases = queue_of(loop, group.spec.sync)
        self._group = group
        self._committed = committed
        self._updates = Updates(group, loop, self.leases.discipline, blocks, staleness)
        self._naming = Naming()
        self._clocks = Clocks(self.leases, group.buffers.committed_bytes(), self._give_back)
        self._stocked: Stock | None = None
        self._changed = threading.Condition()
        self._arrivals: deque[Arrival] = deque()
        self._running: list[Counted] = []
        self._ends = Ends(self.leases)
        self._roll: Roll | None = None
        self._communicator: Communicator | None = None
        self._rows: Rows | None = None
        self._leads = False
        self._tell: Tell = _tell_nobody
        self._staging: Staging | None = None
        self._allowed = 0

    @property
    def touched(self) -> Touched:
        """The rows of tables that have changed in this loop."""
        return self._stock.touched

    @property
    def _stock(self) -> Stock:
        assert self._stocked is not None, "no generation has begun"
        return self._stocked

    @property
    def over(self) -> bool:
        return self._ends.over

    @property
    def complete(self) -> int:
        """Steps of this loop whose gradients are all here, applied or not; of server 0 those that it has applied."""
        if self._leads:
            return self.steps
        if isinstance(self.leases.discipline, EachAlone):
            return self.leases.batches.steps_within(self.leases.version + len(self.held))
        return self._clocks.complete

    @property
    def held(self) -> list[int]:
        """Items that are here, and not known to be taken by server 0."""
        return self._staging.items if self._staging is not None else []

    @property
    def steps(self) -> int:
        """Steps of this loop that are complete here."""
        if isinstance(self.leases.discipline, EachAlone):
            return self.leases.batches.steps_within(self.leases.version)
        return self.leases.version

    # --- the training thread --------------------------------------------------------------------------------------

    def open(
        self,
        communicator: Communicator | None,
        rows: Rows,
        part: list[Bucket],
        tables: Mapping[int, int],
        *,
        leads: bool,
        tell: "Tell | None" = None,
    ) -> None:
        """A generation begins: nobody has anything in hand. The server that `leads` keeps the queue.

        Args:
            tables: the numbers of this server's parameters whose gradients are rows, by their place among all tables.
            tell: tells the other servers what this one has taken.
        """
        with self._changed:
            self._communicator, self._rows, self._leads = communicator, rows, leads
            self._tell = tell or _tell_nobody
            self._roll = self._new_roll() if leads else None
            if not leads and isinstance(self.leases.discipline, EachAlone):
                self._staging = self._staging or Staging()
            self._stocked = self._stocked or Stock(self._group, part, tables)
            self._stocked.part = part
            self._arrivals.clear()
            self._ends.pending = False
            self.leases.give_all_back()

    def _new_roll(self) -> Roll | None:
        """Without staleness a loop may be left, or stopped, behind any update: until all workers have seen it, the next
        one is not made."""
        seat = self._group.seat
        assert seat is not None
        return Roll(seat.plan.world) if self._group.spec.sync.leased_in_step else None

    def settle(self, taken: Sequence[int]) -> None:
        """Of what is held server 0 has taken these items; the others did not happen."""
        if self._staging is None:
            return
        with self._changed:
            for arrival in self._staging.settle(taken):
                self._give_back(arrival.rows)
            self._apply_confirmed()

    @property
    def position(self) -> dict[str, Any]:
        """What a checkpoint has to know of the loop, while nothing is out: updates, and which items are in them.
        What is here for later updates is computed again."""
        return {
            "call": self.loop.number,
            "version": self.leases.version,
            "applied": self.leases.taken.without(self._clocks.items).encode(),
            "running": list(self._running),
            "updates": self._updates.state_dict(),
        }

    def go_on(self, position: dict[str, Any]) -> None:
        """The attempt begins with a checkpoint."""
        self.leases.go_on(position["version"], Items.decode(position["applied"]))
        self._allowed = self._clocks.complete = position["version"]
        self._running = list(position["running"])
        self._updates.load_state_dict(position["updates"])

    def drain(self) -> None:
        """Nothing more is leased until what is out is in, and all members stand at the same state."""
        with self._changed:
            self._ends.pending = True
            self._changed.notify_all()

    def allow(self, version: int) -> None:
        """Server 0 has made so many updates, so all that they are made of is here too."""
        with self._changed:
            self._allowed = max(self._allowed, version)
            self._update_what_is_due()

    def serve(self, tickets: Sequence[Ticket]) -> None:
        """Until every worker has left. Raises ExchangeBroken when the generation breaks."""
        assert self._communicator is not None
        with self._changed:
            while not all(ticket.finished for ticket in tickets):
                self._communicator.check()
                self._look()
                while self._arrivals:
                    self._count(self._arrivals.popleft())
                    self._changed.notify_all()
                if self._apply_confirmed() or self._update_what_is_due():
                    self._changed.notify_all()
                with self._group.split.idle():
                    self._changed.wait(LOOK_S)
            self._apply_confirmed()
            self.close()
        self._communicator.wait(self._tell(-1))

    def close(self) -> None:
        """A loop that was left by `break`: what is applied since the last step is a step, if a short one."""
        if self._ends.over and self._running:
            self._close_step()

    def count(self, push: Push, rows: list[Tensor], extras: Extras) -> Verdict:
        """The same as `take` where the worker is this thread."""
        arrival = Arrival(0, push, rows, extras)
        with self._changed:
            self._count(arrival)
        assert arrival.verdict is not None
        return arrival.verdict

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
            self._stock.copy_weights(rows)
            body, counts = self._stock.rows_since(ask.have)
            answer = replace(reply, rows=counts)
            return Reply(answer, body, self._group.buffers.committed_bytes())

    def take(self, worker: int, push: Push, rows: list[Tensor], extras: Extras, check: Check) -> Verdict:
        arrival = Arrival(worker, push, rows, extras)
        with self._changed:
            check()
            self._stock.travelled([rows.count for rows in extras.rows])
            self._arrivals.append(arrival)
            self._changed.notify_all()
            while arrival.verdict is None:
                self._changed.wait(LOOK_S)
                check()
        return arrival.verdict

    def confirm(self, item: int, check: Check) -> None:
        with self._changed:
            check()
            assert self._staging is not None
            self._staging.confirm(item)
            self._changed.notify_all()

    def departed(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _hear(self, worker: int, ask: Ask) -> None:
        """What an ask says, whatever the answer."""
        if ask.wish is Wish.ITEM and self._roll is not None and self._roll.here(worker, ask.have):
            self._changed.notify_all()
        if ask.stop >= 0:
            self._ends.stop_after(ask.stop)
        if ask.wish is Wish.BREAK:
            self.leases.give_back(worker)
            self._ends.stopping = True

    def _reply(self, worker: int, ask: Ask) -> Answer | None:
        """What can be said now; None: nothing yet."""
        version = self.leases.version
        if ask.wish is Wish.WEIGHTS:
            if ask.least > self._allowed:
                self._allowed = ask.least
                self._changed.notify_all()
            return None if version < ask.least else self._answer(-1, -1, fresh=version != ask.have)
        self._end()
        unseen = self._roll is not None and version != ask.have
        if self._ends.nothing_more:
            return self._answer(OVER, -1, fresh=unseen)
        lease = None if self._ends.held_back else self.leases.lease(worker)
        if lease is not None:
            return self._answer(lease.item, lease.clock, fresh=version != ask.have)
        return self._answer(NOT_YET, -1, fresh=True) if unseen and ask.wish is Wish.ITEM else None

    def _answer(self, item: int, clock: int, *, fresh: bool) -> Answer:
        nothing = (0,) * len(self._group.tables)
        return Answer(item, clock, self.leases.version, fresh, self._group.step, self._group.loss, nothing)

    def _end(self) -> None:
        """Whether the loop has ended, which server 0 alone says."""
        if self._leads:
            self._ends.look()

    # --- the training thread --------------------------------------------------------------------------------------

    def _look(self) -> None:
        coordinator = self._group.coordinator
        if coordinator.interrupted():
            raise ExchangeBroken(rank=-1, phase="serve", bucket=None, why="the generation was given up")
        if self._leads and not self._ends.pending and coordinator.plan_pending():
            self._ends.pending = True
            self._changed.notify_all()

    def _count(self, arrival: Arrival) -> None:
        """Decide about a push; make the updates that are due with it."""
        push, leases = arrival.push, self.leases
        assert self._group.seat is not None
        self._naming.hear(self._group.seat.plan.members[arrival.worker], push, arrival.extras.names)
        if self._roll is not None:
            self._roll.here(arrival.worker, push.version)
        if self._staging is not None:
            arrival.verdict = self._hold(arrival, self._staging)
            return
        verdict = Verdict.REFUSED
        if not self._ends.over:
            verdict = leases.push(push.item, push.version) if self._leads else leases.follow(push.item)
        if verdict is Verdict.TAKEN:
            self._clocks.add(arrival)
            with suppress(ExchangeBroken):  # the generation is over: in the next one all ask what is taken
                self._tell(push.item)
        else:
            self._give_back(arrival.rows)
        if push.stop and self._leads:
            self._ends.stop_after(leases.discipline.clock(leases, push.item))
        self._update_what_is_due()
        self._end()
        arrival.verdict = verdict

    def _hold(self, arrival: Arrival, staging: Staging) -> Verdict:
        if arrival.push.item not in self.leases.taken and staging.hold(arrival):
            return Verdict.TAKEN
        self._give_back(arrival.rows)
        return Verdict.REPEATED

    def _apply_confirmed(self) -> bool:
        """What is held and server 0 has taken is taken here."""
        due = self._staging.due() if self._staging is not None else []
        for arrival in due:
            self.leases.follow(arrival.push.item)
            self._clocks.add(arrival)
            self._update_what_is_due()
        return bool(due)

    def _update_what_is_due(self) -> bool:
        """Clocks of other servers wait for server 0's word: if the generation breaks, all stand at the same one."""
        before = self.leases.version
        while self.leases.due and (self._free or self.leases.version < self._allowed):
            self._update()
        return self.leases.version > before

    @property
    def _free(self) -> bool:
        """Whether an update that is due waits for nobody."""
        if self._roll is not None:
            return self._roll.all_at(self.leases.version)
        return self._leads or isinstance(self.leases.discipline, EachAlone)

    def _give_back(self, rows: list[Tensor]) -> None:
        assert self._rows is not None
        self._rows.give_back(rows)

    def _update(self) -> None:
        leases, gathered = self.leases, self._clocks.take()
        self._running += self._updates.make(gathered, leases.version, self._stock)
        leases.advance()
        self.touched.update(gathered.total.tables, leases.version)
        if gathered.moves:
            self._clocks.follow(self._group.buffers.committed_bytes())
        if self.steps > self._group.calls.offset:
            self._close_step()

    def _close_step(self) -> None:
        counted, self._running = self._running, []
        self._committed(counted, self._naming.names)


Tell = Callable[[int], list[Ticket]]
"""Tells other servers that an item is taken, or (-1) that no more are."""


def _tell_nobody(_: int) -> list[Ticket]:
    return []
