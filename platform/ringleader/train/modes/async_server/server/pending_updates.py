"""The pending sums of a server's next updates, by their number: gradients that are here and in no update yet."""

from collections.abc import Callable

from torch import Tensor

from ringleader.comm.tree import tree_over
from ringleader.train.modes.async_server.lease_queue import BoundedStaleness, LeaseQueue
from ringleader.train.modes.async_server.server.buffer_history import BufferHistory, BufferMove
from ringleader.train.modes.async_server.server.endpoint import QueuedPush
from ringleader.train.modes.async_server.server.gradient_sums import BucketRows, GradientSum, PushedGradient


class PendingUpdates:
    """One loop's pending updates.

    Args:
        committed: (bytes,) uint8 of the buffers at the loop's start.
        give_back: takes memory that is free again.

    Attributes:
        complete: updates whose gradients are all here, made or not.
    """

    def __init__(
        self, leases: LeaseQueue, committed: Tensor, give_back: Callable[[BucketRows], None]
    ) -> None:
        self.complete = 0
        self._leases = leases
        self._buffer_history = BufferHistory(committed)
        self._give_back = give_back
        self._sums: dict[int, GradientSum] = {}

    @property
    def items(self) -> list[int]:
        """The items that are in no update yet."""
        return [push.item for gathering in self._sums.values() for push in gathering.pushes]

    def add(self, arrival: QueuedPush) -> None:
        """Add a gradient that counts to the sum of its update."""
        leases, push, left = self._leases, arrival.push, arrival.extras.left
        offset, shard = divmod(push.item, leases.batches.shards)
        clock = leases.discipline.clock(leases, push.item)
        if clock not in self._sums:
            tree = None
            if isinstance(leases.discipline, BoundedStaleness):
                # `ssp` with staleness 0 has the bits of synchronous servers: it sums along their tree.
                tree = tree_over(leases.batches.shards, frozenset(leases.batches.present(offset)))
            self._sums[clock] = GradientSum(tree, self._give_back)
        # With backups a push brings the buffers that it began with: a server just promoted knows no older ones.
        start = (
            self._buffer_history.at(push.version) if arrival.extras.start is None else arrival.extras.start
        )
        move = None if left is None else BufferMove(start, left)
        self._sums[clock].add(push, shard, PushedGradient(arrival.rows, arrival.extras.rows), move)
        while leases.arrived[self.complete] == leases.batches.count(self.complete):
            self.complete += 1

    def go_on(self, version: int) -> None:
        """Go on behind so many updates, where nothing is pending."""
        self.complete = version

    def take(self) -> GradientSum:
        """Remove and return the sum of the update that is due."""
        return self._sums.pop(self._leases.version)

    def drop(self) -> None:
        """Drop every gradient that is in no update yet, as if it had not been pushed."""
        for gathering in self._sums.values():
            gathering.let_go()
        self._sums.clear()
        self.go_on(self._leases.version)

    def follow(self, committed: Tensor) -> None:
        """Record the buffers that an update has changed."""
        leased_versions = (lease.version for lease in self._leases.out.values())
        self._buffer_history.committed(committed, self._leases.version, leased_versions)
