"""How often somebody may ask: a token bucket for each key."""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable

KEYS_KEPT = 10_000


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
