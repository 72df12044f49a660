"""How often somebody may ask, a token bucket for each key; and how many streams they may have open."""

import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from functools import partial

from ringleader_api.problems import TooMany

KEYS_KEPT = 10_000
FILTERED = 20
"""Streams of lines that one user chooses from one job: each choice is searched for by itself."""
FULL_S = 5.0


class Allowance:
    """`per_s` in the long run, `burst` at once. Forgets the keys not seen for longest. Safe between threads."""

    def __init__(self, per_s: float, burst: float, now_s: Callable[[], float] = time.monotonic) -> None:
        self._per_s = per_s
        self._burst = burst
        self._now_s = now_s
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()  # key: (left, when)
        self._lock = threading.Lock()

    def take(self, key: str) -> float:
        """Take one; returns 0, or the seconds to wait where there is none (nothing is taken then)."""
        now = self._now_s()
        with self._lock:
            left, when = self._left.pop(key, (self._burst, now))
            left = min(self._burst, left + (now - when) * self._per_s)
            granted = left >= 1
            self._left[key] = (left - 1 if granted else left, now)
            if len(self._left) > KEYS_KEPT:
                self._left.popitem(last=False)
        return 0.0 if granted else (1 - left) / self._per_s

    def spend(self, key: str) -> None:
        """Take one. Raises TooMany."""
        wait_s = self.take(key)
        if wait_s > 0:
            raise TooMany(wait_s)


class Streams:
    """The streams that users have open, counted from when they are asked for. Used on the event loop alone.

    Args:
        together: of all users.
    """

    def __init__(self, per_user: int, filtered: int = FILTERED, *, together: int) -> None:
        self._per_user = per_user
        self._filtered = filtered
        self._together = together
        self._open: Counter[tuple[str, str]] = Counter()

    def begin(self, user: str, job_id: str, *, filtered: bool) -> Callable[[], None]:
        """Count one more; returns what counts it off again. Raises TooMany."""
        bounds = {("", ""): self._together, (user, ""): self._per_user}
        if filtered:
            bounds[user, job_id] = self._filtered
        if any(self._open[key] >= most for key, most in bounds.items()):
            raise TooMany(FULL_S, "as many streams are open as may be at once.")
        self._open.update(bounds.keys())
        return partial(self._end, tuple(bounds))

    def open_of(self, user: str) -> int:
        """How many of them are the user's."""
        return self._open[user, ""]

    def _end(self, keys: Sequence[tuple[str, str]]) -> None:
        for key in keys:
            self._open[key] -= 1
            if not self._open[key]:
                del self._open[key]
