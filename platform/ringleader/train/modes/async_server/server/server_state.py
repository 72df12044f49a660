"""A server's state in one loop: which items are in, the pending sums, the updates made. It outlives generations.

Used by the training thread, or by whoever has the server queue's lock.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from ringleader.comm.communicator import Communicator, Ticket
from ringleader.errors import ExchangeBroken
from ringleader.train.generation.member import Member
from ringleader.train.modes.async_server.lease_queue import (
    LeaseQueue,
    LoopItems,
    PushVerdict,
    VersionBarrier,
    policy_of,
)
from ringleader.train.modes.async_server.messages import CLOSE, UPDATE
from ringleader.train.modes.async_server.server.apply_updates import ServerUpdates
from ringleader.train.modes.async_server.server.committed_step import StepCommits
from ringleader.train.modes.async_server.server.endpoint import QueuedPush, ReceiveBuffers
from ringleader.train.modes.async_server.server.lease_end import LeaseEnd
from ringleader.train.modes.async_server.server.metric_names import MetricNaming
from ringleader.train.modes.async_server.server.published_weights import PublishedWeights
from ringleader.train.modes.async_server.server.replicated_log import ReplicatedLog
from ringleader.train.modes.async_server.server_share import ServerShare
from ringleader.train.modes.batch_loop import BatchLoop
from ringleader.train.modes.items import ItemSet
from ringleader.train.rows.order.batch_sizes import present_shards
from ringleader.train.rows.order.cursor import Epoch


def tell_nobody(_: int) -> list[Ticket]:
    return []


@dataclass(frozen=True, slots=True)
class ServerSeat:
    """A server's seat in one generation.

    Attributes:
        communicator: None for a worker that is its own server.
        rows: memory for the gradients of what it updates.
        held: what it updates.
        shown: what workers pull of it.
        leads: it keeps the queue.
        version_barrier: which worker has seen which update, where it leads and no worker may be ahead of the others.
        tell: tells the other servers an entry of the replicated log, or `END`: there are no more.
    """

    communicator: Communicator | None
    rows: ReceiveBuffers
    held: ServerShare
    shown: ServerShare
    leads: bool
    version_barrier: VersionBarrier | None = None
    tell: Callable[[int], list[Ticket]] = tell_nobody

    def check(self) -> None:
        """Raise ExchangeBroken once the generation is over."""
        if self.communicator is not None:
            self.communicator.check()

    def spread(self, entry: int) -> None:
        """Tell the other servers an entry, and wait until they have heard of it. Raises ExchangeBroken."""
        tickets = self.tell(entry)
        if self.communicator is not None:
            self.communicator.wait(tickets)


class ServerState:
    """A server's state in one loop; `open` begins each generation.

    Attributes:
        seat: this server's in the running generation.
        base: global steps before the loop.
        ordered: all servers make the same updates in the same order, see `ReplicatedLog`.
        allowed: updates that server 0 has certainly made.
        published_weights: what this server hands out.
        staleness: gradients so far, by the number of versions between their pull and their update.

    Args:
        blocks: of the norms that come with each push; 0 where this server sees whole gradients.
    """

    def __init__(
        self, member: Member, loop: BatchLoop, seat: ServerSeat, commits: StepCommits, blocks: int
    ) -> None:
        self._member = member
        self.loop = loop
        self.seat = seat
        self.base = member.progress.step - member.progress.calls.offset
        self.leases = LeaseQueue(_items_of(loop.epoch), policy_of(member.spec.sync))
        self.ends = LeaseEnd(self.leases)
        self.ordered = bool(member.spec.sync.server_backups) and member.serves
        self.allowed = 0
        self.published_weights = PublishedWeights(member, seat.held, seat.shown)
        self.staleness = Counter(dict(enumerate(member.progress.staleness)))
        self._commits = commits
        self._naming = MetricNaming()
        self._updates = ServerUpdates(
            member, loop, self.leases, seat.rows.give_back, blocks=blocks, staleness=self.staleness
        )
        # Kept over generations: what is held now is settled when the next one begins.
        self._replicated_log = ReplicatedLog()

    @property
    def complete(self) -> int:
        """Steps of this loop whose gradients are all here, applied or not; at server 0 those that it has applied."""
        if self.seat.leads or self.ordered:
            return self.steps
        if self.leases.each_alone:
            return self.leases.steps_in(self.leases.version + len(self.held))
        return self._updates.pending.complete

    @property
    def held(self) -> list[int]:
        """Items whose gradients are here, and not known to be taken by server 0."""
        return self._replicated_log.items

    @property
    def steps(self) -> int:
        """Steps of this loop that are complete here."""
        return self.leases.steps_in(self.leases.version)

    # --- between generations --------------------------------------------------------------------------------------

    def open(self, seat: ServerSeat) -> None:
        """Begin a generation, in which no worker holds a lease yet."""
        self.seat = seat
        self.published_weights.open(seat.held, seat.shown)
        self.ends.open()
        self.leases.give_all_back()

    def settle(self, taken: Sequence[int]) -> None:
        """Apply those of the held items that server 0 has taken, and drop the others."""
        for arrival in self._replicated_log.settle(taken):
            self.seat.rows.give_back(arrival.rows)
        self.apply_confirmed()

    @property
    def known(self) -> tuple[int, int, int]:
        """The loop's call number, and what this server has heard of it, see `ReplicatedLog`."""
        return self.loop.number, self._replicated_log.count, self._replicated_log.last

    def apply_newest_entry(self, count: int, last: int) -> None:
        """Begin a generation of ordered servers: make the updates that any of them has heard of. Gradients that are in
        no update then are computed again, also where some server has them: others may not."""
        # Here all follow, server 0 too: entries are applied and none is said.
        self.seat = replace(self.seat, leads=False, version_barrier=None)
        # One at most: server 0 says the next entry only when all have heard of this one.
        if self._replicated_log.count < count:
            self._replicated_log.confirm(last)
        self.apply_confirmed()
        self.settle([])
        applied = self._applied
        self._updates.pending.drop()
        self.leases.go_on(self.leases.version, applied)

    @property
    def _applied(self) -> ItemSet:
        return self.leases.taken.without(self._updates.pending.items)

    @property
    def position(self) -> dict[str, Any]:
        """The loop's position for a checkpoint or a new server, while no lease is out: the updates, and the items in
        them. Gradients for later updates are computed again."""
        return {
            "call": self.loop.number,
            "version": self.leases.version,
            "applied": self._applied.encode(),
            "running": list(self._updates.applied),
            "updates": self._updates.state_dict(),
            "known": self.known,
            "over": self.ends.over,
            "left": self.ends.left,
        }

    def go_on(self, position: dict[str, Any]) -> None:
        """Take over a position: the attempt begins with a checkpoint, or this server joins the others."""
        self.leases.go_on(position["version"], ItemSet.decode(position["applied"]))
        self._updates.pending.go_on(position["version"])
        self.allowed = position["version"]
        self._updates.load_state_dict(position["updates"], applied=position["running"])
        if self.ordered:
            self._replicated_log = ReplicatedLog(*position["known"][1:])
            # Checkpoints of earlier versions have no `left`.
            self.ends.go_on(over=position["over"], left=position.get("left", False))
            if self.leases.version:
                # A new server does not know which rows changed before it came: workers get them all once.
                self.published_weights.touched.all_new(self.leases.version)

    def allow(self, version: int) -> None:
        """Make the updates that server 0 has made, whose gradients are all here too."""
        if not self.ordered:  # they learn of updates by entries
            self.hear_of(version)
            self.update_what_is_due()

    def hear_of(self, version: int) -> bool:
        """Record that server 0 has certainly made so many updates. Returns whether that is news."""
        if version <= self.allowed or self.ordered:
            return False
        self.allowed = version
        return True

    # --- inside one -----------------------------------------------------------------------------------------------

    def count(self, arrival: QueuedPush) -> None:
        """Decide on a push, and make the updates that are due with it."""
        push, leases = arrival.push, self.leases
        self._naming.hear(self._member.generation.plan.members[arrival.worker], push, arrival.extras.names)
        if self.seat.version_barrier is not None:
            self.seat.version_barrier.here(arrival.worker, push.version)
        if (self.ordered or self.leases.each_alone) and not self.seat.leads:
            arrival.decide(self._hold(arrival))
            return
        verdict = PushVerdict.REFUSED
        if not self.ends.over:
            verdict = leases.push(push.item, push.version) if self.seat.leads else leases.follow(push.item)
        if push.stop and self.seat.leads:
            self.ends.stop_after(leases.discipline.clock(leases, push.item))
        if verdict is PushVerdict.TAKEN:
            self._take(arrival)
        else:
            self.seat.rows.give_back(arrival.rows)
        self.update_what_is_due()
        self.look()
        # Last: a push on which an update failed or broke gets no receipt.
        arrival.decide(verdict)

    def confirm(self, entry: int) -> None:
        """Record an entry of server 0."""
        self._replicated_log.confirm(entry)

    def look(self) -> None:
        """Check whether the loop has ended, which server 0 alone decides."""
        if self.seat.leads:
            self.ends.look()

    def apply_confirmed(self) -> bool:
        """Apply the held items that server 0 has taken. Returns whether there were any."""
        due = self._replicated_log.due()
        for entry, arrival in due:
            if arrival is not None:
                self.leases.follow(entry)
                self._updates.pending.add(arrival)
            elif entry == UPDATE:
                self.allowed = self.leases.version + 1
            else:
                self.ends.close()
                self.close()
            self.update_what_is_due()
        return bool(due)

    def update_what_is_due(self) -> bool:
        """Make the updates that are due; other servers wait for server 0's word, so that all stand at the same clock if
        the generation breaks. Returns whether there were any."""
        before = self.leases.version
        while self.leases.due and (self._free or self.leases.version < self.allowed):
            if self.ordered and not self.leases.each_alone and self.leases.version >= self.allowed:
                # `_enter` comes back here once all have heard of it; then `allowed` lets the update be made.
                self._enter(UPDATE)
            else:
                self._update()
        return self.leases.version > before

    def finish(self) -> None:
        """Finish after every worker has left. Raises ExchangeBroken."""
        self.apply_confirmed()
        if self.ordered and self.seat.leads and self.ends.over:
            # Whoever is server 0 after a loss has to know that the loop is over, and lease nothing.
            self._enter(CLOSE)
        self.close()

    def close(self) -> None:
        """Commit what is applied since the last step as a step, if a short one, where the loop was left by `break`."""
        if self.ends.over and self._updates.applied:
            self._close_step()

    def _take(self, arrival: QueuedPush) -> None:
        if self.ordered:
            self._replicated_log.hold(arrival)
            self._enter(arrival.push.item)
            return
        self._updates.pending.add(arrival)
        with suppress(ExchangeBroken):  # the generation is over: in the next one all ask what is taken
            self.seat.tell(arrival.push.item)

    def _enter(self, entry: int) -> None:
        """Tell an entry, and apply it once all servers have heard of it. Raises ExchangeBroken: then
        `apply_newest_entry` decides whether it happens."""
        self._replicated_log.confirm(entry)
        self.seat.spread(entry)
        self.apply_confirmed()

    def _hold(self, arrival: QueuedPush) -> PushVerdict:
        repeated = arrival.push.item in self.leases.taken
        other = arrival if repeated else self._replicated_log.hold(arrival)
        if other is not None:
            self.seat.rows.give_back(other.rows)
        return PushVerdict.REPEATED if other is arrival else PushVerdict.TAKEN

    @property
    def _free(self) -> bool:
        """Whether an update that is due may be made at once."""
        if self.seat.version_barrier is not None:
            return self.seat.version_barrier.all_at(self.leases.version)
        return self.seat.leads or self.leases.each_alone

    def _update(self) -> None:
        self._updates.make(self.published_weights)
        if self.steps > self._member.progress.calls.offset:
            self._close_step()

    def _close_step(self) -> None:
        self._commits.commit(self.loop, self._updates.take_step(), self._naming.names)
        # A checkpoint inside a loop needs a moment at which no item is leased.
        if self.seat.leads and self._member.serves and self._member.securing.wanted:
            self.ends.drain()


def _items_of(epoch: Epoch) -> LoopItems:
    # Only the last batch may be short: in all others every shard has rows.
    last = present_shards(epoch.batch_rows(epoch.steps - 1), epoch.shards)
    return LoopItems(epoch.steps, epoch.shards, tuple(sorted(last)))
