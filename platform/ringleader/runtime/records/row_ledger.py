"""The rows that entered each settled step, kept as they come in and left behind as one Parquet file.

Every attempt has a file of its own and says with which step of which earlier attempt it began. The ledger follows that
line back: what an attempt did beyond the checkpoint that the next one began with is in no weights, and not in here.
"""

import json
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from math import inf
from pathlib import Path

from ringleader.runtime.messages import SettledRows

FILE = "ledger.parquet"
_HEAD = struct.Struct("<qqq")
# Bounds the memory: a long run's rows do not fit at once.
_GROUP_ROWS = 1 << 20


@dataclass(frozen=True, slots=True)
class LedgerStretch:
    """The steps of an attempt up to `stop`, after those of the attempt before it."""

    attempt: int
    stop: float


class RowLedger:
    """Appends to a raw file in `folder`; `finish` turns those of all attempts into Parquet: step, shard, row."""

    def __init__(self, folder: Path, attempt: int = 1) -> None:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._folder = folder
        self._attempt = attempt
        self.last_step, self._whole_bytes = _last(self._raw(attempt))
        # Without a buffer: what is here outlives this process, and the next one goes on from it.
        self._file = self._raw(attempt).open("ab", buffering=0)
        # A record that the process before this one could not finish: the next one would stand behind it, unread.
        self._file.truncate(self._whole_bytes)

    def add(self, rows: SettledRows) -> None:
        """Append a step's rows, unless the step is there already. Raises OSError: it is not there, send it again."""
        if rows.step <= self.last_step:
            return
        record = _HEAD.pack(rows.step, len(rows.shards), len(rows.rows)) + rows.shards + rows.rows
        try:
            left = memoryview(record)
            while left:  # a disk that is nearly full takes a part
                left = left[self._file.write(left) :]
        except OSError:
            self._file.truncate(self._whole_bytes)
            raise
        self._whole_bytes += len(record)
        self.last_step = rows.step

    def began_with(self, step: int, attempt: int) -> None:
        """Note that this attempt goes on from the checkpoint of `step` that an earlier `attempt` wrote."""
        self._origin(self._attempt).write_text(json.dumps([attempt, step]))

    def finish(self, folder: Path) -> Path:
        """Write `folder`/ledger.parquet. The raw files stay."""
        # Only here: a supervisor starts fast, and pyarrow takes its time.
        import pyarrow as pa
        import pyarrow.parquet as pq

        self._file.close()
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / FILE
        partial = path.with_suffix(".partial")
        schema = pa.schema([("step", pa.int64()), ("shard", pa.int32()), ("row", pa.int64())])
        with pq.ParquetWriter(partial, schema) as writer:
            for table in self._tables(schema):
                writer.write_table(table)
        # Renamed into place: readers see all or nothing.
        partial.replace(path)
        return path

    def close(self) -> None:
        """Close the raw file, which stays for the next attempt."""
        self._file.close()

    def _raw(self, attempt: int) -> Path:
        return self._folder / f"attempt-{attempt}.raw"

    def _origin(self, attempt: int) -> Path:
        return self._folder / f"attempt-{attempt}.json"

    def _line(self) -> list[LedgerStretch]:
        """The stretches that the weights are made of, in the order of steps."""
        line: list[LedgerStretch] = []
        attempt, stop = self._attempt, inf
        while (origin := self._origin(attempt)).exists():
            before, start = json.loads(origin.read_text())
            line.append(LedgerStretch(attempt, stop))
            attempt, stop = before, start
        return [LedgerStretch(attempt, stop), *reversed(line)]

    def _tables(self, schema: "object") -> Iterator["object"]:
        import numpy as np
        import pyarrow as pa

        steps: list[np.ndarray] = []
        shards: list[np.ndarray] = []
        rows: list[np.ndarray] = []
        waiting = 0
        for step, shard_bytes, row_bytes in self._records():
            shards.append(np.frombuffer(shard_bytes, "<i4"))
            rows.append(np.frombuffer(row_bytes, "<i8"))
            steps.append(np.full(len(rows[-1]), step, np.int64))
            waiting += len(rows[-1])
            if waiting >= _GROUP_ROWS:
                yield pa.table([np.concatenate(c) for c in (steps, shards, rows)], schema=schema)
                steps, shards, rows, waiting = [], [], [], 0
        if waiting:
            yield pa.table([np.concatenate(c) for c in (steps, shards, rows)], schema=schema)

    def _records(self) -> Iterator[tuple[int, bytes, bytes]]:
        last = 0
        for stretch in self._line():
            for step, shards, rows in _read(self._raw(stretch.attempt)):
                # The last rows before a checkpoint may have come with it, and so be told by the attempt after it.
                if last < step <= stretch.stop:
                    last = step
                    yield step, shards, rows


def _last(raw: Path) -> tuple[int, int]:
    """The newest step that is there whole, and its end in bytes."""
    step = end = 0
    if not raw.exists():
        return step, end
    size = raw.stat().st_size
    with raw.open("rb") as file:
        while len(head := file.read(_HEAD.size)) == _HEAD.size:
            number, num_shards, num_rows = _HEAD.unpack(head)
            if file.tell() + num_shards + num_rows > size:
                break
            step, end = number, file.seek(num_shards + num_rows, os.SEEK_CUR)
    return step, end


def _read(raw: Path) -> Iterator[tuple[int, bytes, bytes]]:
    """The records of a raw file, up to the last whole one."""
    with raw.open("rb") as file:
        while len(head := file.read(_HEAD.size)) == _HEAD.size:
            step, num_shards, num_rows = _HEAD.unpack(head)
            shards, rows = file.read(num_shards), file.read(num_rows)
            if len(rows) == num_rows:
                yield step, shards, rows
