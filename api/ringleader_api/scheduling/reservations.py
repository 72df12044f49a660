"""Promised room that is not taken yet: wherever the cluster puts those workers, every gang must find its own.

The cluster, not the scheduler, chooses the nodes of a gang, and between a decision and the choice a worker may land
where it breaks up the room of another shape: one of 1 CPU on the only node with 4 free. So no more is promised in one
go than fits for certain. A worker put on a node takes room for at most `loss` workers of another shape; as long as for
each promised shape the room is no less than the losses by all that is promised, every order and every choice of nodes
works out. For workers of one shape this is exact; with several it may hold a gang back until the places are known.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ringleader_api.scheduling.needs import WorkerNeed, loss
from ringleader_api.scheduling.room import FreeRoom, Spots, together
from ringleader_api.scheduling.snapshot import Apart, Claim, ClusterSnapshot

MOST_SHAPES = 64
"""The most shapes of worker promised room at a time, so that a pass stays short."""


class Reservations:
    """The promises made in one pass. `placed`: the room beside the workers that have their places; it does not
    change."""

    def __init__(self, placed: FreeRoom) -> None:
        self._placed = placed
        self._fits: dict[WorkerNeed, int] = {}
        self._reserved: Counter[WorkerNeed] = Counter()
        self._losses: dict[WorkerNeed, int] = {}
        self._closed = False

    def most(self, need: WorkerNeed, count: int) -> int:
        """The number, up to `count`, of such workers that can be promised room besides."""
        # A tight gang of two shapes was promised its room: any worker beside it could break that up.
        if self._closed:
            return 0
        if need not in self._reserved and len(self._reserved) >= MOST_SHAPES:
            return 0
        allowed = min(count, max(0, self._room(need) - self._lost(need)))
        for shape, lost in self._losses.items():
            each = loss(need, shape)
            # The room of each promised shape bounds this one, too: each such worker may cost it `each` places.
            if each and shape != need and (left := self._room(shape) - lost) >= 0:
                allowed = min(allowed, left // each)
        return allowed

    def gang(self, claim: Claim) -> bool:
        """Whether the whole gang can be promised room."""
        if claim.apart is None:
            return self.most(claim.need, claim.gang) >= claim.gang
        if self._sure(claim, claim.apart):
            return True
        # Among themselves the parts of a gang are placed at once, and with care.
        nobody = not self._closed and not any(self._reserved.values())
        return nobody and together(self._placed.copy(), claim.need, claim.gang, claim.apart) is not None

    def add_gang(self, need: WorkerNeed, count: int, apart: Apart) -> None:
        """Promise room to a gang of two shapes. Where some choice of nodes would not work out for both, nobody else
        gets a promise beside it."""
        self.add(need, count)
        self.add(*apart)
        tight = any(self._room(shape) < self._losses[shape] for shape in (need, apart[0]))
        if tight and together(self._placed.copy(), need, count, apart) is not None:
            # Until it has its places, a worker that landed between could break up its room.
            self._closed = True

    def _sure(self, claim: Claim, apart: Apart) -> bool:
        """Whether the gang finds room in every order and with every choice of nodes."""
        if self.most(*apart) < apart[1]:
            return False
        beside = Reservations(self._placed)
        # A copy to try the servers on; `_fits` is shared, since the placed room does not change.
        beside._fits, beside._reserved, beside._losses = self._fits, self._reserved.copy(), dict(self._losses)
        beside.add(*apart)
        return beside.most(claim.need, claim.gang) >= claim.gang

    def add(self, need: WorkerNeed, count: int) -> None:
        """Promise room to `count` workers; a negative number takes it back. Promising more than fit harms nobody."""
        before = min(self._reserved[need], self._room(need))
        # Before its own are counted: from here on the sum is kept up to date instead of being made anew.
        self._losses.setdefault(need, self._lost(need))
        self._reserved[need] += count
        more = min(self._reserved[need], self._room(need)) - before
        for shape in self._losses:
            self._losses[shape] += more * loss(need, shape)

    def _room(self, need: WorkerNeed) -> int:
        if need not in self._fits:
            self._fits[need] = sum(self._placed.fit(need, index) for index in range(len(self._placed)))
        return self._fits[need]

    def _lost(self, need: WorkerNeed) -> int:
        if need in self._losses:
            return self._losses[need]
        return sum(min(n, self._room(shape)) * loss(shape, need) for shape, n in self._reserved.items())


@dataclass(frozen=True, slots=True)
class HeldPlaces:
    """The places of jobs at work, by job id: workers, with the servers of the same size, and servers of other
    shapes."""

    workers: dict[str, Spots] = field(default_factory=dict)
    servers: dict[str, Spots] = field(default_factory=dict)

    def apart(self, claim: Claim) -> list[tuple[WorkerNeed, Spots]]:
        """The servers that leave with the whole job, and their places."""
        return [(claim.apart[0], self.servers[claim.job_id])] if claim.apart else []


@dataclass(slots=True)
class _Part:
    """The workers or the servers of one shape of a job at work.

    Attributes:
        of: the places of all jobs, into which its own are entered.
        left: the number without a known place.
        placed: (id of the node, how many) of those that have; None: nobody knows.
    """

    of: dict[str, Spots]
    need: WorkerNeed
    left: int
    placed: Sequence[tuple[str, int]] | None
    spots: Spots = field(default_factory=list)

    def settle(self, placed: Sequence[tuple[str, int]], index: Mapping[str, int]) -> None:
        """Settle those whose places are known, on nodes that are there, up to what the job still holds."""
        for node, number in placed:
            # A node may be gone. What a job lets go of comes last, and is left out once all that it keeps is settled.
            if node in index and (here := min(number, self.left)):
                self.spots.append((index[node], here))
                self.left -= here


def taken(snapshot: ClusterSnapshot) -> tuple[FreeRoom, HeldPlaces, Reservations]:
    """The room beside the admitted jobs, the places of each, and what they have been promised."""
    free = FreeRoom([node.without(snapshot.others.get(node.id)) for node in snapshot.nodes])
    index = {node.id: number for number, node in enumerate(snapshot.nodes)}
    held = HeldPlaces()
    waiting: list[list[_Part]] = []
    nowhere: list[tuple[WorkerNeed, int]] = []
    for claim in snapshot.admitted:
        parts = [_Part(held.workers, claim.need, claim.holds + claim.alike, claim.placed)]
        if claim.apart is not None:
            parts.append(_Part(held.servers, *claim.apart, claim.servers_placed))
        for part in parts:
            part.of[claim.job_id] = part.spots
            if part.placed is None:
                # Places unknown: assumed to be where first fit would put them.
                part.spots += free.take(part.need, part.left) or []
                nowhere.append((part.need, part.left - sum(number for _, number in part.spots)))
            else:
                part.settle(part.placed, index)
                free.put(part.need, part.spots)
        waiting.append([part for part in parts if part.placed is not None and part.left])
    # The cluster put them where first fit, in the order of this pass, did not: they hold their room all the same.
    for need, count in nowhere:
        free.spread(need, count)
    # Only now: every known place must be off the free room before any of it is promised.
    reservations = Reservations(free.copy())
    for left in waiting:
        match [(part.need, part.left) for part in left]:
            case [(need, count), apart]:
                reservations.add_gang(need, count, apart)
            case [(need, count)]:
                reservations.add(need, count)
        for part in left:
            part.spots += free.take(part.need, part.left) or []
    return free, held, reservations
