"""Time and identities, so that tests can hand in their own."""

import secrets
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime

from ringleader_api.log import Log

log = Log("ringleader.clock")
Clock = Callable[[], datetime]

FOLLOWED = 0.05
"""Of the time that passes: how much faster or slower `SteadyClock` goes while it follows a clock that was set."""
NOTED_S = 5.0
"""How far the machine's clock has to be set for the log to say so."""

_CROCKFORD = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_lock = threading.Lock()
_last = 0


class SteadyClock:
    """The time of day, which is never set: where the machine's clock is, it follows by going a little faster or slower.
    Durations between two of its moments are wrong by `FOLLOWED` at most, and no moment comes twice. Safe between
    threads.

    Args:
        wall: seconds since 1970 by the machine's clock.
        passed_s: seconds by a clock that never jumps.
    """

    def __init__(
        self, wall: Callable[[], float] = time.time, passed_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._wall = wall
        self._passed_s = passed_s
        self._lock = threading.Lock()
        self._told, self._at = wall(), passed_s()
        self._noted = False

    def __call__(self) -> datetime:
        with self._lock:
            at = self._passed_s()
            passed, self._at = at - self._at, at
            off = self._wall() - (self._told + passed)
            bound = FOLLOWED * passed
            self._told += passed + min(max(off, -bound), bound)
            self._note(off)
            return datetime.fromtimestamp(self._told, UTC)

    def _note(self, off_s: float) -> None:
        """Once for each time that the clock is set."""
        if abs(off_s) < NOTED_S:
            self._noted = False
        elif not self._noted:
            self._noted = True
            log.warning("clock.set", by_s=round(off_s, 1), followed_within_s=round(abs(off_s) / FOLLOWED))


utc_now = SteadyClock()


def new_job_id() -> str:
    return new_id("job")


def new_id(kind: str) -> str:
    """`kind_` + ULID. Within a process ids only grow, so that their order is the order of submission."""
    global _last
    with _lock:
        fresh = (time.time_ns() // 1_000_000) << 80 | secrets.randbits(80)
        _last = fresh if fresh > _last else _last + 1
        number = _last
    return f"{kind}_" + "".join(_CROCKFORD[number >> shift & 31] for shift in range(125, -1, -5))
