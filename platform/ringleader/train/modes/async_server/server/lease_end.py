"""When server 0 leases no more items of a loop: it is over, it is left or stopped, or the generation ends."""

from dataclasses import dataclass

from ringleader.train.modes.async_server.lease_queue import AsyncPolicy, LeaseQueue


@dataclass(slots=True)
class LeaseEnd:
    """Why nothing is leased any more.

    Attributes:
        stopping: the loop ends as soon as what is out is in.
        last: the loop ends with this update.
        over: the loop has ended.
        left: a worker's body left the loop, by `break` or by an exception.
        pending: the generation ends as soon as what is out is in.
    """

    leases: LeaseQueue
    stopping: bool = False
    last: int | None = None
    over: bool = False
    left: bool = False
    pending: bool = False

    @property
    def nothing_more(self) -> bool:
        """Whether a worker that asks can leave: nothing is leased any more, and nothing is out."""
        return self.over or (self.pending and not self.leases.out)

    @property
    def held_back(self) -> bool:
        """Whether the next item is leased to nobody."""
        return self.stopping or self.pending or self._beyond_last()

    def leave(self) -> None:
        """A worker's body has left the loop."""
        self.left = self.stopping = True

    def stop_after(self, clock: int) -> None:
        """The loop ends with that update; with what is out, where every item is one."""
        if isinstance(self.leases.discipline, AsyncPolicy):
            self.stopping = True
        else:
            self.last = clock if self.last is None else min(clock, self.last)

    def look(self) -> None:
        """Whether the loop has ended."""
        leases = self.leases
        past = self.last is not None and leases.version > self.last
        if leases.exhausted or past or (self.stopping and not leases.out):
            self.over = True

    def _beyond_last(self) -> bool:
        leases, item = self.leases, self.leases.next
        if self.last is None or item is None:
            return False
        return leases.discipline.clock(leases, item) > self.last
