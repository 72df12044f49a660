"""Rate limits, a token bucket for each key, and the bounds on open streams."""

import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Self

from ringleader_api.edge.connections import Bounds
from ringleader_api.problems import TooMany

KEYS_KEPT = 10_000
FILTERED = 20
"""The most filtered streams of lines that one user may have open on one job: each filter is searched for by itself."""
FULL_S = 5.0


class Allowance:
    """A token bucket per key: `per_s` in the long run, `burst` at once. Forgets the keys not seen for longest.
    Thread-safe."""

    def __init__(self, per_s: float, burst: float, now_s: Callable[[], float] = time.monotonic) -> None:
        self._per_s = per_s
        self._burst = burst
        self._now_s = now_s
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()  # key: (left, when)
        self._lock = threading.Lock()

    def take(self, key: str) -> float:
        """Take one; returns 0, or the seconds to wait where none is left (nothing is taken then)."""
        now = self._now_s()
        with self._lock:
            # Popped and stored again: the order of the dictionary is that of the last use, which the eviction needs.
            left, when = self._left.pop(key, (self._burst, now))
            left = min(self._burst, left + (now - when) * self._per_s)
            granted = left >= 1
            self._left[key] = (left - 1 if granted else left, now)
            # Bounded, since strangers choose the keys; a key that was forgotten begins with a full bucket.
            if len(self._left) > KEYS_KEPT:
                self._left.popitem(last=False)
        return 0.0 if granted else (1 - left) / self._per_s

    def spend(self, key: str) -> None:
        """Take one. Raises TooMany."""
        wait_s = self.take(key)
        if wait_s > 0:
            raise TooMany(wait_s)


class Streams:
    """The open streams of users, counted from the request on. Used on the event loop alone.

    Args:
        together: the most streams of all users together.
    """

    def __init__(self, per_user: int, filtered: int = FILTERED, *, together: int) -> None:
        self._per_user = per_user
        self._filtered = filtered
        self._together = together
        self._open: Counter[tuple[str, str]] = Counter()

    @classmethod
    def within(cls, bounds: Bounds, per_user: int) -> Self:
        """The counts of a process's streams."""
        # Each holds a connection: no user, nor all of them together, may take the descriptors that everything else
        # needs.
        return cls(min(per_user, bounds.of_user), together=bounds.streams)

    def begin(self, user: str, job_id: str, *, filtered: bool) -> Callable[[], None]:
        """Count one more; returns the function that counts it off again. Raises TooMany."""
        bounds = {("", ""): self._together, (user, ""): self._per_user}
        if filtered:
            bounds[user, job_id] = self._filtered
        # All bounds are checked before one is counted: a refused stream leaves no count behind.
        if any(self._open[key] >= most for key, most in bounds.items()):
            raise TooMany(FULL_S, "too many streams of events or logs are open.")
        self._open.update(bounds.keys())
        return partial(self._end, tuple(bounds))

    def open_of(self, user: str) -> int:
        """The number of them that belong to the user."""
        return self._open[user, ""]

    def _end(self, keys: Sequence[tuple[str, str]]) -> None:
        for key in keys:
            self._open[key] -= 1
            # Removed at 0, so that users and jobs that are gone leave no entry behind.
            if not self._open[key]:
                del self._open[key]
