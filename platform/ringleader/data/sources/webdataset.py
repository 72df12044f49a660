"""WebDataset: samples in tar files, each the members whose names differ in their extension alone. Nothing is unpacked
to disk; the names of members are data.

Convention: https://github.com/webdataset/webdataset#the-webdataset-format
"""

import re
import tarfile
from array import array
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from ringleader.data.sources.files import SourceFiles, digest_of, open_uri, reading
from ringleader.data.sources.json_rows import JsonSchema, LineUnlike, parse
from ringleader.data.sources.kept_index import (
    THREADS,
    Facts,
    by_threads,
    index_key,
    kept_facts,
    numbers,
    packed_schema,
    schema_in,
)
from ringleader.data.sources.open_files import OPEN_FILES
from ringleader.data.sources.paths import AnyPath, files_in
from ringleader.data.sources.source import columns_of
from ringleader.data.unreadable import BlockUnreadable, FileUnreadable

KEY = "__key__"
TEXTS = frozenset({"txt", "text", "transcript"})
NUMBERS = frozenset({"cls", "cls2", "class", "count", "index", "inx", "id"})
JSONS = frozenset({"json", "jsn"})
BLOCK_SAMPLES = 1024
BLOCK_BYTES = 16 << 20
END = b"\0" * tarfile.BLOCKSIZE
PADDING_BYTES = 1 << 20
"""Of the zeros behind a tar's end so many are read at once."""
_NAME = re.compile(r"((?:.*/|)[^.]+)[.]([^/]*)", re.DOTALL)
_OF_NO_SAMPLE = re.compile(r"__[^/]*__($|/)")
Contents = list[bytes | None]


class WebDatasetSource:
    """Samples of tar files as rows, with a column for each extension. The headers of all tars are read once on a node,
    and so are members that hold JSON, for their types.

    `__key__` is the name without the extension. `.txt`, `.text` and `.transcript` are text, `.cls`, `.index`, `.id` and
    the like whole numbers, `.json` what it holds, all others bytes: pickles and arrays too, which nobody loads here. A
    member that a sample lacks is null.

    Args:
        source: a path or URI of a tar (`train-{000..063}.tar` names 64 of them), a folder, or a list of them, in order.
        block_samples: as many samples of a block at most.
        block_bytes: as many bytes at most, but at least one sample.

    Raises:
        FileNotFoundError: nothing is there.
        FileUnreadable: a tar is compressed, truncated or damaged, has two members of one name, hard links, or more
            behind its end, or there are no samples.
    """

    def __init__(
        self,
        source: AnyPath | Sequence[AnyPath],
        *,
        block_samples: int = BLOCK_SAMPLES,
        block_bytes: int = BLOCK_BYTES,
    ) -> None:
        # Besides those that threads look through.
        self._files = SourceFiles(files_in(source, ".tar", "tar"), most=OPEN_FILES - THREADS)
        self._most = (block_samples, block_bytes)
        facts = kept_facts(self.index_key, self._index)
        self._take(facts)
        self.schema: pa.Schema = schema_in(facts)
        self.block_rows = self._blocks[:, 2] - self._blocks[:, 1]
        self.digest: str = facts["digest"][0].as_py()

    def index_key(self) -> str:
        """The name under which a node keeps what was found in the files; empty where it keeps nothing."""
        return index_key(self._files.uris, "webdataset", self._most)

    def _index(self) -> Facts:
        """Where samples lie, by the headers of all tars; and their types."""
        index = _SampleIndex()
        uris = self._files.uris
        tars = by_threads(lambda file: list(_members(uris[file], self._files, file)), len(uris))
        for file, members in enumerate(tars):
            for name, begins, size in members:
                index.add(file, uris[file], name, begins, size)
        if not index.keys:
            raise FileUnreadable(self._files.uris[0], "it has no samples", "Name tars with samples.")
        places = index.members()
        blocks = np.array(list(_cut(places, index.files, *self._most)), np.int64)
        facts = {
            "extensions": pa.array(list(index.extensions), pa.string()),
            "keys": pa.array(index.keys, pa.string()),
            "members": pa.array(places.reshape(-1)),
            "blocks": pa.array(blocks.reshape(-1)),
        }
        # Members with JSON are read by what has been found so far.
        self._take(facts)
        columns = [(name, self._type(name)) for name in self._extensions]
        schema = pa.schema([(KEY, pa.string()), *columns])
        # Here, and not by each who opens the set: keys take several times their memory as Python's texts.
        digest = digest_of("webdataset", schema, index.keys, places, blocks)
        return facts | {"schema": packed_schema(schema), "digest": pa.array([digest])}

    def _take(self, facts: Facts) -> None:
        self._extensions: list[str] = facts["extensions"].to_pylist()
        # These two, which grow with the samples, stay in the index's file.
        self._keys = facts["keys"]
        # (samples, extensions, 2): where the contents begin, and their size; -1 where there is no such member.
        self._members = facts["members"].to_numpy().reshape(-1, len(self._extensions), 2)
        # (blocks, 3): file, first sample, end.
        self._blocks = numbers(facts, "blocks", 3)

    def read(self, block: int, columns: Sequence[str] | None) -> pa.RecordBatch:
        schema = columns_of(self.schema, columns)
        try:
            contents = self._contents(block, [name for name in schema.names if name != KEY])
            found = {name: _decoded(name, each, schema.field(name).type) for name, each in contents.items()}
        except (pa.ArrowException, ValueError, FileUnreadable) as error:
            raise BlockUnreadable.of(self.name(block), error) from error
        _, first, end = self._blocks[block].tolist()
        found[KEY] = self._keys.slice(first, end - first)
        return pa.RecordBatch.from_arrays([found[name] for name in schema.names], schema=schema)

    def decoded_bytes(self, columns: Sequence[str]) -> int:
        """The bytes that the members of these columns take in memory, as the headers say."""
        numbers = [self._extensions.index(name) for name in columns if name != KEY]
        return int(self._members[:, numbers, 1].sum())

    def name(self, block: int) -> str:
        file, first, end = self._blocks[block].tolist()
        return f"{self._files.uris[file]}, samples {self._keys[first]} to {self._keys[end - 1]}"

    def _contents(self, block: int, names: list[str]) -> dict[str, Contents]:
        """The members of a block by extension, in one read from the first to the last."""
        file, first, end = self._blocks[block].tolist()
        places = {name: self._members[first:end, self._extensions.index(name)] for name in names}
        there = [each[each[:, 0] >= 0] for each in places.values() if (each[:, 0] >= 0).any()]
        if not there:
            return {name: [None] * (end - first) for name in names}
        begins = min(int(each[:, 0].min()) for each in there)
        size = max(int(each.sum(axis=1).max()) for each in there) - begins
        # A slice of a view copies nothing: each member is copied once.
        data = memoryview(self._files.read(file, begins, size))
        return {
            name: [bytes(data[at - begins : at - begins + n]) if at >= 0 else None for at, n in each.tolist()]
            for name, each in places.items()
        }

    def _type(self, name: str) -> pa.DataType:
        """The type of a column; of JSON that of all its members together."""
        if (plain := _plain_type(name)) is not None:
            return plain
        inferred = JsonSchema()
        for block, (file, first, _) in enumerate(self._blocks.tolist()):
            try:
                inferred.take(_lines_of(self._contents(block, [name])[name]))
            except LineUnlike as error:
                place = f"{self._files.uris[file]}, member {self._keys[first + error.line]}.{name}"
                hint = (
                    "Give it the types of the others."
                    if error.other_types
                    else "Write it again, or leave it out."
                )
                raise FileUnreadable(place, str(error), hint) from error
        assert inferred.schema is not None  # an extension is that of some member
        return inferred.schema.field("value").type


class _SampleIndex:
    """The samples by the headers of tars: neighbours with one key are one sample."""

    def __init__(self) -> None:
        self.keys: list[str] = []
        self.files = array("q")
        self.extensions: dict[str, int] = {}
        self._flat = array("q")  # of each member: sample, extension, where it begins, size
        self._has: set[str] = set()

    def add(self, file: int, uri: str, name: str, begins: int, size: int) -> None:
        found = _NAME.fullmatch(name)
        if found is None or _OF_NO_SAMPLE.search(name):
            return
        key, extension = found.group(1), found.group(2).lower()
        if not self.keys or self.keys[-1] != key or self.files[-1] != file:
            self.keys.append(key)
            self.files.append(file)
            self._has.clear()
        if extension in self._has:
            raise FileUnreadable(uri, f"it has two members {name!r}")
        self._has.add(extension)
        number = self.extensions.setdefault(extension, len(self.extensions))
        self._flat.extend((len(self.keys) - 1, number, begins, size))

    def members(self) -> np.ndarray:
        """(samples, extensions, 2) int64: where a member begins, and its size; -1, 0 where there is none."""
        flat = np.frombuffer(self._flat, np.int64).reshape(-1, 4)
        out = np.zeros((len(self.keys), len(self.extensions), 2), np.int64)
        out[:, :, 0] = -1
        out[flat[:, 0], flat[:, 1]] = flat[:, 2:]
        return out


def _cut(
    members: np.ndarray, files: Sequence[int], most: int, most_bytes: int
) -> Iterator[tuple[int, int, int]]:
    """Blocks of neighbours in one tar: file, first sample, end."""
    there = members[:, :, 0] >= 0
    begins = np.where(there, members[:, :, 0], np.iinfo(np.int64).max).min(axis=1).tolist()
    ends = members.sum(axis=2).max(axis=1).tolist()
    first = 0
    for sample in range(1, len(files) + 1):
        if (
            sample == len(files)
            or files[sample] != files[first]
            or sample - first == most
            # Headers between members count too, as they are in the one read of the block.
            or ends[sample] - begins[first] > most_bytes
        ):
            yield files[first], first, sample
            first = sample


def _members(uri: str, files: SourceFiles, number: int) -> Iterator[tuple[str, int, int]]:
    """The plain files in a tar: name, where the contents begin, size.

    Raises:
        FileUnreadable: it is compressed, truncated, has a damaged header, members without contents of their own, or
            more behind its end.
    """
    size = files.size(number)
    # Not the file that stays open: of a remote one that would keep in memory what it read ahead.
    with reading(uri), open_uri(uri) as file:
        try:
            # Uncompressed alone: this class does not look for anything else.
            with tarfile.TarFile(fileobj=file, mode="r") as tar:
                while (member := tar.next()) is not None:
                    tar.members = []  # type: ignore[attr-defined] # it keeps all of them otherwise
                    if member.offset_data + member.size > size:
                        raise FileUnreadable(
                            uri, f"it is truncated: it ends at byte {size}, in {member.name!r}"
                        )
                    if member.islnk() or member.issparse():
                        raise FileUnreadable(uri, *_without_contents(member))
                    if member.isreg():
                        yield member.name, member.offset_data, member.size
                end = tar.offset
        except tarfile.TarError as error:
            if "unexpected end" in str(error):
                raise FileUnreadable(uri, f"it is truncated: it ends at byte {size}") from error
            why = f"it is no tar, or compressed ({error})"
            raise FileUnreadable(uri, why, "Write it again, uncompressed.") from error
    # `next` takes a header that it cannot read for the end.
    found = bytes(files.read(number, end, min(len(END), max(0, size - end))))
    if len(found) < len(END):
        raise FileUnreadable(uri, f"it is truncated: it ends at byte {size}, without the mark of its end")
    if found != END:
        raise FileUnreadable(uri, f"the header at byte {end} is damaged")
    for at in range(end, size, PADDING_BYTES):
        if bytes(files.read(number, at, min(PADDING_BYTES, size - at))).strip(b"\0"):
            why = "there is more behind its end, as where a tar was appended to another"
            raise FileUnreadable(uri, why, "Name both tars instead, or join them with `tar --concatenate`.")


def _without_contents(member: tarfile.TarInfo) -> tuple[str, str]:
    """Why a member is refused whose contents lie elsewhere or in parts, and what to do: its sample would be lost."""
    if member.islnk():
        why = f"its member {member.name!r} is a hard link to {member.linkname!r}"
        return why, "Write it again with `tar --hard-dereference`."
    return f"its member {member.name!r} is sparse", "Write it again without `--sparse`."


def _plain_type(name: str) -> pa.DataType | None:
    """The type of an extension's column; None for JSON."""
    kind = name.rpartition(".")[2]
    if kind in JSONS:
        return None
    return pa.string() if kind in TEXTS else pa.int64() if kind in NUMBERS else pa.binary()


def _decoded(name: str, contents: Contents, kind: pa.DataType) -> pa.Array:
    plain = _plain_type(name)
    if plain is None:
        found = parse(_lines_of(contents), pa.schema([("value", kind)]))
        if found.num_rows != len(contents):
            raise ValueError(f"a member .{name} holds more than one JSON value")
        return found.column("value").combine_chunks()
    if pa.types.is_string(plain):
        return pa.array([None if each is None else each.decode() for each in contents], plain)
    if pa.types.is_integer(plain):
        return pa.array([None if each is None else int(each) for each in contents], plain)
    return pa.array(contents, plain)


def _lines_of(contents: Contents) -> bytes:
    """A line for each JSON text: line feeds in it can only stand between values."""
    texts = (b"null" if each is None else each.replace(b"\n", b" ") for each in contents)
    return b"\n".join(b'{"value":' + text + b"}" for text in texts)
