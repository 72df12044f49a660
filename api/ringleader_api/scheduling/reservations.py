"""Room that has been promised and not yet taken: wherever the cluster puts those workers, every gang must find its own.

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
"""Shapes of worker to which room is promised at a time: a pass stays short."""


class Reservations:
    """`placed`: the room that is left beside those who have their places. It is not changed any more."""

    def __init__(self, placed: FreeRoom) -> None:
        self._placed = placed
        self._fits: dict[WorkerNeed, int] = {}
        self._promised: Counter[WorkerNeed] = Counter()
        self._losses: dict[WorkerNeed, int] = {}
        self._closed = False

    def most(self, need: WorkerNeed, count: int) -> int:
        """To how many of `count` such workers room can be promised besides."""
        if self._closed:
            return 0
        if need not in self._promised and len(self._promised) >= MOST_SHAPES:
            return 0
        allowed = min(count, max(0, self._room(need) - self._lost(need)))
        for shape, lost in self._losses.items():
            each = loss(need, shape)
            if each and shape != need and (left := self._room(shape) - lost) >= 0:
                allowed = min(allowed, left // each)
        return allowed

    def gang(self, claim: Claim) -> bool:
        """Whether room can be promised to all of a gang."""
        if claim.apart is None:
            return self.most(claim.need, claim.gang) >= claim.gang
        if self._sure(claim, claim.apart):
            return True
        # Among themselves the parts of a gang are placed at once, and with care.
        nobody = not self._closed and not any(self._promised.values())
        return nobody and together(self._placed.copy(), claim.need, claim.gang, claim.apart) is not None

    def add_gang(self, need: WorkerNeed, count: int, apart: Apart) -> None:
        """Promise room to parts of two shapes. Where not every choice of nodes works out for both, others get no
        promise beside it: until it has its places, whoever landed between could break up its room."""
        self.add(need, count)
        self.add(*apart)
        tight = any(self._room(shape) < self._losses[shape] for shape in (need, apart[0]))
        if tight and together(self._placed.copy(), need, count, apart) is not None:
            self._closed = True

    def _sure(self, claim: Claim, apart: Apart) -> bool:
        """Whether every order and every choice of nodes works out."""
        if self.most(*apart) < apart[1]:
            return False
        beside = Reservations(self._placed)
        beside._fits, beside._promised, beside._losses = self._fits, self._promised.copy(), dict(self._losses)
        beside.add(*apart)
        return beside.most(claim.need, claim.gang) >= claim.gang

    def add(self, need: WorkerNeed, count: int) -> None:
        """Promise room to `count` workers; negative takes it back. More than fit do nobody harm."""
        before = min(self._promised[need], self._room(need))
        self._losses.setdefault(need, self._lost(need))
        self._promised[need] += count
        more = min(self._promised[need], self._room(need)) - before
        for shape in self._losses:
            self._losses[shape] += more * loss(need, shape)

    def _room(self, need: WorkerNeed) -> int:
        if need not in self._fits:
            self._fits[need] = sum(self._placed.fit(need, index) for index in range(len(self._placed)))
        return self._fits[need]

    def _lost(self, need: WorkerNeed) -> int:
        if need in self._losses:
            return self._losses[need]
        return sum(min(n, self._room(shape)) * loss(shape, need) for shape, n in self._promised.items())


@dataclass(frozen=True, slots=True)
class HeldPlaces:
    """Where jobs at work are, by their ids: workers, with the servers as big as those, and servers of other shapes."""

    workers: dict[str, Spots] = field(default_factory=dict)
    servers: dict[str, Spots] = field(default_factory=dict)

    def apart(self, claim: Claim) -> list[tuple[WorkerNeed, Spots]]:
        """What goes with the last of a job."""
        return [(claim.apart[0], self.servers[claim.job_id])] if claim.apart else []


@dataclass(slots=True)
class _Part:
    """Workers or servers of one shape of a job at work.

    Attributes:
        of: where they are written down.
        left: so many have no place that is known.
        placed: (id of the node, how many) of those that have; None: nobody knows.
    """

    of: dict[str, Spots]
    need: WorkerNeed
    left: int
    placed: Sequence[tuple[str, int]] | None
    spots: Spots = field(default_factory=list)

    def settle(self, placed: Sequence[tuple[str, int]], index: Mapping[str, int]) -> None:
        """Those with places on nodes that are there have them, as far as the job still holds so many."""
        for node, number in placed:
            if node in index and (here := min(number, self.left)):
                self.spots.append((index[node], here))
                self.left -= here


def taken(snapshot: ClusterSnapshot) -> tuple[FreeRoom, HeldPlaces, Reservations]:
    """The room that admitted jobs leave, where each of them is, and what they have been promised."""
    free = FreeRoom([node.without(snapshot.others.get(node.id)) for node in snapshot.nodes])
    index = {node.id: number for number, node in enumerate(snapshot.nodes)}
    held = HeldPlaces()
    waiting: list[list[_Part]] = []
    for claim in snapshot.admitted:
        parts = [_Part(held.workers, claim.need, claim.holds + claim.alike, claim.placed)]
        if claim.apart is not None:
            parts.append(_Part(held.servers, *claim.apart, claim.servers_placed))
        for part in parts:
            part.of[claim.job_id] = part.spots
            if part.placed is None:
                part.spots += free.take(part.need, part.left) or []
            else:
                part.settle(part.placed, index)
                free.put(part.need, part.spots)
        waiting.append([part for part in parts if part.placed is not None and part.left])
    promises = Reservations(free.copy())
    for left in waiting:
        match [(part.need, part.left) for part in left]:
            case [(need, count), apart]:
                promises.add_gang(need, count, apart)
            case [(need, count)]:
                promises.add(need, count)
        for part in left:
            part.spots += free.take(part.need, part.left) or []
    return free, held, promises
