"""A server's state in one loop: which items are in, the pending sums, the updates made. It outlives generations.

Used by the training thread, or by whoever has the server queue's lock.
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
from ringleader.train.modes.batch_loop import BatchLoop
from ringleader.train.modes.items import ItemSet


class ServerState:
    """A server's state in one loop; `open` begins each generation.

    Attributes:
        base: global steps before the loop.
        ordered: all servers make the same updates in the same order, see `ReplicatedLog`.
        version_barrier: which worker has seen which update, where that matters.
        allowed: updates that server 0 has certainly made.

    Args:
        committed: called with the items of a step of this server, and the metrics' names.
        blocks: of the norms that come with each push; 0 where this server sees whole gradients.
        staleness: counts gradients by the number of versions between their pull and their update.
    """

    def __init__(
        self,
        member: Member,
        loop: BatchLoop,
        committed: Callable[[list[AppliedItem], tuple[str, ...]], None],
        blocks: int,
        staleness: Counter[int],
    ) -> None:
        self.loop = loop
        self.base = member.progress.step - member.progress.calls.offset
        self.leases = queue_of(loop, member.spec.sync)
        self.ends = LeaseEnd(self.leases)
        self.version_barrier: VersionBarrier | None = None
        self.ordered = bool(member.spec.sync.server_backups) and member.serves
        self.allowed = 0
        self._each_alone = isinstance(self.leases.discipline, AsyncPolicy)
        self._member = member
        self._committed = committed
        self._updates = ServerUpdates(member, loop, self.leases.discipline, blocks, staleness)
        self._naming = MetricNaming()
        self._pending_updates = PendingUpdates(self.leases, member.buffers.committed_bytes(), self._give_back)
        self._published_weights: PublishedWeights | None = None
        self._running: list[AppliedItem] = []
        self._communicator: Communicator | None = None
        self._rows: ReceiveBuffers | None = None
        self._leads = False
        self._tell: Tell = tell_nobody
        self._replicated_log: ReplicatedLog | None = None

    @property
    def published_weights(self) -> PublishedWeights:
        assert self._published_weights is not None, "no generation has begun"
        return self._published_weights

    @property
    def touched(self) -> ChangedRows:
        """The rows of tables that have changed in this loop."""
        return self.published_weights.touched

    @property
    def complete(self) -> int:
        """Steps of this loop whose gradients are all here, applied or not; at server 0 those that it has applied."""
        if self._leads or self.ordered:
            return self.steps
        if self._each_alone:
            return self.leases.batches.steps_within(self.leases.version + len(self.held))
        return self._pending_updates.complete

    @property
    def held(self) -> list[int]:
        """Items whose gradients are here, and not known to be taken by server 0."""
        return self._replicated_log.items if self._replicated_log is not None else []

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
        """Begin a generation, in which no worker holds a lease yet. The server that `leads` keeps the queue.

        Args:
            held: what this server updates.
            shown: what workers pull of it.
            tell: tells the other servers an entry.
        """
        self._communicator, self._rows, self._leads, self._tell = communicator, rows, leads, tell
        self.version_barrier = self._new_version_barrier() if leads else None
        if self.ordered or (self._each_alone and not leads):
            # Kept over generations: what is held now is settled when the next one begins.
            self._replicated_log = self._replicated_log or ReplicatedLog()
        if self._published_weights is None:
            self._published_weights = PublishedWeights(self._member, held, shown)
            if self.ordered and self.leases.version:
                # A new server does not know which rows changed before it came: workers get them all once.
                self.touched.all_new(self.leases.version)
        # Each time: where a plan leaves a lost server out, its backup publishes parts that it only updated before.
        self._published_weights.held, self._published_weights.shown = held, shown
        self.ends.pending = False
        self.leases.give_all_back()

    def _new_version_barrier(self) -> VersionBarrier | None:
        """A barrier where there is no staleness: a loop may be left, or stopped, behind any update, so the next one is
        not made until all workers have seen it."""
        generation = self._member.generation
        return VersionBarrier(generation.plan.world) if self._member.spec.sync.leased_in_step else None

    def settle(self, taken: Sequence[int]) -> None:
        """Apply those of the held items that server 0 has taken, and drop the others."""
        if self._replicated_log is None:
            return
        for arrival in self._replicated_log.settle(taken):
            self._give_back(arrival.rows)
        self.apply_confirmed()

    @property
    def known(self) -> tuple[int, int, int]:
        """The loop's call number, and what this server has heard of it, see `ReplicatedLog`."""
        heard = (
            (self._replicated_log.count, self._replicated_log.last)
            if self._replicated_log is not None
            else (0, 0)
        )
        return self.loop.number, *heard

    def apply_newest_entry(self, count: int, last: int) -> None:
        """Begin a generation of ordered servers: make the updates that any of them has heard of. Gradients that are in
        no update then are computed again, also where some server has them: others may not."""
        if self._replicated_log is None or self._published_weights is None:
            return
        # Here all follow, server 0 too: entries are applied and none is said. `open` sets both again.
        self._leads, self.version_barrier = False, None
        # One at most: server 0 says the next entry only when all have heard of this one.
        if self._replicated_log.count < count:
            self._replicated_log.confirm(last)
        self.apply_confirmed()
        self.settle([])
        applied = self._applied
        self._pending_updates.drop()
        self.leases.go_on(self.leases.version, applied)

    @property
    def _applied(self) -> ItemSet:
        return self.leases.taken.without(self._pending_updates.items)

    @property
    def position(self) -> dict[str, Any]:
        """The loop's position for a checkpoint or a new server, while no lease is out: the updates, and the items in
        them. Gradients for later updates are computed again."""
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
        """Take over a position: the attempt begins with a checkpoint, or this server joins the others."""
        self.leases.go_on(position["version"], ItemSet.decode(position["applied"]))
        self.allowed = self._pending_updates.complete = position["version"]
        self._running = list(position["running"])
        self._updates.load_state_dict(position["updates"])
        if self.ordered:
            self._replicated_log = ReplicatedLog(*position["known"][1:])
            self.ends.over = position["over"]
            self.ends.left = position.get("left", False)  # checkpoints of earlier versions have none

    def allow(self, version: int) -> None:
        """Make the updates that server 0 has made, whose gradients are all here too. Ordered servers learn of them by
        entries instead."""
        if not self.ordered:
            self.allowed = max(self.allowed, version)
            self.update_what_is_due()

    # --- inside one -----------------------------------------------------------------------------------------------

    def count(self, arrival: QueuedPush) -> None:
        """Decide on a push, and make the updates that are due with it."""
        push, leases = arrival.push, self.leases
        self._naming.hear(self._member.generation.plan.members[arrival.worker], push, arrival.extras.names)
        if self.version_barrier is not None:
            self.version_barrier.here(arrival.worker, push.version)
        if self._replicated_log is not None and not self._leads:
            arrival.verdict = self._hold(arrival, self._replicated_log)
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
        # Last: a push on which an update failed or broke gets no receipt.
        arrival.verdict = verdict

    def confirm(self, entry: int) -> None:
        """Record an entry of server 0."""
        assert self._replicated_log is not None
        self._replicated_log.confirm(entry)

    def look(self) -> None:
        """Check whether the loop has ended, which server 0 alone decides."""
        if self._leads:
            self.ends.look()

    def apply_confirmed(self) -> bool:
        """Apply the held items that server 0 has taken. Returns whether there were any."""
        due = self._replicated_log.due() if self._replicated_log is not None else []
        for entry, arrival in due:
            if arrival is not None:
                self.leases.follow(entry)
                self._pending_updates.add(arrival)
            elif entry == UPDATE:
                self.allowed = self.leases.version + 1
            else:
                self.ends.over = True
                self.close()
            self.update_what_is_due()
        return bool(due)

    def update_what_is_due(self) -> bool:
        """Make the updates that are due; other servers wait for server 0's word, so that all stand at the same clock if
        the generation breaks. Returns whether there were any."""
        before = self.leases.version
        while self.leases.due and (self._free or self.leases.version < self.allowed):
            if self.ordered and not self._each_alone and self.leases.version >= self.allowed:
                # `_enter` comes back here once all have heard of it; then `allowed` lets the update be made.
                self._enter(UPDATE)
            else:
                self._update()
        return self.leases.version > before

    def finish(self) -> None:
        """Finish after every worker has left. Raises ExchangeBroken."""
        self.apply_confirmed()
        if self.ordered and self._leads and self.ends.over:
            # Whoever is server 0 after a loss has to know that the loop is over, and lease nothing.
            self._enter(CLOSE)
        self.close()

    def close(self) -> None:
        """Commit what is applied since the last step as a step, if a short one, where the loop was left by `break`."""
        if self.ends.over and self._running:
            self._close_step()

    def _take(self, arrival: QueuedPush) -> None:
        if self.ordered and self._replicated_log is not None:
            self._replicated_log.hold(arrival)
            self._enter(arrival.push.item)
            return
        self._pending_updates.add(arrival)
        with suppress(ExchangeBroken):  # the generation is over: in the next one all ask what is taken
            self._tell(arrival.push.item)

    def _enter(self, entry: int) -> None:
        """Tell an entry, and apply it once all servers have heard of it. Raises ExchangeBroken: then
        `apply_newest_entry` decides whether it happens."""
        assert self._communicator is not None
        assert self._replicated_log is not None
        self._replicated_log.confirm(entry)
        self._communicator.wait(self._tell(entry))
        self.apply_confirmed()

    def _hold(self, arrival: QueuedPush, replicated_log: ReplicatedLog) -> PushVerdict:
        if arrival.push.item in self.leases.taken:
            self._give_back(arrival.rows)
            return PushVerdict.REPEATED
        if (other := replicated_log.hold(arrival)) is not None:
            self._give_back(other.rows)
        return PushVerdict.REPEATED if other is arrival else PushVerdict.TAKEN

    @property
    def _free(self) -> bool:
        """Whether an update that is due may be made at once."""
        if self.version_barrier is not None:
            return self.version_barrier.all_at(self.leases.version)
        return self._leads or self._each_alone

    def _give_back(self, rows: list[Tensor]) -> None:
        assert self._rows is not None
        self._rows.give_back(rows)

    def _update(self) -> None:
        leases, gathered = self.leases, self._pending_updates.take()
        self._running += self._updates.make(gathered, leases.version, self.published_weights)
        # Only now: the update was made at the version before.
        leases.advance()
        self.touched.update(gathered.total.tables, leases.version)
        if gathered.moves:
            self._pending_updates.follow(self._member.buffers.committed_bytes())
        if self.steps > self._member.progress.calls.offset:
            self._close_step()

    def _close_step(self) -> None:
        counted, self._running = self._running, []
        self._committed(counted, self._naming.names)


Tell = Callable[[int], list[Ticket]]
"""The way to tell other servers an entry, see `ReplicatedLog`, or `END`: there are no more."""


def tell_nobody(_: int) -> list[Ticket]:
    return []
