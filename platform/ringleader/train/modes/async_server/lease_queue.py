"""The lease queue that asynchronous modes keep: which worker computes which item of a loop, and when an update is due.
Pure.

An item is one logical shard's rows of one batch, numbered offset * L + shard. Items are leased in ascending order; an
item that comes back unused goes to the front. An item is taken once: whatever else is pushed under its number is a
replay.
"""

import heapq
from collections import Counter
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol

from ringleader.spec.sync import Sync
from ringleader.train.modes.items import ItemSet


class PushVerdict(IntEnum):
    """The verdict on a push: it counts; its item counts already; it came too late for its update."""

    TAKEN = 0
    REPEATED = 1
    REFUSED = 2


@dataclass(frozen=True, slots=True)
class ItemLease:
    """An item leased to a worker.

    Attributes:
        clock: the update that it is meant for, counted from the loop's start.
        version: how many updates there were when it was leased.
    """

    item: int
    worker: int
    clock: int
    version: int


@dataclass(frozen=True, slots=True)
class LoopItems:
    """The items of a loop: all L of every batch but the last, which may be short.

    Attributes:
        steps: batches of the loop.
        last: the shards that have rows in the last one.
    """

    steps: int
    shards: int
    last: tuple[int, ...]

    @property
    def total(self) -> int:
        return (self.steps - 1) * self.shards + len(self.last)

    def present(self, offset: int) -> tuple[int, ...]:
        """The shards that have rows in a batch, ascending."""
        return self.last if offset == self.steps - 1 else tuple(range(self.shards))

    def count(self, offset: int) -> int:
        """The number of items in a batch."""
        return len(self.last) if offset == self.steps - 1 else self.shards

    def steps_within(self, items: int) -> int:
        """The number of whole batches that so many items make."""
        return self.steps if items >= self.total else items // self.shards

    def after(self, item: int) -> int | None:
        """The lowest item above the given one."""
        offset, shard = divmod(item + 1, self.shards)
        for here in range(offset, self.steps):
            for found in self.present(here):
                if here > offset or found >= shard:
                    return here * self.shards + found
        return None


class LeasePolicy(Protocol):
    """A mode's rules: whether an item may be leased, and which pushes make an update."""

    def clock(self, leases: "LeaseQueue", item: int) -> int:
        """The update that an item belongs to, if it is leased, or comes in, now."""

    def admits(self, leases: "LeaseQueue", item: int, worker: int) -> bool:
        """Whether the item may be leased to the worker now."""

    def in_time(self, leases: "LeaseQueue", version: int) -> bool:
        """Whether a gradient computed at that version still counts."""

    def due(self, leases: "LeaseQueue") -> bool:
        """Whether the next update has all that it is made of."""


@dataclass(frozen=True, slots=True)
class AsyncPolicy:
    """`async`: every item is an update."""

    def clock(self, leases: "LeaseQueue", item: int) -> int:
        return leases.version

    def admits(self, leases: "LeaseQueue", item: int, worker: int) -> bool:
        return True

    def in_time(self, leases: "LeaseQueue", version: int) -> bool:
        return True

    def due(self, leases: "LeaseQueue") -> bool:
        return len(leases.taken) > leases.version


@dataclass(frozen=True, slots=True)
class BoundedStaleness:
    """`ssp`: clock c is the update of batch c; its items are computed at version c - staleness or newer."""

    staleness: int

    def clock(self, leases: "LeaseQueue", item: int) -> int:
        return item // leases.batches.shards

    def admits(self, leases: "LeaseQueue", item: int, worker: int) -> bool:
        return leases.version >= self.clock(leases, item) - self.staleness

    def in_time(self, leases: "LeaseQueue", version: int) -> bool:
        return True

    def due(self, leases: "LeaseQueue") -> bool:
        clock = leases.version
        return clock < leases.batches.steps and leases.arrived[clock] == leases.batches.count(clock)


@dataclass(frozen=True, slots=True)
class BackupWorkers:
    """Backup workers: update v is made of the first n items computed at version v, n = items of batch v; up to `spare`
    more are under way. A later push is refused, and its item can be leased again as soon as the update is made.

    Chen, Pan, Monga, Bengio and Jozefowicz, "Revisiting distributed synchronous SGD", 2016 (there N + b workers, one
    gradient each, of which the first N count). No update waits for the `spare` workers that hold most leases, unless
    they hold all that is left of the loop.
    """

    spare: int

    def clock(self, leases: "LeaseQueue", item: int) -> int:
        return leases.version

    def admits(self, leases: "LeaseQueue", item: int, worker: int) -> bool:
        version = leases.version
        if version >= leases.batches.steps:
            return False
        wanted, leased = leases.batches.count(version), Counter(lease.worker for lease in leases.out.values())
        begun = leases.arrived[version] + leased.total()
        if begun < wanted + self.spare:
            return True
        # A worker may hold two, a push on its way and the next item, and be late with both. More than n + spare are
        # begun only if the update would else wait for the `spare` other workers that hold most.
        others = sorted((count for one, count in leased.items() if one != worker), reverse=True)
        return begun - sum(others[: self.spare]) < wanted

    def in_time(self, leases: "LeaseQueue", version: int) -> bool:
        return version == leases.version

    def due(self, leases: "LeaseQueue") -> bool:
        clock = leases.version
        return clock < leases.batches.steps and leases.arrived[clock] == leases.batches.count(clock)


def policy_of(sync: Sync) -> LeasePolicy:
    """The rules that a job asks for."""
    if sync.consistency == "async":
        return AsyncPolicy()
    # Without a bound nothing may be stale: then `ssp` makes the updates of synchronous servers.
    return (
        BackupWorkers(sync.backup_workers) if sync.backup_workers else BoundedStaleness(sync.staleness or 0)
    )


class LeaseQueue:
    """The queue of one loop. Its owner calls `advance` once it has made the update that is due.

    Attributes:
        version: updates made.
        taken: items whose push counts.
        arrived: taken items by the update that they are part of.
        out: the leases that workers hold, by item.
    """

    def __init__(self, batches: LoopItems, discipline: LeasePolicy) -> None:
        self.batches = batches
        self.discipline = discipline
        self.version = 0
        self.taken = ItemSet()
        self.arrived: Counter[int] = Counter()
        self.out: dict[int, ItemLease] = {}
        self._returned: list[int] = []
        self._fresh = batches.after(-1)

    @property
    def each_alone(self) -> bool:
        """Whether every item is an update by itself."""
        return isinstance(self.discipline, AsyncPolicy)

    def steps_in(self, updates: int) -> int:
        """The number of steps that are complete with so many updates."""
        return self.batches.steps_within(updates) if self.each_alone else updates

    @property
    def due(self) -> bool:
        return self.discipline.due(self)

    @property
    def exhausted(self) -> bool:
        """Whether every item is in an update."""
        return len(self.taken) == self.batches.total and not self.due

    @property
    def next(self) -> int | None:
        """The item that is leased next; None when all are leased or taken."""
        return self._returned[0] if self._returned else self._fresh

    def go_on(self, version: int, taken: ItemSet) -> None:
        """Set the position: `version` updates are made, of the items `taken`; nothing is leased, nothing is pending."""
        self.version, self.taken = version, taken.copy()
        self.arrived.clear()
        self.out.clear()
        ahead = (n for n in taken.missing(taken.end) if n % self.batches.shards in self._present(n))
        # Ascending, which is a heap already.
        self._returned = list(ahead)
        self._fresh = self.batches.after(taken.end - 1)

    def _present(self, item: int) -> tuple[int, ...]:
        return self.batches.present(item // self.batches.shards)

    def lease(self, worker: int) -> ItemLease | None:
        """Lease the next item to a worker. Returns None as long as there is none that it may have."""
        item = self.next
        if item is None or not self.discipline.admits(self, item, worker):
            return None
        if self._returned:
            heapq.heappop(self._returned)
        else:
            self._fresh = self.batches.after(item)
        lease = ItemLease(item, worker, self.discipline.clock(self, item), self.version)
        self.out[item] = lease
        return lease

    def push(self, item: int, version: int) -> PushVerdict:
        """Decide on a gradient of `item` that was computed at `version`. Only a leased item counts."""
        if item in self.taken:
            return PushVerdict.REPEATED
        # Not leased: the item is in the queue again, and would be computed and counted a second time.
        if item not in self.out or not self.discipline.in_time(self, version):
            return PushVerdict.REFUSED
        del self.out[item]
        return self.follow(item)

    def follow(self, item: int) -> PushVerdict:
        """Count an item where another server keeps the queue: whatever is not counted yet counts."""
        if not self.taken.add(item):
            return PushVerdict.REPEATED
        self.arrived[self.discipline.clock(self, item)] += 1
        return PushVerdict.TAKEN

    def advance(self) -> None:
        """Count the update that was due as made; leases whose gradients would come too late from now on are
        returned."""
        assert self.due, "no update is due"
        self.version += 1
        # Returned now, not when their pushes are refused: waiting workers take these items first.
        for lease in list(self.out.values()):
            if not self.discipline.in_time(self, lease.version):
                self._return(lease.item)

    def give_back(self, worker: int) -> None:
        """Return this worker's leased items to the front of the queue."""
        for lease in [lease for lease in self.out.values() if lease.worker == worker]:
            self._return(lease.item)

    def give_all_back(self) -> None:
        """Return all leased items: a new generation begins, whose workers hold none."""
        for item in list(self.out):
            self._return(item)

    def _return(self, item: int) -> None:
        del self.out[item]
        # A heap: returned items come in ascending order too, so that the set of taken items has few gaps.
        heapq.heappush(self._returned, item)


class VersionBarrier:
    """The versions that one generation's workers have gone on from, by rank: where none may be ahead of the others, an
    update waits for all."""

    def __init__(self, workers: int) -> None:
        self._at = dict.fromkeys(range(workers), -1)

    def here(self, worker: int, version: int) -> bool:
        """Record that the worker asks for an item, or pushes one, with the weights of that version. Returns whether it
        is news."""
        news = version > self._at[worker]
        # Requests and pushes come on two threads: an older version may be heard of after a newer one.
        self._at[worker] = max(version, self._at[worker])
        return news

    def all_at(self, version: int) -> bool:
        return min(self._at.values()) >= version
