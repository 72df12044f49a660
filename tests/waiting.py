"""Waiting in tests: on a condition, with a deadline, saying what was seen last."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
LEAST_S, MOST_S = 0.02, 0.25


def wait_for(what: str, condition: Callable[[], T], deadline_s: float = 120) -> T:
    """The first truthy value of `condition`; fails with the last value seen at the deadline.

    One that takes long to ask is asked less often: it shall not keep busy what it waits for.
    """
    give_up_at = time.monotonic() + deadline_s
    since = time.monotonic()
    while not (seen := condition()):
        if time.monotonic() > give_up_at:
            raise AssertionError(f"no {what} within {deadline_s:g} s; last seen: {seen!r}")
        time.sleep(min(max(LEAST_S, 2 * (time.monotonic() - since)), MOST_S))
        since = time.monotonic()
    return seen
