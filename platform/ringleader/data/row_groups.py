"""Row groups of Parquet files: opened on first use, read whole, the newest kept within a bound."""

import bisect
import os
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from threading import Lock

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from ringleader.data.copies import CopyFailed, NodeCopies, resolve


@dataclass(frozen=True, slots=True)
class RowGroup:
    """The place of one row group: its file, its index there, and its first row in the whole set."""

    file: int
    index: int
    first_row: int
    rows: int


@dataclass(slots=True)
class _Opened:
    """The open files and cached tables of one process. Never pickled, never shared over a fork."""

    pid: int = field(default_factory=os.getpid)
    lock: Lock = field(default_factory=Lock)
    files: dict[int, pq.ParquetFile] = field(default_factory=dict)
    tables: OrderedDict[int, pa.Table] = field(default_factory=OrderedDict)
    size_bytes: int = 0

    def take(self, group: int) -> pa.Table | None:
        """Take a table out of the cache; None where it is not there."""
        table = self.tables.pop(group, None)
        self.size_bytes -= table.nbytes if table is not None else 0
        return table

    def keep(self, group: int, table: pa.Table, most_bytes: int) -> None:
        """Keep a table as the newest used; the oldest go while there is more than `most_bytes`."""
        self.tables[group] = table
        self.size_bytes += table.nbytes
        while self.size_bytes > most_bytes and len(self.tables) > 1:
            _, oldest = self.tables.popitem(last=False)
            self.size_bytes -= oldest.nbytes


class RowGroups:
    """Every row group of a list of Parquet files with equal columns, in order.

    Args:
        sources: paths, folders of *.parquet, or URIs of a pyarrow file system (file, s3, gs, hdfs).
        columns: which columns to read; None reads all.
        cache_bytes: how much decompressed data to keep; at least one row group is kept.
    """

    def __init__(self, sources: Sequence[str], columns: Sequence[str] | None, cache_bytes: int) -> None:
        self.paths = [path for source in sources for path in _files_of(source)]
        if not self.paths:
            raise FileNotFoundError(f"no Parquet file found under {', '.join(sources) or 'an empty list'}")
        self.cache_bytes = cache_bytes
        self._opened = _Opened()
        self.schema: pa.Schema = self._file(self._opened, 0).schema_arrow
        self.columns = list(columns) if columns is not None else list(self.schema.names)
        self._check_columns()
        self.groups = self._locate()
        self.total_rows = sum(group.rows for group in self.groups)
        self._starts = [group.first_row for group in self.groups]

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in self.__dict__.items() if name != "_opened"}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self._opened = _Opened()

    def read_copies(self, copies: NodeCopies) -> None:
        """Read this node's copies of the files from now on, and nothing from the source any more.

        Raises:
            CopyFailed: also where a copy is not of the file that was opened.
        """
        source, opened = self.paths, self._own()
        paths, local = [copies.of(path) for path in source], _Opened()
        for number, path in enumerate(paths):
            local.files[number] = _open(path)
            if not local.files[number].metadata.equals(self._file(opened, number).metadata):
                raise CopyFailed(source[number], "it has changed since this worker opened it")
        # All at once and last: where one copy fails, the source is read on.
        self.paths, self._opened = paths, local

    def find(self, row: int) -> int:
        """The number of the group that holds `row`."""
        return bisect.bisect_right(self._starts, row) - 1

    def read(self, group: int) -> pa.Table:
        """The columns of one group; from the cache where it is there."""
        opened = self._own()
        with opened.lock:
            table = opened.take(group)
            if table is None:
                table = self._read(opened, group)
            opened.keep(group, table, self.cache_bytes)
        return table

    @property
    def cached(self) -> int:
        """The number of row groups that this process holds now."""
        return len(self._own().tables)

    def _own(self) -> _Opened:
        """This process's files: a forked child must not share its parent's file positions or a held lock."""
        if self._opened.pid != os.getpid():
            self._opened = _Opened()
        return self._opened

    def _read(self, opened: _Opened, group: int) -> pa.Table:
        place = self.groups[group]
        file = self._file(opened, place.file)
        # One thread: a training process owns one core, and its thread count is fixed for the job.
        return file.read_row_group(place.index, columns=self.columns, use_threads=False).combine_chunks()

    def _file(self, opened: _Opened, number: int) -> pq.ParquetFile:
        if number not in opened.files:
            opened.files[number] = _open(self.paths[number])
        return opened.files[number]

    def _check_columns(self) -> None:
        missing = [name for name in self.columns if name not in self.schema.names]
        if missing:
            raise KeyError(f"no column {missing} in {self.paths[0]}; it has {self.schema.names}")

    def _locate(self) -> list[RowGroup]:
        places: list[tuple[int, int, int]] = []
        for number, path in enumerate(self.paths):
            file = self._file(self._opened, number)
            if not file.schema_arrow.equals(self.schema):
                raise ValueError(f"the columns of {path} differ from those of {self.paths[0]}")
            counts = [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)]
            places += [(number, i, count) for i, count in enumerate(counts) if count]
        starts = accumulate((count for _, _, count in places), initial=0)
        return [
            RowGroup(number, i, start, count)
            for (number, i, count), start in zip(places, starts, strict=False)
        ]


def _open(source: str) -> pq.ParquetFile:
    filesystem, path = resolve(source)
    return pq.ParquetFile(filesystem.open_input_file(path))


def _files_of(source: str) -> list[str]:
    """One file, or the *.parquet of a folder by name."""
    filesystem, path = resolve(source)
    if filesystem.get_file_info(path).type is not pafs.FileType.Directory:
        return [source]
    names = [i.path for i in filesystem.get_file_info(pafs.FileSelector(path)) if i.path.endswith(".parquet")]
    # pyarrow lists paths without their scheme.
    prefix = source.split("://", 1)[0] + "://" if "://" in source else ""
    return [prefix + name for name in sorted(names)]
