"""Durations counted by rounds: neither a clock that is set nor a machine that stood still makes anything last
longer."""

from datetime import datetime

from ringleader_api.clock import Clock

MOST_S = 5.0
"""The most that one round counts for, in seconds. A longer gap means that this process stood still itself."""
Who = tuple[str, int]
Mark = tuple[str, datetime | None]


class RoundClock:
    """The running total of the rounds' seconds.

    Attributes:
        at_s: how many the rounds so far count for.
    """

    def __init__(self, now: Clock) -> None:
        self._now = now
        self._round_at: datetime | None = None
        self.at_s = 0.0

    def begin(self) -> None:
        now = self._now()
        if self._round_at is not None:
            self.at_s += min(MOST_S, max(0.0, (now - self._round_at).total_seconds()))
        self._round_at = now

    def forget(self) -> None:
        """Begin anew: the time until the next round counts for nothing."""
        self._round_at = None


class Lasting:
    """The time for which this process has seen each attempt in its present state; after `forget` all begin anew."""

    def __init__(self, rounds: RoundClock) -> None:
        self._rounds = rounds
        self._seen: dict[Who, tuple[Mark, float]] = {}

    def begin_round(self, present: set[Who]) -> None:
        """Forget all but those who are `present`."""
        self._seen = {who: seen for who, seen in self._seen.items() if who in present}

    def of(self, who: Who, mark: Mark) -> float:
        """The seconds since the attempt got this `mark`."""
        before = self._seen.get(who)
        if before is None or before[0] != mark:
            self._seen[who] = mark, self._rounds.at_s
            return 0.0
        return self._rounds.at_s - before[1]

    def end(self, who: Who) -> None:
        self._seen.pop(who, None)

    def forget(self) -> None:
        self._seen.clear()
