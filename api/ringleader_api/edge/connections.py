"""The connections of a server: how many there may be, and who has to go where there are too many."""

import resource
from collections import Counter
from dataclasses import dataclass
from typing import Protocol, Self

UNBOUNDED = 1 << 20


class OpenConnection(Protocol):
    """A connection."""

    @property
    def address(self) -> str:
        """That of its other end."""

    @property
    def known(self) -> bool:
        """Whether it has shown a credential that is valid."""

    @property
    def holder(self) -> str:
        """Whose credential that was; empty as long as none was shown."""

    def send_away(self) -> None:
        """Close it at once, whatever it is at."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """How many connections there may be together, of strangers, and of strangers from one address; and how many
    streams, of all users and of one."""

    together: int
    strangers: int
    of_address: int
    streams: int
    of_user: int

    @classmethod
    def within(cls, descriptors: int) -> Self:
        """Half of the descriptors: a connection may need a second one, of a file or of MLflow, and there are Ray's
        and the database's."""
        together = max(16, descriptors // 2)
        strangers = min(2048, together // 2)
        return cls(together, strangers, strangers // 2, streams=together // 2, of_user=together // 4)


class Connections:
    """Lets in whoever comes. Who has waited longest without showing a credential goes where there are too many of
    them, of the same address first: a client shows its own within milliseconds, whoever holds connections never.

    A refusal of the newest would hand the port to whoever came first. Used on the event loop alone.
    """

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self._strangers: dict[OpenConnection, None] = {}
        self._of_address: dict[str, dict[OpenConnection, None]] = {}
        self._idle: dict[OpenConnection, None] = {}
        self._there: dict[OpenConnection, None] = {}

    def __len__(self) -> int:
        return len(self._there)

    def enter(self, one: OpenConnection) -> None:
        """A connection came; it, or another one, may have to go."""
        self._there[one] = None
        self._strangers[one] = None
        mine = self._of_address.setdefault(one.address, {})
        mine[one] = None
        if len(mine) > self._bounds.of_address:
            self._send_away_first(mine, self._bounds.of_address)
        if len(self._strangers) > self._bounds.strangers:
            self._send_away_first(self._strangers, self._bounds.strangers)
        if len(self._there) > self._bounds.together:
            self._send_away(self._least_missed(one))

    def work(self, one: OpenConnection) -> None:
        """A request came in on it."""
        self._idle.pop(one, None)

    def rest(self, one: OpenConnection) -> None:
        """Its request was answered, and no next one has come."""
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
        """Who has shown a credential meanwhile is none any more."""
        while waiting:
            first = next(iter(waiting))
            if not first.known:
                return first
            self._no_stranger(first)
        return None

    def _least_missed(self, newest: OpenConnection) -> OpenConnection:
        """A stranger who was there before, else one of a user that is at nothing, else the oldest of a user who
        holds more than half of all: who dribbles into each of them must not keep the others out."""
        stranger = self._first_stranger(self._strangers)
        if stranger is not None and stranger is not newest:
            return stranger
        if self._idle:
            return next(iter(self._idle))
        holders = Counter(holder for one in self._there if (holder := one.holder))
        greedy = next((holder for holder, n in holders.items() if 2 * n > self._bounds.together), None)
        return next((one for one in self._there if one.holder == greedy), newest)

    def _send_away(self, one: OpenConnection) -> None:
        self.leave(one)
        one.send_away()

    def _no_stranger(self, one: OpenConnection) -> None:
        self._strangers.pop(one, None)
        mine = self._of_address.get(one.address, {})
        mine.pop(one, None)
        if not mine:
            self._of_address.pop(one.address, None)


def raise_descriptors() -> None:
    """Take as many descriptors as this process may have: the soft limit, often 1,024, is there for users of select."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def descriptors() -> int:
    """How many this process may have open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return UNBOUNDED if soft == resource.RLIM_INFINITY else soft
