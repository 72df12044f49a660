"""Waiting in tests: on a condition, with a deadline, saying what was seen last."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def wait_for(what: str, condition: Callable[[], T], deadline_s: float = 30) -> T:
    """The first truthy value of `condition`; fails with the last value seen at the deadline."""
    give_up_at = time.monotonic() + deadline_s
    while not (seen := condition()):
        if time.monotonic() > give_up_at:
            raise AssertionError(f"no {what} within {deadline_s:g} s; last seen: {seen!r}")
        time.sleep(0.02)
    return seen
