"""JSONL: one JSON object a line, found by an index of lines that is made once; some thousand lines are a block."""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from ringleader.data.sources.files import SourceFiles, digest_of
from ringleader.data.sources.json_rows import JsonSchema, LineUnlike, parse
from ringleader.data.sources.kept_index import Facts, index_key, kept_facts, numbers, packed_schema, schema_in
from ringleader.data.sources.paths import AnyPath, files_in
from ringleader.data.sources.source import columns_of
from ringleader.data.unreadable import BlockUnreadable, FileUnreadable

ENDINGS = (".jsonl", ".ndjson")
COMPRESSED = {
    b"\x1f\x8b": "gunzip -k",
    b"BZh": "bunzip2 -k",
    b"\x28\xb5\x2f\xfd": "unzstd",
    b"\xfd7z": "unxz -k",
}
"""By the first bytes of a compressed file, the command that unpacks it."""
SAME_TYPES = "Give every line the same types, or name them: JsonlSource(…, schema=pyarrow.schema(…))."
ONE_A_LINE = (
    "Write one JSON object a line, in UTF-8, lines ended by a line feed, with nothing between or around them: for an "
    "array of objects, jq -c '.[]'."
)
BLOCK_LINES = 4096
BLOCK_BYTES = 4 << 20
READ_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class _Lines:
    """Some whole lines of a file: their bytes [begins, ends), and the number of the first one, from 1."""

    begins: int
    ends: int
    first: int
    data: bytes


class JsonlSource:
    """Lines of JSONL files as rows. All files are read once on a node: for the places of lines, and for types.

    Types are those that pyarrow infers over all lines together: a field that is missing is null, integers among
    numbers with a point are floats, dates stay text.

    Args:
        source: a path or URI of a file, a folder of them (`.jsonl`, `.ndjson`), or a list of them, in order.
        schema: the columns with their types. Lines are then not parsed before they are read; other fields are left out.
        block_lines: as many lines of a block at most.
        block_bytes: as many bytes at most, but at least one line.

    Raises:
        FileNotFoundError: nothing is there.
        FileUnreadable: it is compressed, has no rows, or a line (named) is no JSON or has another
            type than the lines before it.
    """

    def __init__(
        self,
        source: AnyPath | Sequence[AnyPath],
        *,
        schema: pa.Schema | None = None,
        block_lines: int = BLOCK_LINES,
        block_bytes: int = BLOCK_BYTES,
    ) -> None:
        self._files = SourceFiles(files_in(source, ENDINGS, "JSONL"))
        self._most = (block_lines, block_bytes)
        self._given = schema
        facts = kept_facts(self.index_key, self._index)
        self.schema: pa.Schema = schema_in(facts)
        # (blocks, 5): file, first byte, end, number of the first line, rows.
        self._places = numbers(facts, "places", 5)
        self.block_rows = self._places[:, 4].copy()
        self.digest = digest_of("jsonl", facts["contents"][0].as_py(), self._places, self.schema)

    def index_key(self) -> str:
        """The name under which a node keeps what was found in the files; empty where it keeps nothing."""
        given = b"" if self._given is None else self._given.serialize().to_pybytes()
        return index_key(self._files.uris, "jsonl", self._most, given)

    def _index(self) -> Facts:
        """Where blocks lie, by reading all files."""
        contents, inferred = hashlib.sha256(), JsonSchema()
        places = []
        for file in range(len(self._files.uris)):
            for lines in self._lines(file):
                contents.update(lines.data)
                if rows := self._rows(file, lines, inferred):
                    places.append((file, lines.begins, lines.ends, lines.first, rows))
        if not places:
            raise FileUnreadable(self._files.uris[0], "it has no rows", "Name files with rows.")
        return {
            "schema": packed_schema(inferred.schema if self._given is None else self._given),
            "places": pa.array(np.array(places, np.int64).reshape(-1)),
            "contents": pa.array([contents.hexdigest()]),
        }

    def read(self, block: int, columns: Sequence[str] | None) -> pa.RecordBatch:
        file, begins, ends, _, rows = self._places[block].tolist()
        wanted = columns_of(self.schema, columns)
        # Types inferred over all lines name every field: another one has come since, and the file has changed.
        others = "error" if columns is None and self._given is None else "ignore"
        try:
            data = bytes(self._files.read(file, begins, ends - begins))
            found = parse(data, wanted, others=others)
        except (pa.ArrowException, FileUnreadable) as error:
            raise BlockUnreadable.of(self.name(block), error) from error
        if found.num_rows != rows:
            raise BlockUnreadable(self.name(block), "it has changed since its lines were counted")
        return found.combine_chunks().to_batches()[0]

    def decoded_bytes(self, columns: Sequence[str]) -> int:
        """About what all columns take in memory: as much as their lines."""
        return int((self._places[:, 2] - self._places[:, 1]).sum())

    def name(self, block: int) -> str:
        file, _, _, first, rows = self._places[block].tolist()
        return f"{self._files.uris[file]}, {rows} rows from line {first}"

    def _rows(self, file: int, lines: _Lines, inferred: JsonSchema) -> int:
        """The rows in some lines, whose types are taken in where none are given."""
        if self._given is not None:
            return sum(bool(line.strip()) for line in lines.data.split(b"\n"))
        try:
            return inferred.take(lines.data)
        except LineUnlike as error:
            raise FileUnreadable(
                f"line {lines.first + error.line} of {self._files.uris[file]}",
                str(error),
                SAME_TYPES if error.other_types else ONE_A_LINE,
            ) from error

    def _lines(self, file: int) -> Iterator[_Lines]:
        """A file's blocks in order: how it is read does not matter for where they end."""
        size, data, begins, read, first = self._files.size(file), b"", 0, 0, 1
        _refuse_compressed(self._files.uris[file], bytes(self._files.read(file, 0, min(size, 4))))
        while begins < size:
            more = min(READ_BYTES, size - read)
            data += bytes(self._files.read(file, read, more))
            read += more
            ends = np.flatnonzero(np.frombuffer(data, np.uint8) == ord("\n")) + 1
            # The last line may end with the file, without a line feed.
            if read == size and (not len(ends) or ends[-1] != len(data)):
                ends = np.append(ends, len(data))
            done, cut = 0, 0
            while (stop := self._cut(ends, done, cut, read == size)) > done:
                end = int(ends[stop - 1])
                yield _Lines(begins + cut, begins + end, first, data[cut:end])
                first, done, cut = first + stop - done, stop, end
            data, begins = data[cut:], begins + cut

    def _cut(self, ends: np.ndarray, done: int, begins: int, last: bool) -> int:
        """The number of lines up to the end of the next block, of those that end at `ends`; `done`: read more first."""
        most_lines, most_bytes = self._most
        within = int(np.searchsorted(ends, begins + most_bytes, "right"))
        stop = max(done + 1, min(done + most_lines, within))
        # Up to the last line that is known, the block may go on with lines that are not: more is read before it is cut.
        if stop <= len(ends) and (last or stop < len(ends) or stop == done + most_lines):
            return stop
        return done


def _refuse_compressed(uri: str, begin: bytes) -> None:
    for magic, command in COMPRESSED.items():
        if begin.startswith(magic):
            why = "it is compressed, so that no row can be found without unpacking all before it"
            raise FileUnreadable(
                uri, why, f"Unpack it ({command}), or write Parquet, which compresses by block."
            )
