"""The copy of a Parquet file as Arrow: its row groups decoded once, and mapped into memory wherever they are read.

Format: https://arrow.apache.org/docs/format/Columnar.html#ipc-file-format
"""

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from ringleader.data.sources.arrow import has_dictionary

ENDING = ".arrow"
FACTS = b"ringleader.copy"
"""The key of the schema's metadata under which the facts are."""
END_BYTES = 8
"""The length of a Parquet file's footer and the mark behind it."""
TAIL_BYTES = 64 << 10
"""How much of a file's end is read at first: most footers are in there."""


@dataclass(frozen=True, slots=True)
class CopyFacts:
    """The facts that a copy tells of its source.

    Attributes:
        digest: of the Parquet file's footer, in hex.
        size_bytes: of the Parquet file.
        rows: of each row group. Each is a record batch, or several where a column has more than 2 GB there.
    """

    digest: str
    size_bytes: int
    rows: tuple[int, ...]


def footer_of(file: pa.NativeFile) -> bytes:
    """The end of an open Parquet file, in one piece where it is small."""
    size = file.size()
    tail: bytes = file.read_at(min(size, TAIL_BYTES), size - min(size, TAIL_BYTES))
    length = int.from_bytes(tail[-END_BYTES:-4], "little") + END_BYTES
    if len(tail) < length <= size:
        tail = file.read_at(length, size - length)
    return tail[-length:]


def digest_of(footer: bytes) -> bytes:
    """The digest of a footer, which names the place and size of every column of every row group."""
    return hashlib.blake2b(footer, digest_size=16).digest()


def write_copy(parquet: Path, copy: Path) -> bool:
    """Write a Parquet file as Arrow, whole or not at all; returns whether it can be written so.

    Args:
        copy: where it will be. Until it is whole and on disk it has the ending `.partial`.

    Raises:
        OSError: saying what is wrong.
    """
    partial = copy.with_suffix(".partial")
    with pa.OSFile(str(parquet)) as opened, pq.ParquetFile(opened) as read:
        # The dictionaries of two row groups differ, and an Arrow file has one for all.
        if any(map(has_dictionary, read.schema_arrow.types)):
            return False
        rows = tuple(read.metadata.row_group(group).num_rows for group in range(read.num_row_groups))
        facts = CopyFacts(digest_of(footer_of(opened)).hex(), parquet.stat().st_size, rows)
        metadata = {**(read.schema_arrow.metadata or {}), FACTS: json.dumps(asdict(facts)).encode()}
        try:
            with partial.open("wb") as file:
                with pa.ipc.new_file(file, read.schema_arrow.with_metadata(metadata)) as writer:
                    for batch in _batches(read, rows):
                        writer.write_batch(batch.replace_schema_metadata(metadata))
                file.flush()
                # The rename may be on disk before the bytes are, and then a loss of power leaves a whole name of half a
                # file.
                os.fsync(file.fileno())
            partial.replace(copy)
        finally:
            partial.unlink(missing_ok=True)
    return True


def facts_of(copy: Path) -> CopyFacts:
    """The facts that a copy tells of its source. Raises OSError: it is no such copy, or is not whole."""
    try:
        with ArrowCopy(str(copy)) as opened:
            return opened.facts
    except (ValueError, KeyError) as error:
        raise OSError(f"{copy} is not a copy of a Parquet file: {error}") from error


class ArrowCopy:
    """A copy that is open, and mapped into memory: what is read of it is not copied.

    Attributes:
        facts: what it tells of its source.
    """

    def __init__(self, path: str) -> None:
        self._file = pa.memory_map(path)
        self._readers: dict[tuple[int, ...], pa.RecordBatchFileReader] = {}
        told = self._reader(()).schema
        self.facts = _facts(told.metadata)
        rest = {key: value for key, value in told.metadata.items() if key != FACTS}
        self._schema: pa.Schema = told.with_metadata(rest or None)
        self._ends = _ends(self._reader(()), self.facts.rows)

    def read(self, group: int, columns: Sequence[str] | None) -> pa.Table:
        """The row group, its columns in the order of the names; of all when None."""
        names = self._schema.names if columns is None else list(columns)
        fields = tuple(sorted({self._schema.get_field_index(name) for name in names}))
        reader = self._reader(fields)
        numbers = range(self._ends[group - 1] if group else 0, self._ends[group])
        batches = [reader.get_batch(number) for number in numbers]
        table = pa.Table.from_batches(batches, reader.schema).select(names)
        return table.replace_schema_metadata(self._schema.metadata)

    def close(self) -> None:
        # What was read without a copy keeps the memory mapped.
        self._file.close()

    def __enter__(self) -> "ArrowCopy":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _reader(self, fields: tuple[int, ...]) -> pa.RecordBatchFileReader:
        """A reader of these columns; of all, where there are none."""
        if fields not in self._readers:
            # One thread: a training process owns one core, and its thread count is fixed for the job.
            options = pa.ipc.IpcReadOptions(use_threads=False, included_fields=list(fields))
            self._readers[fields] = pa.ipc.open_file(self._file, options=options)
        return self._readers[fields]


def _batches(read: pq.ParquetFile, rows: Sequence[int]) -> Iterator[pa.RecordBatch]:
    for group in (group for group, count in enumerate(rows) if count):
        yield from read.read_row_group(group, use_threads=False).combine_chunks().to_batches()


def _ends(reader: pa.RecordBatchFileReader, rows: Sequence[int]) -> list[int]:
    """For each row group, the number of the record batch behind its last one."""
    number, ends = 0, []
    # One batch a group, as almost always: then none has to be read to count its rows.
    alone = reader.num_record_batches == sum(count > 0 for count in rows)
    for count in rows:
        left = count
        while left > 0:
            left = 0 if alone else left - reader.get_batch(number).num_rows
            number += 1
        ends.append(number)
    return ends


def _facts(metadata: dict[bytes, bytes] | None) -> CopyFacts:
    told = json.loads((metadata or {})[FACTS])
    return CopyFacts(told["digest"], told["size_bytes"], tuple(told["rows"]))
