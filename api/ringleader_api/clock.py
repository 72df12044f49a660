"""Time and identities, so that tests can hand in their own."""

import secrets
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime

Clock = Callable[[], datetime]

_CROCKFORD = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_lock = threading.Lock()
_last = 0


def utc_now() -> datetime:
    return datetime.now(UTC)


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
