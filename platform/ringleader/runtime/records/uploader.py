"""The way from the spool to the control plane: one thread that posts, waits for the acknowledgement and tries again."""

import sqlite3
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from time import monotonic
from typing import Any

import httpx

from ringleader.runtime.records.sample_queue import SampleQueue
from ringleader.runtime.records.spool import BATCH_BYTES, BATCH_RECORDS, Spool
from ringleader.text import utf8_json
from ringleader.wire.ingest import Status
from ringleader.wire.system import SystemSample

EVERY_S = 0.25
STATUS_S = 1.0
LONGEST_PAUSE_S = 5.0
MAX_REASON = 1000
REFUSED = frozenset({400, 413, 422})
"""The statuses by which what was posted can never be taken, if it is the API that answers."""
GONE = frozenset({404, 409, 410})
"""The statuses of a control plane that does not know the job any more, or where a newer attempt has taken its place; if
it is the API that answers."""
UNKNOWN, UNKNOWN_S = 401, 600.0
"""The status of a control plane that knows no such token: the job was deleted, or its database is another one. An
attempt that gets no other answer for so long is stale as well; restoring a database takes less."""
BUSY = frozenset({429, *range(500, 600)})
"""The statuses that tell nothing about the token."""


class Uploader:
    """Posts what the spool holds and the live status until closed; system samples go along.

    Args:
        now: seconds by a clock that does not jump.

    Attributes:
        stale: whether the control plane answered that this attempt does not count any more.
    """

    def __init__(
        self,
        *,
        url: str,
        token: str,
        attempt: int,
        spool: Spool,
        status: Callable[[], Status | None],
        samples: SampleQueue,
        now: Callable[[], float] = monotonic,
    ) -> None:
        self.stale = False
        self._now = now
        self._attempt = attempt
        self._spool = spool
        self._status = status
        self._samples = samples
        self._url = url
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        # No proxy from the environment: the control plane is on this node, as a rule on loopback.
        self._client = httpx.Client(headers=headers, timeout=10, trust_env=False)
        # Counted from here: a control plane that never answers is silent from the start.
        self._answered = self._now()
        self._unknown_at: float | None = None
        self._unknown_s = 0.0
        self._status_at = 0.0
        self._apart = False
        self._status_refused = ""
        self._size = BATCH_RECORDS
        self._wake = threading.Event()
        self._closed = threading.Event()
        self._acked = threading.Event()
        self._thread = threading.Thread(target=self._run, name="uploader", daemon=True)
        self._thread.start()

    def hurry(self) -> None:
        """Post at once: something worth it was put."""
        self._wake.set()

    def drained(self, timeout_s: float) -> bool:
        """Wait until everything put so far is acknowledged; whether it was in time."""
        until = monotonic() + timeout_s
        while not self._spool.empty:
            self._wake.set()
            if not self._acked.wait(max(0.0, until - monotonic())):
                return False
            self._acked.clear()
        return True

    @property
    def silent_s(self) -> float:
        """The seconds since the control plane last answered; what a proxy says in its place is no answer."""
        return self._now() - self._answered

    def close(self) -> None:
        self._closed.set()
        self._wake.set()
        # A post under way ends within the 10 s of the client.
        self._thread.join(timeout=12)
        self._client.close()

    def _run(self) -> None:
        pause = EVERY_S
        while not self._closed.is_set():
            self._wake.wait(pause)
            self._wake.clear()
            try:
                with suppress(OSError):  # no room on the disk; what is there already can be posted
                    self._spool.flush()
                more = self._post()
            except (httpx.HTTPError, OSError, ValueError, KeyError, TypeError, sqlite3.Error):
                # No answer, or one that is not the API's: all may pass.
                pause = min(LONGEST_PAUSE_S, max(EVERY_S, pause * 2))  # after a post with more behind it: 0
                continue
            pause = 0.0 if more else EVERY_S

    def _post(self) -> bool:
        """Make one round trip. Returns whether more is waiting.

        Raises:
            httpx.HTTPError: no answer, or an answer that may change.
        """
        records = self._spool.batch(max_records=self._size, max_bytes=BATCH_BYTES)
        due = self._now() - self._status_at >= STATUS_S
        if not records and not due:
            return False
        more = bool(records)
        status = self._status() if due or not self._apart else None
        # A refusal of both does not say which of them it means.
        if self._apart and status is not None:
            records = []
        samples = self._samples.batch()
        response = self._send(records, status, samples)
        if _is_problem(response):
            self._answered = self._now()
            if response.status_code in GONE or self._unknown_for_s(response.status_code) >= UNKNOWN_S:
                self.stale = True
                return False
            if response.status_code in REFUSED and (records or samples or status is not None):
                self._refusal(records, status, samples, _reason(response))
                return True
        # Another server's success has no such key: the error makes it no answer.
        acked = response.raise_for_status().json()["acked"]
        self._answered = self._now()
        self._unknown_for_s(response.status_code)
        if records:
            self._size = BATCH_RECORDS
        else:
            self._apart = False
        if status is not None or not records:
            self._status_at = self._answered
        self._samples.forget(samples)
        self._spool.ack(acked)
        self._acked.set()
        return more

    def _send(
        self, records: list[dict[str, Any]], status: Status | None, samples: Sequence[SystemSample]
    ) -> httpx.Response:
        body: dict[str, Any] = {"attempt": self._attempt, "records": records}
        if status is not None:
            body["status"] = status.model_dump(mode="json")
        if samples:
            body["system"] = [sample.model_dump(mode="json") for sample in samples]
        return self._client.post(self._url, content=utf8_json(body))  # whatever it holds, it can be sent

    def _unknown_for_s(self, status_code: int) -> float:
        """The seconds for which the API has not known the token; time without an answer does not count."""
        if status_code == UNKNOWN:
            now = self._now()
            if self._unknown_at is not None:
                # Two posts are no longer apart than this, unless some in between were not answered.
                self._unknown_s += min(now - self._unknown_at, LONGEST_PAUSE_S)
            self._unknown_at = now
        elif status_code not in BUSY:
            self._unknown_at, self._unknown_s = None, 0.0
        return self._unknown_s

    def _refusal(
        self,
        records: list[dict[str, Any]],
        status: Status | None,
        samples: Sequence[SystemSample],
        reason: str,
    ) -> None:
        """Judge records and status apart, until a status is taken by itself. Post ever fewer records, until one is
        refused alone: it is given up, and holds up no other."""
        if samples:
            # They are worth the least: whichever part it was, the next post goes without them.
            self._samples.forget(samples, refused=True)
        elif status is not None:
            self._apart = True
            if not records:
                self._status_refusal(reason)
        elif len(records) > 1:
            # 1000, 125, 15, 1: within few posts a refused record stands alone.
            self._size = max(1, len(records) // 8)
        else:
            self._spool.give_up(records[0], _line(f"{_named(records[0])}: {reason}"))
            self._size = BATCH_RECORDS
            self._acked.set()

    def _status_refusal(self, reason: str) -> None:
        """Skip a refused status; each reason is logged once."""
        # As if it had been taken: the next one replaces it, and may be taken.
        self._status_at = self._now()
        if reason != self._status_refused:
            self._status_refused = reason
            self._spool.put("logs", _line(f"the live status: {reason}"))


def _is_problem(response: httpx.Response) -> bool:
    """Whether the API itself answered, and not something on the way to it."""
    # What a proxy says in its place neither ends an attempt nor counts as a sign of life.
    return str(response.headers.get("Content-Type", "")).startswith("application/problem+json")


def _reason(response: httpx.Response) -> str:
    problem = response.json()
    found = "; ".join(f"{e.get('pointer')}: {e.get('message')}" for e in problem.get("errors", ()))
    return f"{response.status_code}, {found or problem.get('detail', '')}"[:MAX_REASON]


def _named(record: dict[str, Any]) -> str:
    which = record.get("type") or (
        f"step {record['step']}" if "step" in record else f"number {record['seq']}"
    )
    return f"a record of the stream {record['stream']}, {which}"


def _line(what: str) -> dict[str, Any]:
    """A log line about what was refused, and why."""
    text = f"[dropped: the control plane refused {what}]"
    return {"at": datetime.now(UTC).isoformat(), "worker": "supervisor", "level": "error", "line": text}
