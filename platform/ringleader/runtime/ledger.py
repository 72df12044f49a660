"""The rows that entered each settled step, kept as they come in and left behind as one Parquet file."""

import struct
from collections.abc import Iterator
from pathlib import Path

from ringleader.runtime.messages import Rows

FILE = "ledger.parquet"
_HEAD = struct.Struct("<qqq")
_GROUP_ROWS = 1 << 20


class Ledger:
    """Appends to a raw file in `folder`; `finish` turns it into Parquet with columns step, shard, row."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._raw = folder / "ledger.raw"
        self._file = self._raw.open("wb")
        self.last_step = 0

    def add(self, rows: Rows) -> None:
        """A step that is there already is not taken twice."""
        if rows.step <= self.last_step:
            return
        self.last_step = rows.step
        self._file.write(_HEAD.pack(rows.step, len(rows.shards), len(rows.rows)))
        self._file.write(rows.shards)
        self._file.write(rows.rows)

    def finish(self, folder: Path) -> Path:
        """Write `folder`/ledger.parquet; readers see all or nothing."""
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
        partial.replace(path)
        self._raw.unlink()
        return path

    def close(self) -> None:
        self._file.close()
        self._raw.unlink(missing_ok=True)

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
        with self._raw.open("rb") as file:
            while head := file.read(_HEAD.size):
                step, shard_bytes, row_bytes = _HEAD.unpack(head)
                yield step, file.read(shard_bytes), file.read(row_bytes)
