"""The end of leasing at server 0: the loop is over, left or stopped, or the generation ends."""

from dataclasses import dataclass

from ringleader.train.modes.async_server.lease_queue import LeaseQueue


@dataclass(slots=True)
class LeaseEnd:
    """The reasons for leasing no more items.

    Attributes:
        stopping: the loop ends as soon as all leases are in.
        last: the loop ends with this update.
        over: the loop has ended.
        left: a worker's body left the loop, by `break` or by an exception.
        pending: the generation ends as soon as all leases are in.
    """

    leases: LeaseQueue
    stopping: bool = False
    last: int | None = None
    over: bool = False
    left: bool = False
    pending: bool = False

    def open(self) -> None:
        """Begin a generation."""
        self.pending = False

    def drain(self) -> None:
        """Lease nothing more, until all leases are in and all members stand at the same state."""
        self.pending = True

    def close(self) -> None:
        """Record, as server 0 says, that the loop has ended."""
        self.over = True

    def go_on(self, *, over: bool, left: bool) -> None:
        """Take over what another server knows of the end."""
        self.over, self.left = over, left

    @property
    def nothing_more(self) -> bool:
        """Whether a worker that asks can leave: nothing is leased any more, and no lease is out."""
        return self.over or (self.pending and not self.leases.out)

    @property
    def held_back(self) -> bool:
        """Whether no worker may lease the next item."""
        return self.stopping or self.pending or self._beyond_last()

    def leave(self) -> None:
        """Record that a worker's body has left the loop."""
        self.left = self.stopping = True

    def stop_after(self, clock: int) -> None:
        """End the loop with that update; where every item is an update, once all leases are in."""
        if self.leases.each_alone:
            self.stopping = True
        else:
            # Several workers may stop the loop: the earliest update counts for all.
            self.last = clock if self.last is None else min(clock, self.last)

    def look(self) -> None:
        """Mark the loop as over if it has ended."""
        leases = self.leases
        past = self.last is not None and leases.version > self.last
        if leases.exhausted or past or (self.stopping and not leases.out):
            self.over = True

    def _beyond_last(self) -> bool:
        leases, item = self.leases, self.leases.next
        if self.last is None or item is None:
            return False
        return leases.discipline.clock(leases, item) > self.last
