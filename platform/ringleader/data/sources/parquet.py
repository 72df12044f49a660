"""Parquet files as a source: a block is a row group."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from ringleader.data.copies import CopyFailed, NodeCopies
from ringleader.data.sources.arrow_copy import ENDING, ArrowCopy, digest_of, facts_of, footer_of
from ringleader.data.sources.kept_index import (
    Facts,
    by_threads,
    index_key,
    kept_facts,
    numbers,
    packed_schema,
    schema_in,
)
from ringleader.data.sources.open_files import OpenFiles, PerProcess
from ringleader.data.sources.paths import AnyPath, files_in, reaching, resolve
from ringleader.data.unreadable import BlockUnreadable, FileUnreadable
from ringleader.data.uris import said

WIDE = {pa.string(): pa.large_string(), pa.binary(): pa.large_binary()}
"""By type of text, the one whose values may have more than 2 GB together."""


@dataclass(frozen=True, slots=True)
class Footer:
    """The end of a Parquet file.

    Attributes:
        counts: the rows of each row group.
        size_bytes: of all row groups, not compressed.
        column_bytes: of the first row group, by column.
        digest: of the footer's bytes, which name the place and size of every column of every row group.
        stamp: size and time of change, as the file system had them before.
    """

    schema: pa.Schema
    counts: tuple[int, ...]
    size_bytes: int
    column_bytes: dict[str, int]
    digest: bytes
    stamp: tuple[int, int]


class ParquetSource:
    """The row groups of Parquet files with equal columns, in order; those without rows are left out.

    Args:
        paths: a path, a folder of *.parquet, a URI of a pyarrow file system (file, s3, gs, hdfs), or a list of them.

    Raises:
        FileNotFoundError, ValueError: no file, no rows, or files whose columns differ.
        BlockUnreadable: a file is no Parquet file, or is cut off.
    """

    def __init__(self, paths: AnyPath | Sequence[AnyPath]) -> None:
        self.paths = files_in(paths, ".parquet", "Parquet")
        facts = kept_facts(self.index_key, self._index)
        self.schema: pa.Schema = schema_in(facts)
        self._places = numbers(facts, "places", 2)
        self.block_rows = numbers(facts, "rows")
        self._size_bytes = int(numbers(facts, "size_bytes").sum())
        self._column_bytes: dict[str, int] = dict(
            zip(facts["columns"].to_pylist(), facts["column_bytes"].to_pylist(), strict=True)
        )
        self._digests: list[bytes] = facts["digests"].to_pylist()
        self._stamps = numbers(facts, "stamps", 2)
        self._copied = [False] * len(self.paths)
        self._open_files = PerProcess(self._files)

    def index_key(self) -> str:
        """The name under which a node keeps what was found in the files; empty where it keeps nothing."""
        return index_key(self.paths, "parquet")

    def _index(self) -> Facts:
        """Where row groups lie, by the footers of all files."""
        footers = self._footers()
        schema = footers[0].schema
        for path, footer in zip(self.paths, footers, strict=True):
            if not footer.schema.equals(schema):
                raise ValueError(
                    f"the columns of {path} differ from those of {self.paths[0]}: "
                    f"{_difference(footer.schema, schema)}; write them alike, or give files of each kind a data "
                    f"set of their own (Mix, torch's ConcatDataset)"
                )
        blocks = [
            (file, group, count)
            for file, footer in enumerate(footers)
            for group, count in enumerate(footer.counts)
            if count
        ]
        if not blocks:
            raise ValueError(
                f"there are no rows in {', '.join(self.paths[:3])}{', …' * (len(self.paths) > 3)}"
            )
        column_bytes = next(footer.column_bytes for footer in footers if footer.column_bytes)
        return {
            "schema": packed_schema(schema),
            "places": pa.array(np.array([place[:2] for place in blocks], np.int32).reshape(-1)),
            "rows": pa.array([count for _, _, count in blocks], pa.int64()),
            "size_bytes": pa.array([footer.size_bytes for footer in footers], pa.int64()),
            "columns": pa.array(list(column_bytes), pa.string()),
            "column_bytes": pa.array(list(column_bytes.values()), pa.int64()),
            "digests": pa.array([footer.digest for footer in footers], pa.binary()),
            "stamps": pa.array(np.array([footer.stamp for footer in footers], np.int64).reshape(-1)),
        }

    @property
    def copied(self) -> bool:
        """Whether all files are read from copies that are decoded already."""
        return all(self._copied)

    @property
    def digest(self) -> str:
        """Of all footers, in hex."""
        return hashlib.blake2b(b"".join(self._digests), digest_size=16).hexdigest()

    def decoded_bytes(self, columns: Sequence[str]) -> int:
        """The least that these columns of all row groups take in memory, as the footers say."""
        share = sum(self._column_bytes.get(name, 0) for name in columns)
        return self._size_bytes * share // max(1, sum(self._column_bytes.values()))

    def read(self, block: int, columns: Sequence[str] | None) -> pa.RecordBatch:
        """Read a row group.

        Raises:
            BlockUnreadable: it is damaged, or its file has changed or gone.
        """
        file, group = self._places[block].tolist()
        names = None if columns is None else list(columns)
        failed: Exception | None = None
        try:
            with self._open_files.get().use(file) as opened:
                read = _one_batch(opened.read(group, names))
            if read.num_rows != self.block_rows[block]:
                failed = ValueError(f"it has {read.num_rows} rows")
        except Exception as error:  # of whatever kind: decoders and file systems have their own
            failed = error
        # Asked even where the read went well: bytes of another file may decode. And it tells a change from damage.
        if self._changed(file):
            raise BlockUnreadable(self.name(block), "the file has changed since it was first read")
        if failed is not None:
            raise BlockUnreadable.of(self.name(block), failed) from failed
        return read

    def name(self, block: int) -> str:
        """The path, and the number of the row group."""
        file, group = self._places[block].tolist()
        return f"{self.paths[file]}, row group {group}"

    def read_copies(self, copies: NodeCopies) -> None:
        """Read this node's copies of the files from now on, and nothing from the source any more.

        Raises:
            CopyFailed: also where a copy is not of the file that was read first.
        """
        paths = [
            copies.of(path, digest.hex()) for path, digest in zip(self.paths, self._digests, strict=True)
        ]
        copied = [
            path.endswith(ENDING) and path != before for path, before in zip(paths, self.paths, strict=True)
        ]
        marks = [_mark(*each) for each in zip(paths, copied, strict=True)]
        for path, (digest, _), known in zip(self.paths, marks, self._digests, strict=True):
            if digest != known:
                raise CopyFailed(path, "it has changed since this worker opened it")
        self.paths, self._copied = paths, copied
        self._stamps = np.array([stamp for _, stamp in marks], np.int64)
        self._open_files = PerProcess(self._files)

    def _footers(self) -> list[Footer]:
        return list(by_threads(lambda file: _footer(self.paths[file]), len(self.paths)))

    def _files(self) -> "OpenFiles[_OpenFile | ArrowCopy]":
        return OpenFiles(
            lambda number: (ArrowCopy if self._copied[number] else _OpenFile)(self.paths[number])
        )

    def _changed(self, file: int) -> bool:
        """Whether a local file is not what it was. Of a remote one its row groups tell."""
        filesystem, path = resolve(self.paths[file])
        if not isinstance(filesystem, pafs.LocalFileSystem):
            return False
        if _stamp(filesystem.get_file_info(path)) == tuple(self._stamps[file].tolist()):
            return False
        # It may have been touched, or put back from a copy.
        try:
            digest, stamp = _mark(self.paths[file], self._copied[file])
        except (OSError, BlockUnreadable, FileUnreadable):
            return True
        same = digest == self._digests[file]
        if same:
            self._stamps[file] = stamp
        return not same


class _OpenFile:
    """A Parquet file that is open."""

    def __init__(self, source: str) -> None:
        filesystem, path = resolve(source)
        self._reader = pq.ParquetFile(filesystem.open_input_file(path))

    def read(self, group: int, columns: Sequence[str] | None) -> pa.Table:
        # One thread: a training process owns one core, and its thread count is fixed for the job.
        return self._reader.read_row_group(group, columns=columns, use_threads=False)

    def close(self) -> None:
        self._reader.close(force=True)


def _mark(path: str, copied: bool) -> tuple[bytes, tuple[int, int]]:
    """The digest of the footer of a file, or of the one that it is a copy of; and its stamp."""
    if not copied:
        footer = _footer(path)
        return footer.digest, footer.stamp
    return bytes.fromhex(facts_of(Path(path)).digest), _stamp(pafs.LocalFileSystem().get_file_info(path))


def _footer(source: str) -> Footer:
    """Read a file's footer, in one piece where it is small.

    Raises:
        BlockUnreadable: there is none.
        FileNotFoundError: nor is the file.
    """
    filesystem, path = resolve(source)
    with reaching(source):
        info = filesystem.get_file_info(path)
    if info.type is pafs.FileType.NotFound:
        raise FileNotFoundError(f"{source} does not exist")
    with reaching(source), filesystem.open_input_file(path) as file:
        footer = footer_of(file)
    try:
        # The same reader as for a whole file, without reading the footer again.
        with pq.ParquetFile(pa.BufferReader(footer)) as read:
            metadata, schema = read.metadata, read.schema_arrow
    except (OSError, ValueError, pa.ArrowException) as error:
        raise BlockUnreadable(source, said(error)) from error
    groups = [metadata.row_group(group) for group in range(metadata.num_row_groups)]
    counts, size_bytes = tuple(each.num_rows for each in groups), sum(each.total_byte_size for each in groups)
    column_bytes: dict[str, int] = {}
    for column in (groups[0].column(number) for number in range(groups[0].num_columns)) if groups else ():
        name = column.path_in_schema.partition(".")[0]
        # The leaves of a nested column are stored apart, under paths that begin with its name.
        column_bytes[name] = column_bytes.get(name, 0) + column.total_uncompressed_size
    return Footer(
        schema,
        counts,
        size_bytes,
        column_bytes,
        digest_of(footer),
        _stamp(info),
    )


def _stamp(info: pafs.FileInfo) -> tuple[int, int]:
    return info.size or 0, info.mtime_ns or 0


def _difference(one: pa.Schema, other: pa.Schema) -> str:
    """The first column in which two schemas differ, in words."""
    for name in [*one.names, *other.names]:
        kinds = [str(s.field(name).type) if name in s.names else "missing" for s in (one, other)]
        if kinds[0] != kinds[1]:
            return f"{name!r} is {kinds[0]} there, and {kinds[1]} here"
    return "their order, or whether they may be null"


def _one_batch(table: pa.Table) -> pa.RecordBatch:
    """A row group without chunks."""
    table = table.combine_chunks()
    if any(column.num_chunks > 1 for column in table.columns):
        fields = [field.with_type(WIDE.get(field.type, field.type)) for field in table.schema]
        # Offsets of plain texts have 32 bits: what is larger stays in chunks until they are wide.
        table = table.cast(pa.schema(fields, table.schema.metadata)).combine_chunks()
    arrays = [column.chunk(0) if column.num_chunks else pa.array([], column.type) for column in table.columns]
    return pa.RecordBatch.from_arrays(arrays, schema=table.schema)
