"""A server's books of one loop: which items are in, the sums on their way, the updates made. They outlive generations.

By the training thread, or by whoever has the office's lock.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from torch import Tensor

from ringleader.comm.communicator import Communicator, Ticket
from ringleader.errors import ExchangeBroken
from ringleader.train.generation.member import Member
from ringleader.train.modes.async_server.item_queue import queue_of
from ringleader.train.modes.async_server.lease_queue import AsyncPolicy, PushVerdict
from ringleader.train.modes.async_server.messages import CLOSE, UPDATE
from ringleader.train.modes.async_server.server.apply_updates import AppliedItem, ServerUpdates
from ringleader.train.modes.async_server.server.changed_rows import ChangedRows
from ringleader.train.modes.async_server.server.endpoint import ReceiveBuffers
from ringleader.train.modes.async_server.server.lease_end import LeaseEnd
from ringleader.train.modes.async_server.server.metric_names import MetricNaming
from ringleader.train.modes.async_server.server.pending_updates import PendingUpdates
from ringleader.train.modes.async_server.server.published_weights import PublishedWeights
from ringleader.train.modes.async_server.server.queued_push import QueuedPush
from ringleader.train.modes.async_server.server.replicated_log import ReplicatedLog
from ringleader.train.modes.async_server.server_share import ServerShare
from ringleader.train.modes.async_server.version_barrier import VersionBarrier
from ringleader.train.modes.items import ItemSet
from ringleader.train.modes.synchronous.loop import BatchLoop


class ServerState:
    """Of one loop; `open` begins each generation.

    Attributes:
        base: global steps before the loop.
        ordered: all servers make the same updates in the same order, see `ReplicatedLog`.
        roll: who has seen which update, where that matters.
        allowed: updates that server 0 has made for certain.

    Args:
        committed: takes what a step of this server is made of, and the metrics' names.
        blocks: of the norms that come with each push; 0 where this server sees whole gradients.
        staleness: counts gradients by the number of versions between their pull and their update.
    """

    def __init__(
        self,
        group: Member,
        loop: BatchLoop,
        committed: Callable[[list[AppliedItem], tuple[str, ...]], None],
        blocks: int,
        staleness: Counter[int],
    ) -> None:
        self.loop = loop
        self.base = group.step - group.calls.offset
        self.leases = queue_of(loop, group.spec.sync)
        self.ends = LeaseEnd(self.leases)
        self.roll: VersionBarrier | None = None
        self.ordered = bool(group.spec.sync.server_backups) and group.serves
        self.allowed = 0
        self._each_alone = isinstance(self.leases.discipline, AsyncPolicy)
        self._group = group
        self._committed = committed
        self._updates = ServerUpdates(group, loop, self.leases.discipline, blocks, staleness)
        self._naming = MetricNaming()
        self._clocks = PendingUpdates(self.leases, group.buffers.committed_bytes(), self._give_back)
        self._stocked: PublishedWeights | None = None
        self._running: list[AppliedItem] = []
        self._communicator: Communicator | None = None
        self._rows: ReceiveBuffers | None = None
        self._leads = False
        self._tell: Tell = tell_nobody
        self._staging: ReplicatedLog | None = None

    @property
    def stock(self) -> PublishedWeights:
        assert self._stocked is not None, "no generation has begun"
        return self._stocked

    @property
    def touched(self) -> ChangedRows:
        """The rows of tables that have changed in this loop."""
        return self.stock.touched

    @property
    def complete(self) -> int:
        """Steps of this loop whose gradients are all here, applied or not; of server 0 those that it has applied."""
        if self._leads or self.ordered:
            return self.steps
        if self._each_alone:
            return self.leases.batches.steps_within(self.leases.version + len(self.held))
        return self._clocks.complete

    @property
    def held(self) -> list[int]:
        """Items that are here, and not known to be taken by server 0."""
        return self._staging.items if self._staging is not None else []

    @property
    def steps(self) -> int:
        """Steps of this loop that are complete here."""
        if self._each_alone:
            return self.leases.batches.steps_within(self.leases.version)
        return self.leases.version

    # --- between generations --------------------------------------------------------------------------------------

    def open(
        self,
        communicator: Communicator | None,
        rows: ReceiveBuffers,
        held: ServerShare,
        shown: ServerShare,
        *,
        leads: bool,
        tell: "Tell",
    ) -> None:
        """A generation begins: nobody has anything in hand. The server that `leads` keeps the queue.

        Args:
            held: what this server updates.
            shown: what workers pull of it.
            tell: tells the other servers what this one has taken.
        """
        self._communicator, self._rows, self._leads, self._tell = communicator, rows, leads, tell
        self.roll = self._new_roll() if leads else None
        if self.ordered or (self._each_alone and not leads):
            self._staging = self._staging or ReplicatedLog()
        if self._stocked is None:
            self._stocked = PublishedWeights(self._group, held, shown)
            if self.ordered and self.leases.version:
                self.touched.all_new(self.leases.version)
        self._stocked.held, self._stocked.shown = held, shown
        self.ends.pending = False
        self.leases.give_all_back()

    def _new_roll(self) -> VersionBarrier | None:
        """Without staleness a loop may be left, or stopped, behind any update: until all workers have seen it, the next
        one is not made."""
        seat = self._group.seat
        assert seat is not None
        return VersionBarrier(seat.plan.world) if self._group.spec.sync.leased_in_step else None

    def settle(self, taken: Sequence[int]) -> None:
        """Of what is held server 0 has taken these items; the others did not happen."""
        if self._staging is None:
            return
        for arrival in self._staging.settle(taken):
            self._give_back(arrival.rows)
        self.apply_confirmed()

    @property
    def known(self) -> tuple[int, int, int]:
        """The loop's call, and what this server has heard of it, see `ReplicatedLog`."""
        heard = (self._staging.count, self._staging.last) if self._staging is not None else (0, 0)
        return self.loop.number, *heard

    def level(self, count: int, last: int) -> None:
        """A generation begins where servers are ordered: they make the updates that any of them has heard of. What is
        in no update then is computed again, also where some server has it: others may not."""
        if self._staging is None or self._stocked is None:
            return
        self._leads, self.roll = False, None
        if self._staging.count < count:
            self._staging.confirm(last)
        self.apply_confirmed()
        self.settle([])
        applied = self._applied
        self._clocks.drop()
        self.leases.go_on(self.leases.version, applied)

    @property
    def _applied(self) -> ItemSet:
        return self.leases.taken.without(self._clocks.items)

    @property
    def position(self) -> dict[str, Any]:
        """What a checkpoint, or a new server, has to know of the loop, while nothing is out: updates, and which items
        are in them. What is here for later updates is computed again."""
        return {
            "call": self.loop.number,
            "version": self.leases.version,
            "applied": self._applied.encode(),
            "running": list(self._running),
            "updates": self._updates.state_dict(),
            "known": self.known,
            "over": self.ends.over,
            "left": self.ends.left,
        }

    def go_on(self, position: dict[str, Any]) -> None:
        """The attempt begins with a checkpoint, or this server joins the others."""
        self.leases.go_on(position["version"], ItemSet.decode(position["applied"]))
        self.allowed = self._clocks.complete = position["version"]
        self._running = list(position["running"])
        self._updates.load_state_dict(position["updates"])
        if self.ordered:
            self._staging = ReplicatedLog(*position["known"][1:])
            self.ends.over = position["over"]
            self.ends.left = position.get("left", False)  # checkpoints of earlier versions have none

    def allow(self, version: int) -> None:
        """Server 0 has made so many updates, so all that they are made of is here too. Ordered servers have other words
        for that."""
        if not self.ordered:
            self.allowed = max(self.allowed, version)
            self.update_what_is_due()

    # --- inside one -----------------------------------------------------------------------------------------------

    def count(self, arrival: QueuedPush) -> None:
        """Decide about a push; make the updates that are due with it."""
        push, leases = arrival.push, self.leases
        assert self._group.seat is not None
        self._naming.hear(self._group.seat.plan.members[arrival.worker], push, arrival.extras.names)
        if self.roll is not None:
            self.roll.here(arrival.worker, push.version)
        if self._staging is not None and not self._leads:
            arrival.verdict = self._hold(arrival, self._staging)
            return
        verdict = PushVerdict.REFUSED
        if not self.ends.over:
            verdict = leases.push(push.item, push.version) if self._leads else leases.follow(push.item)
        if push.stop and self._leads:
            self.ends.stop_after(leases.discipline.clock(leases, push.item))
        if verdict is PushVerdict.TAKEN:
            self._take(arrival)
        else:
            self._give_back(arrival.rows)
        self.update_what_is_due()
        self.look()
        arrival.verdict = verdict

    def confirm(self, entry: int) -> None:
        """Server 0 has said this."""
        assert self._staging is not None
        self._staging.confirm(entry)

    def look(self) -> None:
        """Whether the loop has ended, which server 0 alone says."""
        if self._leads:
            self.ends.look()

    def apply_confirmed(self) -> bool:
        """What is held and server 0 has taken is taken here. Returns whether there was any."""
        due = self._staging.due() if self._staging is not None else []
        for entry, arrival in due:
            if arrival is not None:
                self.leases.follow(entry)
                self._clocks.add(arrival)
            elif entry == UPDATE:
                self.allowed = self.leases.version + 1
            else:
                self.ends.over = True
                self.close()
            self.update_what_is_due()
        return bool(due)

    def update_what_is_due(self) -> bool:
        """Clocks of other servers wait for server 0's word: if the generation breaks, all stand at the same one."""
        before = self.leases.version
        while self.leases.due and (self._free or self.leases.version < self.allowed):
            if self.ordered and not self._each_alone and self.leases.version >= self.allowed:
                self._enter(UPDATE)
            else:
                self._update()
        return self.leases.version > before

    def finish(self) -> None:
        """Every worker has left. Raises ExchangeBroken."""
        self.apply_confirmed()
        if self.ordered and self._leads and self.ends.over:
            self._enter(CLOSE)
        self.close()

    def close(self) -> None:
        """A loop that was left by `break`: what is applied since the last step is a step, if a short one."""
        if self.ends.over and self._running:
            self._close_step()

    def _take(self, arrival: QueuedPush) -> None:
        if self.ordered and self._staging is not None:
            self._staging.hold(arrival)
            self._enter(arrival.push.item)
            return
        self._clocks.add(arrival)
        with suppress(ExchangeBroken):  # the generation is over: in the next one all ask what is taken
            self._tell(arrival.push.item)

    def _enter(self, entry: int) -> None:
        """It happens once all servers have heard of it. Raises ExchangeBroken: then `level` says whether it does."""
        assert self._communicator is not None
        assert self._staging is not None
        self._staging.confirm(entry)
        self._communicator.wait(self._tell(entry))
        self.apply_confirmed()

    def _hold(self, arrival: QueuedPush, staging: ReplicatedLog) -> PushVerdict:
        if arrival.push.item in self.leases.taken:
            self._give_back(arrival.rows)
            return PushVerdict.REPEATED
        if (other := staging.hold(arrival)) is not None:
            self._give_back(other.rows)
        return PushVerdict.REPEATED if other is arrival else PushVerdict.TAKEN

    @property
    def _free(self) -> bool:
        """Whether an update that is due waits for nobody."""
        if self.roll is not None:
            return self.roll.all_at(self.leases.version)
        return self._leads or self._each_alone

    def _give_back(self, rows: list[Tensor]) -> None:
        assert self._rows is not None
        self._rows.give_back(rows)

    def _update(self) -> None:
        leases, gathered = self.leases, self._clocks.take()
        self._running += self._updates.make(gathered, leases.version, self.stock)
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
"""Tells other servers an entry, see `ReplicatedLog`, or `END`: that there are no more."""


def tell_nobody(_: int) -> list[Ticket]:
    return []
