"""The free room of a cluster during a pass: taken and given back worker by worker, first fit."""

from collections.abc import Sequence
from math import inf

from ringleader_api.scheduling.needs import NodeShape, WorkerNeed, room

Spots = list[tuple[int, int]]
"""(index of the node, how many workers) in the order in which they were put there."""


class FreeRoom:
    """The free room, in counts of workers. Near-linear: for each shape of worker it remembers the first node with room,
    and how many fit at most, for as long as nothing is given back."""

    def __init__(self, nodes: Sequence[NodeShape]) -> None:
        self._nodes = list(nodes)
        self._first: dict[WorkerNeed, int] = {}
        self._most: dict[WorkerNeed, int] = {}

    def copy(self) -> "FreeRoom":
        return FreeRoom(self._nodes)

    def fit(self, need: WorkerNeed, index: int) -> int:
        """The number of such workers that fit on one node now."""
        return room(self._nodes[index], need)

    def fits(self, need: WorkerNeed, count: int) -> int:
        """The number of such workers, up to `count`, that fit now."""
        if self._most.get(need, inf) <= 0:
            return 0
        return sum(number for _, number in self._find(need, count))

    def take(self, need: WorkerNeed, count: int, *, least: int = 0) -> Spots | None:
        """Place up to `count` workers on the nodes; None, and nothing is placed, where fewer than `least` fit."""
        if least > self._most.get(need, inf):
            return None
        spots = self._find(need, count)
        found = sum(number for _, number in spots)
        if found < least:
            self._most[need] = found
            return None
        # All that fit are placed now: the next gang of this shape need not look at all.
        if found < count:
            self._most[need] = 0
        self.put(need, spots)
        return spots

    def put(self, need: WorkerNeed, spots: Spots) -> None:
        """Account for workers that are there already, whatever the nodes hold."""
        for index, number in spots:
            self._change(need, index, -number)

    def spread(self, need: WorkerNeed, count: int) -> None:
        """Account for workers that are there, nobody knows where: their resources are taken from any nodes, in parts
        where no node has room for a whole one."""
        cpus, gpus, memory_gb = need.cpus * count, need.gpus * count, need.memory_gb * count
        for index, node in enumerate(self._nodes):
            # At most what is free, which is below 0 where a node was taken to hold more than it has.
            taken = WorkerNeed(
                min(cpus, max(0.0, node.cpus)),
                min(gpus, max(0, node.gpus)),
                min(memory_gb, max(0.0, node.memory_gb)),
            )
            self._change(taken, index, -1)
            cpus, gpus, memory_gb = cpus - taken.cpus, gpus - taken.gpus, memory_gb - taken.memory_gb

    def give(self, need: WorkerNeed, spots: Spots) -> None:
        """Free the room of these workers again."""
        for index, number in spots:
            self._change(need, index, number)
        # Both only hold while room shrinks.
        self._first.clear()
        self._most.clear()

    def _find(self, need: WorkerNeed, count: int) -> Spots:
        spots: Spots = []
        index, left, full = self._first.get(need, 0), count, True
        while left > 0 and index < len(self._nodes):
            here = min(room(self._nodes[index], need), left)
            if here:
                spots.append((index, here))
                left -= here
                # Only full nodes in front of the first with room are skipped for good.
                full = False
            index += 1
            if full:
                self._first[need] = index
        return spots

    def _change(self, need: WorkerNeed, index: int, number: int) -> None:
        node = self._nodes[index]
        self._nodes[index] = NodeShape(
            node.id,
            node.cpus + number * need.cpus,
            node.gpus + number * need.gpus,
            node.memory_gb + number * need.memory_gb,
        )

    def __len__(self) -> int:
        return len(self._nodes)


def together(
    room: FreeRoom, need: WorkerNeed, count: int, apart: tuple[WorkerNeed, int] | None
) -> tuple[Spots, Spots] | None:
    """Place so many workers of one shape and so many of another, in the order in which both fit. None, and nothing is
    placed, where neither order works."""
    if apart is None:
        found = room.take(need, count, least=count)
        return None if found is None else (found, [])
    other, more = apart
    first, then = room.take(other, more, least=more), None
    # Given back: the other order begins with the same room.
    if first is not None and (then := room.take(need, count, least=count)) is None:
        room.give(other, first)
    if first is not None and then is not None:
        return then, first
    first, then = room.take(need, count, least=count), None
    if first is not None and (then := room.take(other, more, least=more)) is None:
        room.give(need, first)
    return (first, then) if first is not None and then is not None else None


class Vacated:
    """The progress of a gang if others let go of workers: counted on a copy, node by node.

    Args:
        apart: what the gang needs besides, of another shape.
    """

    def __init__(
        self, free: FreeRoom, need: WorkerNeed, gang: int, apart: tuple[WorkerNeed, int] | None = None
    ) -> None:
        self._free = free.copy()
        self._need = need
        self._gang = gang
        self._apart = apart
        self._fit = [self._free.fit(need, index) for index in range(len(free))]
        self._found = sum(self._fit)

    @property
    def enough(self) -> bool:
        if self._found < self._gang or self._apart is None:
            return self._found >= self._gang
        return together(self._free.copy(), self._need, self._gang, self._apart) is not None

    def release(self, need: WorkerNeed, spots: Spots) -> None:
        self._free.give(need, spots)
        self._count(spots)

    def undo(self, need: WorkerNeed, spots: Spots) -> None:
        self._free.give(need, [(index, -number) for index, number in spots])
        self._count(spots)

    def _count(self, spots: Spots) -> None:
        for index, _ in spots:
            now = self._free.fit(self._need, index)
            self._found += now - self._fit[index]
            self._fit[index] = now


def tail(spots: Spots, skip: int, count: int) -> Spots:
    """The last `count` workers of `spots` apart from the very last `skip`, last first."""
    found: Spots = []
    for index, number in reversed(spots):
        passed = min(skip, number)
        skip -= passed
        here = min(number - passed, count)
        count -= here
        if here:
            found.append((index, here))
    return found
