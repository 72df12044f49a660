"""The Chrome trace of an attempt: spans kept as they come in, written out as one JSON file for Perfetto or
chrome://tracing.

The format is that of Google, "Trace Event Format", 2016: complete events (`ph: X`), a process for each worker, a thread
for each of its tracks, microseconds. Workers' clocks are those of their machines.
"""

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

from ringleader.comm.timeline import BUCKETS, TRAINING, WORDS, TimelineStretch

FILE = "trace.json"
HEAD = "trace.head"
SEGMENT_BYTES = 64 << 20
"""A trace holds between one and two segments, of the newest steps: the older one is dropped when both are full."""

TRACKS = (TRAINING, BUCKETS, WORDS)


class TraceFile:
    """A trace in progress: appends to raw files in `folder`, going on with those that are there; `finish` makes one
    document of them.

    Attributes:
        lost: the number of workers' transactions that were dropped in favour of newer ones.
    """

    def __init__(self, folder: Path, *, segment_bytes: int = SEGMENT_BYTES) -> None:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.lost = 0
        self._segment_bytes = segment_bytes
        self._raw, self._older, self._head = folder / "trace.raw", folder / "trace.older", folder / HEAD
        before = json.loads(self._head.read_text()) if self._head.exists() else {}
        # Kept over restarts of the supervisor: all times in the raw files count from it.
        self._begun_ns: int = before.get("begun_ns", time.time_ns())
        self._workers: dict[str, int] = before.get("workers", {})
        # Before it is opened to append: an event behind half a line would spoil the whole document.
        _drop_torn_line(self._raw)
        self._file: TextIO = self._raw.open("a", encoding="utf-8")
        self._counts = [0, 0]
        self._finished: Path | None = None

    def add(self, worker: str, stretch: TimelineStretch) -> None:
        """Append the spans of a worker's settled transaction."""
        if worker not in self._workers:
            self._workers[worker] = len(self._workers) + 1
            # Before the worker's first event, whose process number would mean nothing without it.
            _write_whole(self._head, json.dumps({"begun_ns": self._begun_ns, "workers": self._workers}))
        number = self._workers[worker]
        for event in _events(stretch, number, self._begun_ns):
            self._file.write(json.dumps(event, separators=(",", ":")) + "\n")
        self._counts[0] += 1
        if self._file.tell() >= self._segment_bytes:
            self._rotate()

    def flush(self) -> None:
        """Hand everything added to the system, so that it outlives this process."""
        self._file.flush()

    def finish(self, folder: Path) -> Path:
        """Write `folder`/trace.json, of which readers see all or nothing, and return its path; idempotent. The raw
        files stay until `close`."""
        if self._finished is None:
            self._file.close()
            folder.mkdir(parents=True, exist_ok=True)
            path = folder / FILE
            partial = path.with_suffix(".partial")
            with partial.open("w", encoding="utf-8") as file:
                self._write(file)
            partial.replace(path)
            self._finished = path
        return self._finished

    def close(self) -> None:
        self._file.close()
        for raw in (self._raw, self._older, self._head):
            raw.unlink(missing_ok=True)

    def _rotate(self) -> None:
        self._file.close()
        self.lost += self._counts[1]
        self._counts = [0, self._counts[0]]
        # The renamed segment takes the place of the one before it: that one's transactions are lost.
        self._raw.replace(self._older)
        self._file = self._raw.open("w", encoding="utf-8")

    def _write(self, file: TextIO) -> None:
        about = {"began_unix_ns": self._begun_ns, "lost_transactions": self.lost}
        file.write(f'{{"displayTimeUnit":"ms","otherData":{json.dumps(about)},"traceEvents":[')
        separator = "\n"
        for line in self._lines():
            file.write(f"{separator}{line}")
            separator = ",\n"
        file.write("\n]}\n")

    def _lines(self) -> Iterator[str]:
        for worker, number in self._workers.items():
            yield json.dumps(_name("process_name", number, 0, worker))
            for thread, track in enumerate(TRACKS):
                yield json.dumps(_name("thread_name", number, thread, track))
        for raw in (self._older, self._raw):
            if raw.exists():
                with raw.open(encoding="utf-8") as lines:
                    yield from (line.rstrip("\n") for line in lines)


def _drop_torn_line(raw: Path) -> None:
    """Cut off a last line that a killed process did not write to its end."""
    if raw.exists():
        whole = raw.read_bytes()
        # Without any line break `rfind` says -1, and nothing stays.
        os.truncate(raw, whole.rfind(b"\n") + 1)


def _write_whole(path: Path, text: str) -> None:
    partial = path.with_suffix(".partial")
    # Under another name first: whoever is killed here leaves the old file whole.
    partial.write_text(text)
    partial.replace(path)


def _events(stretch: TimelineStretch, process: int, begun_ns: int) -> Iterator[dict[str, Any]]:
    offset_ns = round(stretch.epoch_s * 1e9) - begun_ns

    def event(track: str, name: str, start_s: float, stop_s: float, facts: dict[str, Any]) -> dict[str, Any]:
        # Whole nanoseconds, so that what lies inside a span does so in the file.
        start, stop = round(start_s * 1e9), round(stop_s * 1e9)
        place = {"pid": process, "tid": TRACKS.index(track)}
        times = {"ts": (offset_ns + start) / 1e3, "dur": (stop - start) / 1e3}
        return {"name": name, "ph": "X", "cat": track, **place, **times, "args": facts}

    about = {
        "first": stretch.first,
        "last": stretch.last,
        "generation": stretch.generation,
        "rank": stretch.rank,
    }
    if stretch.dropped:
        about["spans_dropped"] = stretch.dropped
    yield event(TRAINING, _title(stretch), stretch.start_s, stretch.stop_s, about)
    for span in stretch.spans:
        yield event(span.track, span.name, span.start_s, span.stop_s, span.facts)


def _title(stretch: TimelineStretch) -> str:
    if stretch.first > stretch.last:
        return "after the last step"
    steps = f"{stretch.first}" if stretch.first == stretch.last else f"{stretch.first}-{stretch.last}"
    return f"step {steps}"


def _name(kind: str, process: int, thread: int, name: str) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "pid": process, "tid": thread, "args": {"name": name}}
