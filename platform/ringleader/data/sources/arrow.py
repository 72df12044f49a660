"""Arrow IPC files and streams, and sets that Hugging Face `datasets` saved: a block is a record batch, mapped into
memory.

Format: https://arrow.apache.org/docs/format/Columnar.html#serialization-and-interprocess-communication-ipc
"""

import json
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from ringleader.data.sources.files import digest_of, inside, open_uri, read_text, reading, size_of, stamp_of
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
from ringleader.data.sources.paths import AnyPath, files_in, paths_of
from ringleader.data.unreadable import BlockUnreadable, FileUnreadable
from ringleader.data.uris import said

ENDINGS = (".arrow", ".arrows", ".feather", ".ipc")
MAGIC = b"ARROW1"
FEATHER_1 = b"FEA1"
Place = tuple[int, int, int, int, int]
"""A record batch: its file, its number there, of a stream the bytes where it begins and ends, its rows."""


class ArrowSource:
    """Record batches of Arrow IPC files and streams as blocks. Local files are mapped into memory: a batch that is not
    compressed is read without a copy.

    Args:
        source: a path or URI of a file, a folder of such files (`.arrow`, `.arrows`, `.feather`, `.ipc`), a folder that
            `datasets.Dataset.save_to_disk` wrote, or a list of them, in order.

    Raises:
        FileNotFoundError: nothing is there.
        FileUnreadable: it is no Arrow IPC, has other columns than the first file, or no row.
    """

    def __init__(self, source: AnyPath | Sequence[AnyPath]) -> None:
        self.paths = [
            file for each in paths_of(source) for file in _saved_set(each) or files_in(each, ENDINGS, "Arrow")
        ]
        self._stamps = [stamp_of(path) for path in self.paths]
        self._opened = PerProcess(self._open_files)
        self._sound: set[int] = set()
        facts = kept_facts(self.index_key, self._index)
        self.schema: pa.Schema = schema_in(facts)
        self._places = numbers(facts, "places", 5)
        self.block_rows = self._places[:, 4].copy()
        self.digest = digest_of("arrow", self.schema, self._places)

    def index_key(self) -> str:
        """The name under which a node keeps what was found in the files; empty where it keeps nothing."""
        return index_key(self.paths, "arrow")

    def read(self, block: int, columns: Sequence[str] | None) -> pa.RecordBatch:
        file, number, begins, ends, rows = self._places[block].tolist()
        # Before the read: what is mapped and no longer there ends the process.
        if stamp_of(self.paths[file]) != self._stamps[file]:
            raise BlockUnreadable(self.name(block), "it has changed since it was first read")
        try:
            with self._opened.get().use(file) as opened:
                if opened.seekable:
                    found = opened.reader(self._fields(columns)).get_batch(number)
                else:
                    found = opened.batch_between(begins, ends, self.schema)
            # Damaged offsets would lead anywhere in memory: looked at once in each process.
            found.validate(full=block not in self._sound)
        except Exception as error:  # of whatever kind: each file system has its own
            raise BlockUnreadable.of(self.name(block), error) from error
        if found.num_rows != rows:
            raise BlockUnreadable(self.name(block), "it has changed since it was first read")
        self._sound.add(block)
        # A reader of some columns gives them in the file's order.
        return found if columns is None else found.select(list(columns))

    def name(self, block: int) -> str:
        """The path, and the number of the record batch."""
        file, number, *_ = self._places[block].tolist()
        return f"{self.paths[file]}, record batch {number}"

    def _open_files(self) -> "OpenFiles[_ArrowFile]":
        return OpenFiles(lambda number: _ArrowFile(self.paths[number]))

    def _index(self) -> Facts:
        """Where record batches lie, by looking into all files."""
        self.schema = self._schema(0)
        files = by_threads(lambda file: list(self._places_in(file)), len(self.paths))
        found = [place for places in files for place in places]
        places = np.array(found, np.int64).reshape(-1, 5)
        places = places[places[:, 4] > 0]
        if not len(places):
            raise FileUnreadable(self.paths[0], "it has no rows", "Name files with rows.")
        return {"schema": packed_schema(self.schema), "places": pa.array(places.reshape(-1))}

    def _schema(self, file: int) -> pa.Schema:
        with reading(self.paths[file]), self._opened.get().use(file) as opened:
            return opened.reader(()).schema if opened.seekable else opened.stream(()).schema

    def _places_in(self, file: int) -> Iterator[Place]:
        """The record batches of a file."""
        path = self.paths[file]
        if not self._schema(file).equals(self.schema):
            why = f"its columns differ from those of {self.paths[0]}"
            raise FileUnreadable(path, why, "Write all files with one schema.")
        # Of each batch one column is enough to count rows: others are not unpacked.
        fields = self._fields(_narrowest(self.schema))
        with reading(path), self._opened.get().use(file) as opened:
            if opened.seekable:
                reader = opened.reader(fields)
                for number in range(reader.num_record_batches):
                    yield file, number, 0, 0, reader.get_batch(number).num_rows
            elif any(has_dictionary(kind) for kind in self.schema.types):
                why = "it is a stream with dictionary-encoded columns, where no batch can be read alone"
                raise FileUnreadable(path, why, "Write it with pyarrow.ipc.new_file.")
            else:
                yield from ((file, *place) for place in opened.places(fields))

    def _fields(self, columns: Sequence[str] | None) -> tuple[int, ...]:
        """The numbers of columns; empty for all."""
        return tuple(sorted({self.schema.get_field_index(name) for name in columns or ()}))


class _ArrowFile:
    """A file that is open, mapped where it is local.

    Attributes:
        seekable: whether it has the file format, whose end says where each batch is; else it is a stream.
    """

    def __init__(self, path: str) -> None:
        self._file = open_uri(path, mapped=True)
        begin = self._file.read_at(min(len(MAGIC), self._file.size()), 0)
        if begin.startswith(FEATHER_1):
            raise FileUnreadable(
                path, "it is Feather of version 1", "Write it with pyarrow.feather.write_feather."
            )
        self.seekable = begin == MAGIC
        self._readers: dict[tuple[int, ...], pa.RecordBatchFileReader] = {}

    def reader(self, fields: tuple[int, ...]) -> pa.RecordBatchFileReader:
        """A reader of these columns, which reads nothing of others; of all, where there are none."""
        if fields not in self._readers:
            self._readers[fields] = pa.ipc.open_file(self._file, options=_options(fields))
        return self._readers[fields]

    def stream(self, fields: tuple[int, ...]) -> pa.RecordBatchStreamReader:
        """A reader from the beginning."""
        self._file.seek(0)
        return pa.ipc.open_stream(self._file, options=_options(fields))

    def places(self, fields: tuple[int, ...]) -> Iterator[tuple[int, int, int, int]]:
        """The batches of a stream: number, first byte, end, rows."""
        reader = self.stream(fields)
        begins = self._file.tell()
        for number, batch in enumerate(reader):
            yield number, begins, self._file.tell(), batch.num_rows
            begins = self._file.tell()

    def batch_between(self, begins: int, ends: int, schema: pa.Schema) -> pa.RecordBatch:
        """The batch of a stream that lies there."""
        self._file.seek(begins)
        message = pa.ipc.read_message(self._file.read_buffer(ends - begins))
        return pa.ipc.read_record_batch(message, schema)

    def close(self) -> None:
        # What was read without a copy keeps the memory mapped.
        self._file.close()


def _options(fields: tuple[int, ...]) -> pa.ipc.IpcReadOptions:
    # One thread: a training process owns one core, and its thread count is fixed for the job.
    return pa.ipc.IpcReadOptions(use_threads=False, included_fields=list(fields))


def _saved_set(folder: str) -> list[str]:
    """The files that Hugging Face `datasets` names in a folder where it saved a set; empty where it is none."""
    if folder.endswith(ENDINGS):
        return []
    if size_of(several := inside(folder, "dataset_dict.json")) is not None:
        why = f"it holds several sets: {', '.join(_told(several, 'splits'))}"
        raise FileUnreadable(folder, why, "Name the folder of one of them below it.")
    if size_of(state := inside(folder, "state.json")) is None:
        return []
    if _told(state, "_indices_data_files", optional=True):
        why = "its rows are chosen by a list of numbers beside the table"
        raise FileUnreadable(state, why, "Call flatten_indices() on the set, and save it again.")
    return [inside(folder, each["filename"]) for each in _told(state, "_data_files")]


def _told(uri: str, key: str, *, optional: bool = False) -> list[Any]:
    """A list in a JSON file."""
    try:
        told = json.loads(read_text(uri))
        found: list[Any] = (told.get(key) or []) if optional else told[key]
    except (ValueError, KeyError, AttributeError) as error:
        raise FileUnreadable(uri, f"it is not what datasets writes ({said(error)})") from error
    return found


def _narrowest(schema: pa.Schema) -> list[str]:
    """The column that takes the least reading, in a list."""
    plain = (
        name for name, kind in zip(schema.names, schema.types, strict=True) if pa.types.is_primitive(kind)
    )
    return [next(plain, schema.names[0])] if schema.names else []


def has_dictionary(kind: pa.DataType) -> bool:
    """Whether values of a type, or in it, are numbers of a dictionary."""
    inner = (kind.field(number).type for number in range(kind.num_fields))
    return pa.types.is_dictionary(kind) or any(map(has_dictionary, inner))
