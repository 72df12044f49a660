"""The audit log's rows of refused requests: gathered, and bounded for each user."""

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import groupby
from operator import itemgetter
from time import monotonic

from ringleader_api.clock import Clock
from ringleader_api.edge.rate import Allowance
from ringleader_api.log import Log
from ringleader_api.store import Store, audit
from ringleader_api.store.audit import AuditedAction

log = Log("ringleader.refusals")
PER_MINUTE = 60
COUNTED_EVERY_S = 60.0
REFUSED = "refused"


@dataclass(slots=True)
class _Beyond:
    """A user's refusals without a row of their own; `last` is the latest of them."""

    last: AuditedAction
    count: int = 0

    def add(self, action: AuditedAction) -> None:
        self.last, self.count = action, self.count + 1


class Refusals:
    """Writes the rows after the answer. Rows that come while others are on their way to the disk share the next
    transaction: a flood of refusals takes the writers' turn once at a time, and has no more than `PER_MINUTE` rows a
    minute for each user. Those beyond are counted in one row a minute. Thread-safe.

    Args:
        now_s: seconds by a clock that never jumps.
    """

    def __init__(self, store: Store, now: Clock, now_s: Callable[[], float] = monotonic) -> None:
        self._store = store
        self._now = now
        self._rows = Allowance(PER_MINUTE / 60, PER_MINUTE, now_s)
        self._lock = threading.Lock()
        self._waiting: list[tuple[AuditedAction, str]] = []
        self._beyond: dict[str, _Beyond] = {}
        # One thread: while it commits, the rows that come in gather for its next transaction.
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="refusals")
        self._stop = threading.Event()

    def has_row(self, action: AuditedAction) -> bool:
        """Whether this refusal gets a row of its own; if not, it is counted."""
        if self._rows.take(action.who) == 0:
            return True
        with self._lock:
            self._beyond.setdefault(action.who, _Beyond(action)).add(action)
        return False

    def record(self, action: AuditedAction, outcome: str) -> "Future[None]":
        """Store the row; the future is done when it is on the disk, perhaps with others'."""
        with self._lock:
            self._waiting.append((action, outcome))
        return self._writer.submit(self._store_waiting)

    def run(self, every_s: float) -> None:
        """Store the counts every `every_s`, until stopped."""
        while not self._stop.wait(every_s):
            try:
                self.store_counts()
            except Exception:
                log.exception("refusals.not_counted")

    def stop(self) -> None:
        self._stop.set()

    def close(self) -> None:
        """Store the counts that are left."""
        try:
            self.store_counts()
        except Exception:
            log.exception("refusals.not_counted")
        self._writer.shutdown()

    def store_counts(self) -> None:
        """Store one row for each user with refusals that have none."""
        with self._lock:
            beyond, self._beyond = self._beyond, {}
        rows = [self._counted(one) for one in beyond.values()]
        if rows:
            # No actions of the request's own: the rows are the actions here.
            with self._store.write([]) as session:
                audit.store(session, rows, REFUSED)

    def _counted(self, beyond: _Beyond) -> AuditedAction:
        told = f"{beyond.count} more requests"
        return replace(
            beyond.last, at=self._now(), method="", path="", project="", target=told, request_id=""
        )

    def _store_waiting(self) -> None:
        with self._lock:
            # Taken as a whole: the calls that queued behind this one find nothing, and return at once.
            rows, self._waiting = self._waiting, []
        if not rows:
            return
        with self._store.write([]) as session:
            # Not sorted first: the log keeps the order of the requests.
            for outcome, alike in groupby(rows, key=itemgetter(1)):
                audit.store(session, [action for action, _ in alike], outcome)
