"""Time, patience and identities, passed in so that tests can supply their own."""

import secrets
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from ringleader_api.log import Log

log = Log("ringleader.clock")
Clock = Callable[[], datetime]
Pause = Callable[[float], Awaitable[None]]

FOLLOWED = 0.05
"""The rate at which `SteadyClock` runs fast or slow while it follows a clock that was set, as a share of the time that
passes."""
NOTED_S = 5.0
"""The step of the machine's clock, in seconds, from which the log mentions it."""

_CROCKFORD = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_lock = threading.Lock()
_last = 0


class SteadyClock:
    """The time of day without jumps: after the machine's clock was set, it catches up by running a little fast or slow.
    Durations between two of its moments are wrong by `FOLLOWED` at most, and no moment comes twice. Thread-safe.

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
            # Follows the wall clock by at most FOLLOWED of the time passed, so time never stands still or runs back.
            off = self._wall() - (self._told + passed)
            bound = FOLLOWED * passed
            self._told += passed + min(max(off, -bound), bound)
            self._note(off)
            return datetime.fromtimestamp(self._told, UTC)

    def _note(self, off_s: float) -> None:
        """Log that the clock was set, once each time."""
        if abs(off_s) < NOTED_S:
            self._noted = False
        elif not self._noted:
            self._noted = True
            log.warning("clock.set", by_s=round(off_s, 1), followed_within_s=round(abs(off_s) / FOLLOWED))


utc_now = SteadyClock()


@dataclass(slots=True)
class Patience:
    """The rounds that one who was refused sits out, doubled with each refusal. Rounds, not seconds: clocks jump.

    Attributes:
        most: the most of them.
        less: how many of them are not sat out.
    """

    most: int
    less: int = 0
    skip: int = 0
    next_skip: int = 1

    def put_off(self) -> None:
        self.skip, self.next_skip = self.next_skip - self.less, min(self.most, self.next_skip * 2)

    def sits_out(self) -> bool:
        """Whether this round is one of them; it is counted."""
        if self.skip <= 0:
            return False
        self.skip -= 1
        return True


def new_job_id() -> str:
    return new_id("job")


def new_id(kind: str) -> str:
    """`kind_` + ULID. Within a process ids only grow, so that their order is the order of submission."""
    global _last
    with _lock:
        # 48 bits of milliseconds, 80 random ones; within a millisecond, or after the clock was set back, one more than
        # the last.
        fresh = (time.time_ns() // 1_000_000) << 80 | secrets.randbits(80)
        _last = fresh if fresh > _last else _last + 1
        number = _last
    # 26 characters of 5 bits are 130; the first one carries the upper 3 of 128.
    return f"{kind}_" + "".join(_CROCKFORD[number >> shift & 31] for shift in range(125, -1, -5))
