"""The sums of a server's next updates, by their number: gradients that are here, and no update is made of them yet."""

from collections.abc import Callable

from torch import Tensor

from ringleader.comm.tree import tree_over
from ringleader.elastic.leases import Bounded, Leases
from ringleader.train.arrivals import Arrival
from ringleader.train.following import Following, Move
from ringleader.train.gathering import Gathering, Gradient, Rows


class Clocks:
    """Of one loop.

    Args:
        committed: (bytes,) uint8 of the buffers at the loop's start.
        give_back: takes memory that is free again.

    Attributes:
        complete: updates whose gradients are all here, made or not.
    """

    def __init__(self, leases: Leases, committed: Tensor, give_back: Callable[[Rows], None]) -> None:
        self.complete = 0
        self._leases = leases
        self._following = Following(committed)
        self._give_back = give_back
        self._sums: dict[int, Gathering] = {}

    @property
    def items(self) -> list[int]:
        """Those that are in no update yet."""
        return [push.item for gathering in self._sums.values() for push in gathering.pushes]

    def add(self, arrival: Arrival) -> None:
        """A gradient counts: it is added to the sum of its update."""
        leases, push, left = self._leases, arrival.push, arrival.extras.left
        offset, shard = divmod(push.item, leases.batches.shards)
        clock = leases.discipline.clock(leases, push.item)
        if clock not in self._sums:
            tree = None
            if isinstance(leases.discipline, Bounded):
                tree = tree_over(leases.batches.shards, frozenset(leases.batches.present(offset)))
            self._sums[clock] = Gathering(tree, self._give_back)
        start = self._following.at(push.version) if arrival.extras.start is None else arrival.extras.start
        move = None if left is None else Move(start, left)
        self._sums[clock].add(push, shard, Gradient(arrival.rows, arrival.extras.rows), move)
        while leases.arrived[self.complete] == leases.batches.count(self.complete):
            self.complete += 1

    def take(self) -> Gathering:
        """The sum of the update that is due."""
        return self._sums.pop(self._leases.version)

    def drop(self) -> None:
        """What is in no update yet did not happen."""
        for gathering in self._sums.values():
            gathering.let_go()
        self._sums.clear()
        self.complete = self._leases.version

    def follow(self, committed: Tensor) -> None:
        """After an update that changed the buffers these are they."""
        in_hand = (lease.version for lease in self._leases.out.values())
        self._following.committed(committed, self._leases.version, in_hand)
