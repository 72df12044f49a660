"""An unsteady machine: with this folder on PYTHONPATH and UNSTEADY set, Python processes are late at random.

Every one of them, children too, sleeps now and then where threads and processes meet: behind a thread's start, an
event, a queue, a message, a socket. What depends on who comes first shows in minutes instead of one run in hundreds.
A test that fails only so has found a race, in itself or in the product.

UNSTEADY is the seed; a process adds its pid, so a run is not repeated exactly: run the one test again and again.
"""

import _queue
import multiprocessing.connection
import os
import queue
import random
import selectors
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

SHARE = 0.3
"""Of a process's time that it sleeps away at most."""
LONGEST_S = 0.4
OFTEN, LONG = 0.12, 0.02
"""Of all meetings: that sleep at all, mostly a few milliseconds; that sleep any time up to the longest."""


class Naps:
    def __init__(self, seed: str) -> None:
        self._seed, self._sleep, self._now = seed, time.sleep, time.monotonic
        self._began, self._slept_s = self._now(), 0.0
        self._draw()

    def _draw(self) -> None:
        self._chance = random.Random(f"{self._seed}/{os.getpid()}")

    def take(self, weight: float) -> None:
        roll = self._chance.random() / weight
        left_s = SHARE * (self._now() - self._began + 2.0) - self._slept_s
        if roll > OFTEN or left_s <= 0:
            return
        span_s = LONGEST_S * self._chance.random() ** (1 if roll < LONG else 4)
        self._slept_s += min(span_s, left_s)
        self._sleep(min(span_s, left_s))

    def behind(self, call: Callable[..., Any], weight: float = 1.0) -> Callable[..., Any]:
        """The call, and sometimes a nap behind it."""

        def late(*what: Any, **how: Any) -> Any:
            try:
                return call(*what, **how)
            finally:
                self.take(weight)

        return late

    def spread(self) -> None:
        """Over everything where threads and processes meet."""
        start = threading.Thread.start

        def started(thread: threading.Thread) -> None:
            run = thread.run

            def late() -> None:
                self.take(4.0)
                run()

            thread.run = late  # type: ignore[method-assign]
            start(thread)
            self.take(2.0)

        threading.Thread.start = started  # type: ignore[method-assign]
        meetings: dict[Any, tuple[float, tuple[str, ...]]] = {
            threading.Event: (1.0, ("wait", "set")),
            threading.Condition: (1.0, ("notify", "notify_all")),
            multiprocessing.connection.Connection: (0.5, ("poll", "recv", "send")),
            socket.socket: (0.3, ("recv", "recv_into", "sendall", "accept", "connect")),
            selectors.EpollSelector: (0.3, ("select",)),
            selectors.PollSelector: (0.3, ("select",)),
        }
        for owner, (weight, names) in meetings.items():
            for name in names:
                setattr(owner, name, self.behind(getattr(owner, name), weight))

        class SimpleQueue(_queue.SimpleQueue[Any]):
            get = self.behind(_queue.SimpleQueue.get)
            put = self.behind(_queue.SimpleQueue.put)

        queue.SimpleQueue = SimpleQueue  # type: ignore[misc]
        os.register_at_fork(after_in_child=self._draw)


if seed := os.environ.get("UNSTEADY"):
    Naps(seed).spread()
