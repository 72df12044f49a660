"""Parquet files as a source: a block is a row group."""

import hashlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from ringleader.data.copies import CopyFailed, NodeCopies
from ringleader.data.sources.open_files import OpenFiles, PerProcess
from ringleader.data.sources.paths import AnyPath, files_in, resolve
from ringleader.data.unreadable import BlockUnreadable
from ringleader.data.uris import said

INDEX_THREADS = 8
TAIL_BYTES = 64 << 10
"""How much of a file's end is read at first: most footers are in there."""
END_BYTES = 8
"""The length of the footer and the mark behind it."""
WIDE = {pa.string(): pa.large_string(), pa.binary(): pa.large_binary()}
"""By type of text, the one whose values may have more than 2 GB together."""


@dataclass(frozen=True, slots=True)
class Footer:
    """The end of a Parquet file.

    Attributes:
        counts: the rows of each row group.
        digest: of the footer's bytes, which name the place and size of every column of every row group.
        stamp: size and time of change, as the file system had them before.
    """

    schema: pa.Schema
    counts: tuple[int, ...]
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
        footers = self._footers()
        self.schema: pa.Schema = footers[0].schema
        for path, footer in zip(self.paths, footers, strict=True):
            if not footer.schema.equals(self.schema):
                raise ValueError(
                    f"the columns of {path} differ from those of {self.paths[0]}: "
                    f"{_difference(footer.schema, self.schema)}"
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
        self._places = np.array([place[:2] for place in blocks], np.int32)
        self.block_rows = np.array([count for _, _, count in blocks], np.int64)
        self._digests = [footer.digest for footer in footers]
        self._stamps = np.array([footer.stamp for footer in footers], np.int64)
        self._open_files = PerProcess(self._files)

    @property
    def digest(self) -> str:
        """Of all footers, in hex."""
        return hashlib.blake2b(b"".join(self._digests), digest_size=16).hexdigest()

    def read(self, block: int, columns: Sequence[str] | None) -> pa.RecordBatch:
        """Read a row group.

        Raises:
            BlockUnreadable: it is damaged, or its file has changed or gone.
        """
        file, group = self._places[block].tolist()
        names = None if columns is None else list(columns)
        try:
            with self._open_files.get().use(file) as opened:
                # One thread: a training process owns one core, and its thread count is fixed for the job.
                read = _one_batch(opened.reader.read_row_group(group, columns=names, use_threads=False))
            why = "" if read.num_rows == self.block_rows[block] else f"it has {read.num_rows} rows"
        # What a decoder says of damaged bytes: pyarrow's own errors are among these.
        except (OSError, ValueError, MemoryError, pa.ArrowException) as error:
            why = said(error)
        if self._changed(file):
            why = "the file has changed since it was first read"
        if why:
            raise BlockUnreadable(self.name(block), why)
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
        source, self.paths = self.paths, [copies.of(path) for path in self.paths]
        try:
            footers = self._footers()
            for path, footer, digest in zip(source, footers, self._digests, strict=True):
                if footer.digest != digest:
                    raise CopyFailed(path, "it has changed since this worker opened it")
        except BaseException:
            self.paths = source  # where one copy fails, the source is read on
            raise
        self._stamps = np.array([footer.stamp for footer in footers], np.int64)
        self._open_files = PerProcess(self._files)

    def _footers(self) -> list[Footer]:
        with ThreadPoolExecutor(min(INDEX_THREADS, len(self.paths))) as pool:
            return list(pool.map(_footer, self.paths))

    def _files(self) -> "OpenFiles[_OpenFile]":
        return OpenFiles(lambda number: _OpenFile(self.paths[number]))

    def _changed(self, file: int) -> bool:
        """Whether a local file is not what it was. Of a remote one its row groups tell."""
        filesystem, path = resolve(self.paths[file])
        if not isinstance(filesystem, pafs.LocalFileSystem):
            return False
        if _stamp(filesystem.get_file_info(path)) == tuple(self._stamps[file].tolist()):
            return False
        # It may have been touched, or put back from a copy.
        try:
            again = _footer(self.paths[file])
        except (OSError, BlockUnreadable):
            return True
        same = again.digest == self._digests[file]
        if same:
            self._stamps[file] = again.stamp
        return not same


class _OpenFile:
    """A Parquet file that is open."""

    def __init__(self, source: str) -> None:
        filesystem, path = resolve(source)
        self.reader = pq.ParquetFile(filesystem.open_input_file(path))

    def close(self) -> None:
        self.reader.close(force=True)


def _footer(source: str) -> Footer:
    """Read a file's footer, in one piece where it is small.

    Raises:
        BlockUnreadable: there is none.
        FileNotFoundError: nor is the file.
    """
    filesystem, path = resolve(source)
    info = filesystem.get_file_info(path)
    if info.type is pafs.FileType.NotFound:
        raise FileNotFoundError(f"{source} does not exist")
    with filesystem.open_input_file(path) as file:
        size = file.size()
        tail = file.read_at(min(size, TAIL_BYTES), size - min(size, TAIL_BYTES))
        length = int.from_bytes(tail[-END_BYTES:-4], "little") + END_BYTES
        if len(tail) < length <= size:
            tail = file.read_at(length, size - length)
    footer = tail[-length:]
    try:
        # The same reader as for a whole file, without reading the footer again.
        with pq.ParquetFile(pa.BufferReader(footer)) as read:
            metadata, schema = read.metadata, read.schema_arrow
    except (OSError, ValueError, pa.ArrowException) as error:
        raise BlockUnreadable(source, said(error)) from error
    counts = tuple(metadata.row_group(group).num_rows for group in range(metadata.num_row_groups))
    return Footer(schema, counts, hashlib.blake2b(footer, digest_size=16).digest(), _stamp(info))


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
        table = table.cast(pa.schema(fields, table.schema.metadata)).combine_chunks()
    arrays = [column.chunk(0) if column.num_chunks else pa.array([], column.type) for column in table.columns]
    return pa.RecordBatch.from_arrays(arrays, schema=table.schema)
