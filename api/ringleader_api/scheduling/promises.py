"""Room that has been promised and not yet taken: wherever the cluster puts those workers, every gang must find its own.

The cluster, not the scheduler, chooses the nodes of a gang, and between a decision and the choice a worker may land
where it breaks up the room of another shape: one of 1 CPU on the only node with 4 free. So no more is promised in one
go than fits for certain. A worker put on a node takes room for at most `loss` workers of another shape; as long as for
each promised shape the room is no less than the losses by all that is promised, every order and every choice of nodes
works out. For workers of one shape this is exact; with several it may hold a gang back until the places are known.
"""

from collections import Counter

from ringleader_api.scheduling.places import Need, loss
from ringleader_api.scheduling.room import Room, Spots
from ringleader_api.scheduling.snapshot import Snapshot

MOST_SHAPES = 64
"""Shapes of worker to which room is promised at a time: a pass stays short."""


class Promises:
    """`placed`: the room that is left beside those who have their places. It is not changed any more."""

    def __init__(self, placed: Room) -> None:
        self._placed = placed
        self._fits: dict[Need, int] = {}
        self._promised: Counter[Need] = Counter()
        self._losses: dict[Need, int] = {}

    def most(self, need: Need, count: int) -> int:
        """To how many of `count` such workers room can be promised besides."""
        if need not in self._promised and len(self._promised) >= MOST_SHAPES:
            return 0
        allowed = min(count, max(0, self._room(need) - self._lost(need)))
        for shape, lost in self._losses.items():
            each = loss(need, shape)
            if each and shape != need and (left := self._room(shape) - lost) >= 0:
                allowed = min(allowed, left // each)
        return allowed

    def add(self, need: Need, count: int) -> None:
        """Promise room to `count` workers; negative takes it back. More than fit do nobody harm."""
        before = min(self._promised[need], self._room(need))
        self._losses.setdefault(need, self._lost(need))
        self._promised[need] += count
        more = min(self._promised[need], self._room(need)) - before
        for shape in self._losses:
            self._losses[shape] += more * loss(need, shape)

    def _room(self, need: Need) -> int:
        if need not in self._fits:
            self._fits[need] = sum(self._placed.fit(need, index) for index in range(len(self._placed)))
        return self._fits[need]

    def _lost(self, need: Need) -> int:
        if need in self._losses:
            return self._losses[need]
        return sum(min(n, self._room(shape)) * loss(shape, need) for shape, n in self._promised.items())


def taken(snapshot: Snapshot) -> tuple[Room, dict[str, Spots], Promises]:
    """The room that admitted jobs leave, where each of them is, by id, and what they have been promised."""
    free = Room([node.without(snapshot.others.get(node.id)) for node in snapshot.nodes])
    index = {node.id: number for number, node in enumerate(snapshot.nodes)}
    held: dict[str, Spots] = {}
    waiting: list[tuple[str, Need, int]] = []
    for claim in snapshot.admitted:
        left = claim.holds + claim.servers
        if claim.placed is None:
            held[claim.job_id] = free.take(claim.need, left) or []
            continue
        spots = held[claim.job_id] = []
        for node, number in claim.placed:
            if node in index and (here := min(number, left)):
                spots.append((index[node], here))
                left -= here
        free.put(claim.need, spots)
        waiting.append((claim.job_id, claim.need, left))
    promises = Promises(free.copy())
    for job_id, need, left in waiting:
        if left:
            promises.add(need, left)
            held[job_id] += free.take(need, left) or []
    return free, held, promises
