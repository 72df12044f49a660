"""A worker's control thread: heartbeats to the supervisor, and the end of this process when nobody answers."""

import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import ray
from ray.exceptions import RayError

from ringleader.runtime.messages import BEAT_S, GONE_S

if TYPE_CHECKING:
    from ringleader.runtime.desk import Desk

ORPHANED = 70


class Pulse:
    """Beats every `BEAT_S`, sooner after `hurry`. A supervisor that does not answer is gone, and so is this process."""

    def __init__(self) -> None:
        self._wake = threading.Event()
        self._stopped = threading.Event()
        self._sending = threading.Lock()
        self._desk: Desk | None = None
        self._supervisor: Any = None
        self._clean: Callable[[], None] = lambda: None

    def start(self, desk: "Desk", supervisor: Any, clean: Callable[[], None]) -> None:
        """`clean` removes what this process must not leave behind when it ends itself."""
        self._desk, self._supervisor, self._clean = desk, supervisor, clean
        threading.Thread(target=self._run, name="pulse", daemon=True).start()

    def hurry(self) -> None:
        self._wake.set()

    def stop(self) -> None:
        """One last beat with all that is left, then none."""
        self._stopped.set()
        self._wake.set()
        self._beat()

    def _run(self) -> None:
        while not self._stopped.is_set():
            self._wake.wait(BEAT_S)
            self._wake.clear()
            self._beat()

    def _beat(self) -> None:
        assert self._desk is not None
        with self._sending:
            recorded = self._answered(self._supervisor.beat.remote(self._desk.beat()))
        self._desk.recorded(recorded)

    def _answered(self, reference: Any) -> int:
        try:
            recorded = int(ray.get(reference, timeout=GONE_S))
        except (RayError, ConnectionError):
            recorded = -1
        if recorded < 0:  # gone, or it does not count this worker in any more
            self._clean()
            os._exit(ORPHANED)
        return recorded


def guard_idle(answers: Callable[[], Any], busy: threading.Event) -> None:
    """End this idle process when the pool that keeps it is gone. Returns when it is `busy`."""
    while not busy.wait(2.0):
        try:
            ray.get(answers(), timeout=GONE_S)
        except (RayError, ConnectionError):
            if not busy.is_set():
                os._exit(ORPHANED)
