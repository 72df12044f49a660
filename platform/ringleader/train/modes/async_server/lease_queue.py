"""Who computes which item of a loop, and when an update is due: the queue that asynchronous modes keep. Pure.

An item is one logical shard's rows of one batch, numbered offset * L + shard. Items are leased in ascending order; what
comes back unused goes to the front. An item is taken once: whatever else is pushed under its number is a replay.
"""

import heapq
from collections import Counter
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol

from ringleader.train.modes.items import ItemSet


class PushVerdict(IntEnum):
    """What becomes of a push: it counts; its item counts already; it came too late for its update."""

    TAKEN = 0
    REPEATED = 1
    REFUSED = 2


@dataclass(frozen=True, slots=True)
class ItemLease:
    """An item in the hands of a worker.

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
        """Items of a batch."""
        return len(self.last) if offset == self.steps - 1 else self.shards

    def steps_within(self, items: int) -> int:
        """Whole batches that so many items make."""
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
    """When an item may be leased, and which pushes make an update."""

    def clock(self, leases: "LeaseQueue", item: int) -> int:
        """The update that an item is part of, if it is leased, or comes in, now."""

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
    """Backup workers: update v is made of the first n items computed at version v, n = items of batch v; up to
    `spare` more are under way. What comes later is refused, and its item is anybody's as soon as the update is made.

    Chen, Pan, Monga, Bengio and Jozefowicz, "Revisiting distributed synchronous SGD", 2016 (there N + b workers, one
    gradient each, of which the first N count). No update waits for the `spare` workers that have most in hand, unless
    they have all that is left of the loop.
    """

    spare: int

    def clock(self, leases: "LeaseQueue", item: int) -> int:
        return leases.version

    def admits(self, leases: "LeaseQueue", item: int, worker: int) -> bool:
        version = leases.version
        if version >= leases.batches.steps:
            return False
        wanted, hands = leases.batches.count(version), Counter(lease.worker for lease in leases.out.values())
        begun = leases.arrived[version] + hands.total()
        if begun < wanted + self.spare:
            return True
        # One may have two in hand, a push on its way and the next item: all of it may be late.
        others = sorted((count for one, count in hands.items() if one != worker), reverse=True)
        return begun - sum(others[: self.spare]) < wanted

    def in_time(self, leases: "LeaseQueue", version: int) -> bool:
        return version == leases.version

    def due(self, leases: "LeaseQueue") -> bool:
        clock = leases.version
        return clock < leases.batches.steps and leases.arrived[clock] == leases.batches.count(clock)


class LeaseQueue:
    """The queue of one loop. Whoever keeps it calls `advance` once it has made the update that is due.

    Attributes:
        version: updates made.
        taken: items whose push counts.
        arrived: taken items by the update that they are part of.
        out: the leases in workers' hands, by item.
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
    def due(self) -> bool:
        return self.discipline.due(self)

    @property
    def exhausted(self) -> bool:
        """Every item is in an update."""
        return len(self.taken) == self.batches.total and not self.due

    @property
    def next(self) -> int | None:
        """The item that is leased next; None when all are out or taken."""
        return self._returned[0] if self._returned else self._fresh

    def go_on(self, version: int, taken: ItemSet) -> None:
        """So many updates are made, of these items, and nothing else is here or in anybody's hands."""
        self.version, self.taken = version, taken.copy()
        self.arrived.clear()
        self.out.clear()
        ahead = (n for n in taken.missing(taken.end) if n % self.batches.shards in self._present(n))
        self._returned = list(ahead)
        self._fresh = self.batches.after(taken.end - 1)

    def _present(self, item: int) -> tuple[int, ...]:
        return self.batches.present(item // self.batches.shards)

    def lease(self, worker: int) -> ItemLease | None:
        """The next item for a worker; None as long as there is none that it may have."""
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
        """A gradient of `item` came in, computed at `version`. Only what is out can come in."""
        if item in self.taken:
            return PushVerdict.REPEATED
        if item not in self.out or not self.discipline.in_time(self, version):
            return PushVerdict.REFUSED
        del self.out[item]
        return self.follow(item)

    def follow(self, item: int) -> PushVerdict:
        """The same where somebody else keeps the queue: whatever is not there yet counts."""
        if not self.taken.add(item):
            return PushVerdict.REPEATED
        self.arrived[self.discipline.clock(self, item)] += 1
        return PushVerdict.TAKEN

    def advance(self) -> None:
        """The update that was due is made; whose gradient comes too late from now on has its item no longer."""
        assert self.due, "no update is due"
        self.version += 1
        for lease in list(self.out.values()):
            if not self.discipline.in_time(self, lease.version):
                self._return(lease.item)

    def give_back(self, worker: int) -> None:
        """What this worker has in hand goes back to the front."""
        for lease in [lease for lease in self.out.values() if lease.worker == worker]:
            self._return(lease.item)

    def give_all_back(self) -> None:
        """A new generation: nobody has anything in hand."""
        for item in list(self.out):
            self._return(item)

    def _return(self, item: int) -> None:
        del self.out[item]
        heapq.heappush(self._returned, item)
