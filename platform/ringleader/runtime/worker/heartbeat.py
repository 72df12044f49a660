"""A worker's control thread: heartbeats to the supervisor, sent again while it is away, and the end of this process
when it stays away."""

import os
import threading
from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING, Any

from ringleader.runtime.messages import AWAY_S, BEAT_S, GONE_S

if TYPE_CHECKING:
    from ringleader.runtime.worker.reporter import WorkerReporter
    from ringleader.runtime.worker.supervisor_link import SupervisorLink

ORPHANED = 70
AGAIN_S = 0.05


class HeartbeatThread:
    """Sends a heartbeat each `BEAT_S`, sooner after `hurry`. Ends this process once its supervisor is gone for good."""

    def __init__(self) -> None:
        self._wake = threading.Event()
        self._stopped = threading.Event()
        self._sending = threading.Lock()
        self._pause = threading.Event()
        self._reporter: WorkerReporter | None = None
        self._supervisor_link: SupervisorLink | None = None
        self._clean: Callable[[], None] = lambda: None

    def start(
        self, reporter: "WorkerReporter", supervisor_link: "SupervisorLink", clean: Callable[[], None]
    ) -> None:
        """`clean` removes what this process must not leave behind when it ends itself."""
        self._reporter, self._supervisor_link, self._clean = reporter, supervisor_link, clean
        threading.Thread(target=self._run, name="heartbeat", daemon=True).start()

    def hurry(self) -> None:
        self._wake.set()

    def last(self) -> None:
        """Send one heartbeat with all that there is: this process is about to end."""
        self._beat()

    def stop(self) -> None:
        """Send one last heartbeat with all that is left, then none."""
        self._stopped.set()
        self._wake.set()
        self._beat()

    def _run(self) -> None:
        while not self._stopped.is_set():
            self._wake.wait(BEAT_S)
            self._wake.clear()
            self._beat()

    def _beat(self) -> None:
        """Send one until it is acknowledged."""
        reporter, supervisor_link = self._reporter, self._supervisor_link
        if reporter is None or supervisor_link is None:
            raise LookupError("the heartbeat has not started")
        # One at a time, so that what was not acknowledged is sent again before anything newer.
        with self._sending:
            until = monotonic() + AWAY_S
            # For long: a killed supervisor comes back, and training does not wait for it.
            while (recorded := supervisor_link.beat(reporter.beat())) is None:
                if monotonic() > until:
                    self._end()
                self._pause.wait(AGAIN_S)
            if recorded < 0:  # it is gone for good, or does not count this worker in any more
                self._end()
            reporter.heard(recorded)

    def _end(self) -> None:
        self._clean()
        # Not sys.exit: it ends this thread alone, and the one that trains may hang for ever.
        os._exit(ORPHANED)


def guard_idle(answers: Callable[[], Any], busy: threading.Event) -> None:
    """End this idle process when the pool that keeps it is gone. Returns when it is `busy`."""
    import ray
    from ray.exceptions import RayError

    while not busy.wait(2.0):
        try:
            ray.get(answers(), timeout=GONE_S)
        except (RayError, ConnectionError):
            # It may have been taken just before the pool was lost.
            if not busy.is_set():
                os._exit(ORPHANED)
