"""A server's connections: how many may be open, and which is closed where there are too many."""

import resource
from collections import Counter
from dataclasses import dataclass
from typing import Protocol, Self

UNBOUNDED = 1 << 20


class OpenConnection(Protocol):
    """One connection, as `Connections` sees it."""

    @property
    def address(self) -> str:
        """The address of its other end."""

    @property
    def known(self) -> bool:
        """Whether it has shown a valid credential."""

    @property
    def holder(self) -> str:
        """The owner of that credential; empty until one was shown."""

    def send_away(self) -> None:
        """Close it at once, whatever it is doing."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """The most connections together, of strangers, and of strangers from one address; the most streams, of all users
    and of one."""

    together: int
    strangers: int
    of_address: int
    streams: int
    of_user: int

    @classmethod
    def within(cls, descriptors: int) -> Self:
        """The bounds for a process with so many descriptors."""
        # Half of them: each connection may need a second one, of a file or of MLflow, and Ray and the database have
        # theirs.
        together = max(16, descriptors // 2)
        strangers = min(2048, together // 2)
        return cls(together, strangers, strangers // 2, streams=together // 2, of_user=together // 4)


class Connections:
    """Admits every new connection. Where there are too many, the one goes that has waited longest without a credential,
    of the same address first: a client shows its own within milliseconds, an attacker who holds connections never does.

    Refusing the newest would hand the port to whoever came first. Used on the event loop alone."""

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        # Dictionaries as ordered sets: the first key is the oldest, and removal takes constant time.
        self._strangers: dict[OpenConnection, None] = {}
        self._of_address: dict[str, dict[OpenConnection, None]] = {}
        self._idle: dict[OpenConnection, None] = {}
        self._there: dict[OpenConnection, None] = {}

    def __len__(self) -> int:
        return len(self._there)

    def enter(self, one: OpenConnection) -> None:
        """Register a new connection; it, or another one, may have to go."""
        self._there[one] = None
        self._strangers[one] = None
        mine = self._of_address.setdefault(one.address, {})
        mine[one] = None
        if len(mine) > self._bounds.of_address:
            self._send_away_first(mine, self._bounds.of_address)
        if len(self._strangers) > self._bounds.strangers:
            self._send_away_first(self._strangers, self._bounds.strangers)
        # Last: enforcing the bound on strangers may have made room already.
        if len(self._there) > self._bounds.together:
            self._send_away(self._least_missed(one))

    def work(self, one: OpenConnection) -> None:
        """Note that a request came in on it."""
        self._idle.pop(one, None)

    def rest(self, one: OpenConnection) -> None:
        """Note that its request was answered, and no next one has come."""
        # It may have been closed while its answer was on the way.
        if one in self._there and one.known:
            self._no_stranger(one)
            self._idle[one] = None

    def leave(self, one: OpenConnection) -> None:
        self._there.pop(one, None)
        self._idle.pop(one, None)
        self._no_stranger(one)

    def _send_away_first(self, waiting: dict[OpenConnection, None], most: int) -> None:
        while len(waiting) > most and (first := self._first_stranger(waiting)) is not None:
            self._send_away(first)

    def _first_stranger(self, waiting: dict[OpenConnection, None]) -> OpenConnection | None:
        """The oldest stranger; those that have shown a credential meanwhile are struck from both lists."""
        while waiting:
            first = next(iter(waiting))
            if not first.known:
                return first
            # Struck out lazily, here: to learn of a credential at once would cost every request a call.
            self._no_stranger(first)
        return None

    def _least_missed(self, newest: OpenConnection) -> OpenConnection:
        """The connection to close for a new one: a stranger who was there before, else an idle one of a user, else the
        oldest of a user who holds more than half of all. The new one itself where there is none."""
        stranger = self._first_stranger(self._strangers)
        if stranger is not None and stranger is not newest:
            return stranger
        if self._idle:
            return next(iter(self._idle))
        holders = Counter(holder for one in self._there if (holder := one.holder))
        # Such a user must not keep the others out with requests that never end.
        greedy = next((holder for holder, n in holders.items() if 2 * n > self._bounds.together), None)
        return next((one for one in self._there if one.holder == greedy), newest)

    def _send_away(self, one: OpenConnection) -> None:
        # Taken off the lists first: `abort` calls `leave` only later, on another turn of the event loop.
        self.leave(one)
        one.send_away()

    def _no_stranger(self, one: OpenConnection) -> None:
        self._strangers.pop(one, None)
        mine = self._of_address.get(one.address, {})
        mine.pop(one, None)
        if not mine:
            self._of_address.pop(one.address, None)


def raise_descriptors() -> None:
    """Raise the soft limit on descriptors to the hard one."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # The soft one is often 1,024, for programs that use select.
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def descriptors() -> int:
    """The number of descriptors that this process may have open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return UNBOUNDED if soft == resource.RLIM_INFINITY else soft
