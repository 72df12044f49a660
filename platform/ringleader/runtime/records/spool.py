"""Settled records of one attempt on disk until the control plane has them: numbered, bounded, thinned when full. And
beside them, in the same transactions, the notes for the next process of the supervisor."""

import json
import shutil
import sqlite3
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any

from ringleader.text import utf8_json

MAX_BYTES = 64 << 20
FEWEST_METRICS = 64
STREAMS = ("events", "metrics", "logs", "outcome")
RECORDS = "records.db"
BATCH_RECORDS = 1000
BATCH_BYTES = 256 << 10

_SCHEMA = """
CREATE TABLE IF NOT EXISTS record (
  id INTEGER PRIMARY KEY, stream TEXT NOT NULL, seq INTEGER NOT NULL, size INTEGER NOT NULL, body TEXT NOT NULL
);
CREATE INDEX IF NOT EXISTS by_stream ON record (stream, seq);
CREATE TABLE IF NOT EXISTS note (name TEXT PRIMARY KEY, value BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS number (stream TEXT PRIMARY KEY, last INTEGER NOT NULL);
"""


class Spool:
    """`put` numbers records, `flush` brings them to disk, `batch` reads what is due, `ack` forgets.

    When more than `max_bytes` wait, every second metric is dropped, then the older half of the log lines, both
    counted in `dropped`. Events and the outcome are dropped only where the receiver refuses them for good.

    Attributes:
        notes: what was noted by the processes before this one, and by this one.
    """

    def __init__(self, folder: Path, *, max_bytes: int = MAX_BYTES) -> None:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._folder = folder
        self._closed = False
        self.dropped: dict[str, int] = {}
        self._max_bytes = max_bytes
        # Taken again by `put` and `note` within `together`.
        self._lock = threading.RLock()
        self._fresh: list[tuple[str, int, int, str]] = []
        self._noted: dict[str, bytes] = {}
        self._given_up: set[tuple[str, int]] = set()
        # The process may die at any time, the machine takes the attempt with it: no fsync.
        self._db = sqlite3.connect(folder / RECORDS, isolation_level=None, check_same_thread=False)
        self._db.executescript("PRAGMA journal_mode=WAL; PRAGMA synchronous=OFF;" + _SCHEMA)
        self._numbers: dict[str, int] = dict.fromkeys(STREAMS, 0)
        # Not from the records: acknowledged ones are gone, and their numbers must not come again.
        self._numbers.update(self._db.execute("SELECT stream, last FROM number"))
        self.notes: dict[str, bytes] = dict(self._db.execute("SELECT name, value FROM note"))

    def note(self, name: str, value: bytes) -> None:
        """Keep a value under its name, from the next `flush` on."""
        with self._lock:
            self.notes[name] = self._noted[name] = value

    def together(self) -> AbstractContextManager[Any]:
        """A block whose records and notes reach the disk together or not at all."""
        return self._lock

    def put(self, stream: str, record: Mapping[str, Any]) -> int:
        """Take a JSON-ready record; its number within the stream is returned and written into it.

        Raises:
            ValueError, TypeError: it is no JSON; nothing was taken.
        """
        with self._lock:
            seq = self._numbers[stream] + 1
            body = utf8_json({**record, "stream": stream, "seq": seq})
            # Behind the line that may raise: what is no JSON takes no number.
            self._numbers[stream] = seq
            self._fresh.append((stream, seq, len(body.encode()), body))
            return seq

    def flush(self) -> None:
        """Write what was put and noted since, in one transaction, and thin out when too much waits.

        Raises:
            OSError: the disk does not take it; it stays here for the next time.
        """
        with self._lock:
            if self._closed or not (self._fresh or self._noted or self._given_up):
                return
            try:
                self._write()
            except sqlite3.OperationalError as error:
                # On some errors, as a full disk, SQLite has rolled back by itself.
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise OSError(f"cannot write to {self._folder}: {error}") from error
            self._fresh, self._noted, self._given_up = [], {}, set()

    def batch(self, *, max_records: int, max_bytes: int) -> list[dict[str, Any]]:
        """The oldest records, the outcome only when nothing else waits; at least one if there is any."""
        with self._lock:
            order = "SELECT size, body FROM record ORDER BY stream = 'outcome', id LIMIT ?"
            # They are in the table until the next `flush`: so many more are read, and left out below.
            given_up = set(self._given_up)
            rows = self._db.execute(order, (max_records + len(given_up),)).fetchall()
        chosen: list[dict[str, Any]] = []
        total = 0
        for size, body in rows:
            record = json.loads(body)
            if (record["stream"], record["seq"]) in given_up:
                continue
            total += size
            if chosen and (total > max_bytes or len(chosen) == max_records):
                break
            chosen.append(record)
        return chosen

    def ack(self, acked: Mapping[str, int]) -> None:
        """Forget every record of a stream up to its number, which the receiver has stored."""
        with self._lock:
            for stream, seq in acked.items():
                self._db.execute("DELETE FROM record WHERE stream = ? AND seq <= ?", (stream, seq))

    def give_up(self, record: Mapping[str, Any], line: Mapping[str, Any]) -> None:
        """Forget a record that the receiver will never take, counted in `dropped`. `line` says so in the logs, unless a
        log line was refused itself. Of an outcome the bare word stays, once."""
        stream, reason = record["stream"], record.get("reason")
        with self._lock:
            # Removed by the next `flush`, in the same transaction that writes down what replaces it.
            self._given_up.add((stream, record["seq"]))
            self._count(stream, 1)
            if stream != "logs":
                self.put("logs", line)
            # The bare word is kept: an attempt has to end. Once only: this one may be refused too.
            if stream == "outcome" and self.dropped[stream] == 1:
                why = {"code": reason["code"], "message": line["line"]} if reason else None
                self.put("outcome", {"at": line["at"], "outcome": record["outcome"], "reason": why})

    @property
    def empty(self) -> bool:
        """Whether everything that was put is acknowledged or dropped."""
        with self._lock:
            if self._closed:
                return True
            return not self._fresh and not self._db.execute("SELECT 1 FROM record LIMIT 1").fetchone()

    def close(self) -> None:
        """Take nothing more. Records that wait stay on disk, for `unposted`."""
        with self._lock:
            with suppress(OSError):  # what the disk does not take is lost
                self.flush()
            self._closed = True
            self._db.close()

    def discard(self) -> None:
        """Close and remove the spool: nothing in it is needed any more."""
        with self._lock:
            self._closed = True
            self._db.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _write(self) -> None:
        fresh, noted = self._fresh, self._noted
        numbers = {stream: self._numbers[stream] for stream, *_ in fresh}
        self._db.execute("BEGIN")
        self._db.executemany("DELETE FROM record WHERE stream = ? AND seq = ?", self._given_up)
        self._db.executemany("INSERT INTO record (stream, seq, size, body) VALUES (?, ?, ?, ?)", fresh)
        self._db.executemany("INSERT OR REPLACE INTO note VALUES (?, ?)", noted.items())
        self._db.executemany("INSERT OR REPLACE INTO number VALUES (?, ?)", numbers.items())
        if fresh:
            self._thin()
        self._db.execute("COMMIT")

    def _thin(self) -> None:
        while self._size() > self._max_bytes:
            if not (self._thin_metrics() or self._thin_logs()):
                return

    def _size(self) -> int:
        return int(self._db.execute("SELECT COALESCE(SUM(size), 0) FROM record").fetchone()[0])

    def _thin_metrics(self) -> bool:
        ids = [
            row[0] for row in self._db.execute("SELECT id FROM record WHERE stream = 'metrics' ORDER BY id")
        ]
        # The first and the newest always stay.
        return len(ids) > FEWEST_METRICS and self._delete("metrics", ids[1:-1:2])

    def _thin_logs(self) -> bool:
        ids = [row[0] for row in self._db.execute("SELECT id FROM record WHERE stream = 'logs' ORDER BY id")]
        return self._delete("logs", ids[: (len(ids) + 1) // 2])

    def _delete(self, stream: str, ids: Sequence[int]) -> bool:
        self._db.executemany("DELETE FROM record WHERE id = ?", [(i,) for i in ids])
        self._count(stream, len(ids))
        return bool(ids)

    def _count(self, stream: str, number: int) -> None:
        # A new dictionary: the status reads the old one on another thread.
        self.dropped = {**self.dropped, stream: self.dropped.get(stream, 0) + number}


def unposted(folder: Path) -> Iterator[list[dict[str, Any]]]:
    """The records that wait in the spool of a supervisor that is gone for good, in batches; each is forgotten when the
    next one is asked for, and the folder is removed after the last.

    Raises:
        OSError, sqlite3.Error: it cannot be read.
    """
    if not (folder / RECORDS).exists():
        return
    spool = Spool(folder)
    while batch := spool.batch(max_records=BATCH_RECORDS, max_bytes=BATCH_BYTES):
        yield batch
        spool.ack({record["stream"]: record["seq"] for record in batch})
    spool.discard()
