"""MosaicML's MDS: shards of samples, described by an `index.json`, which is read here without their package.

Format: https://docs.mosaicml.com/projects/streaming/en/stable/preparing_datasets/dataset_format.html. A shard is the
number of samples, the byte where each begins and the last one ends (all uint32), its description as JSON, the samples.
A sample is the sizes of the columns that have no fixed one (uint32), then the columns.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from ringleader.data.sources.files import SourceFiles, digest_of, inside, open_uri, read_text, size_of
from ringleader.data.sources.mds_encodings import Encoding, encoding_of
from ringleader.data.sources.open_files import OPEN_FILES
from ringleader.data.sources.paths import AnyPath, paths_of
from ringleader.data.sources.source import columns_of
from ringleader.data.unreadable import BlockUnreadable, FileUnreadable
from ringleader.data.uris import said

INDEX = "index.json"
CODECS = {"zstd": "zstd", "gz": "gzip", "bz2": "bz2", "br": "brotli"}
"""By MDS's name of a compression, pyarrow's."""
BLOCK_SAMPLES = 4096
MOST_UNPACKED = 4
"""As many unpacked shards, of 64 MiB by default, are kept in a process."""


@dataclass(frozen=True, slots=True)
class _Shard:
    """A shard as the index describes it.

    Attributes:
        sizes: by column, its fixed size in bytes; None where each sample has its own.
        codec: pyarrow's name of what it is compressed with; empty where it is not.
        raw_bytes: its size when unpacked.
        hashes: by algorithm, of the file as it is stored.
    """

    uri: str
    samples: int
    columns: tuple[str, ...]
    sizes: tuple[int | None, ...]
    codec: str
    raw_bytes: int
    hashes: dict[str, str]


class MdsSource:
    """Samples of MDS shards as rows. Whole shards are compared with the checksums in the index when a process first
    reads them, where there are any that Python's hashlib knows.

    Numbers, text and bytes are what they are, `ndarray` a list of numbers (with a fixed shape: a list of that size),
    `json` its text, `jpeg` and `png` the encoded bytes. Compressed shards are unpacked in memory.

    Args:
        source: the folder with `index.json`, as a path or URI, or a list of them, in order.
        columns: the columns to offer; all when None. Only those need an encoding that is known here.
        block_samples: as many samples of a block at most; a block lies in one shard.

    Raises:
        FileUnreadable: there is no index, or it describes what cannot be read here: an encoding (pickles are never
            loaded), a compression, a version; shards with other columns than the first; no samples.
    """

    def __init__(
        self,
        source: AnyPath | Sequence[AnyPath],
        *,
        columns: Sequence[str] | None = None,
        block_samples: int = BLOCK_SAMPLES,
    ) -> None:
        folders = paths_of(source)
        texts = {folder: _index_of(folder) for folder in folders}
        described = [(folder, each) for folder, text in texts.items() for each in _shards_in(folder, text)]
        if not sum(int(each["samples"]) for _, each in described):
            place = folders[0] if folders else "an empty list"
            raise FileUnreadable(place, "it names no samples", "Name a set with samples.")
        self._shards = [_shard(folder, each) for folder, each in described]
        self._checked: set[int] = set()
        packed = any(shard.codec for shard in self._shards)
        uris = [shard.uri for shard in self._shards]
        self._files = SourceFiles(uris, self._open, MOST_UNPACKED if packed else OPEN_FILES)
        self._encodings = self._encodings_of(*described[0], columns)
        self._check_columns(described)
        self.schema = pa.schema([(name, each.type) for name, each in self._encodings.items()])
        # (blocks, 3): shard, first sample, end.
        self._blocks = np.array(
            [
                (number, first, min(first + block_samples, shard.samples))
                for number, shard in enumerate(self._shards)
                for first in range(0, shard.samples, block_samples)
            ],
            np.int64,
        )
        self.block_rows = self._blocks[:, 2] - self._blocks[:, 1]
        self.digest = digest_of("mds", *texts.values(), self.schema, self._blocks)

    def read(self, block: int, columns: Sequence[str] | None) -> pa.RecordBatch:
        schema = columns_of(self.schema, columns)
        try:
            shard, first, end = self._blocks[block].tolist()
            values = self._values(shard, first, end, schema.names)
            arrays = [self._encodings[name].decode(values[name]) for name in schema.names]
        # Whatever the bytes of a damaged sample make of numpy, or of text.
        except (pa.ArrowException, ValueError, IndexError, KeyError, OverflowError, FileUnreadable) as error:
            raise BlockUnreadable.of(self.name(block), error) from error
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def decoded_bytes(self, columns: Sequence[str]) -> int:
        """The bytes that all columns take in memory, unpacked, as the index says."""
        return sum(shard.raw_bytes for shard in self._shards)

    def name(self, block: int) -> str:
        shard, first, end = self._blocks[block].tolist()
        return f"{self._shards[shard].uri}, samples {first} to {end - 1}"

    def _values(self, number: int, first: int, end: int, names: Sequence[str]) -> dict[str, list[bytes]]:
        """The encoded values of some samples of a shard, by column."""
        shard = self._shards[number]
        count = int.from_bytes(self._files.read(number, 0, 4), "little")
        if count != shard.samples:
            raise ValueError(f"the shard has {count} samples, but its index says {shard.samples}")
        # Signed: a difference of unsigned numbers is never below 0, and the check behind this would find nothing.
        table = np.frombuffer(self._files.read(number, 4 * (1 + first), 4 * (end - first + 1)), "<u4").astype(
            np.int64
        )
        if (np.diff(table) < 0).any() or table[-1] > shard.raw_bytes:
            raise ValueError("its table of samples leads out of the shard")
        data = bytes(self._files.read(number, int(table[0]), int(table[-1] - table[0])))
        values: dict[str, list[bytes]] = {name: [] for name in names}
        for begins, ends in zip(
            (table[:-1] - table[0]).tolist(), (table[1:] - table[0]).tolist(), strict=True
        ):
            for name, value in _columns(shard, data[begins:ends]).items():
                if name in values:
                    values[name].append(value)
        return values

    def _open(self, number: int) -> pa.NativeFile:
        """A shard as it is when unpacked. When it is first opened here, its bytes are checked."""
        shard = self._shards[number]
        file = open_uri(shard.uri)
        known = {name: told for name, told in shard.hashes.items() if name in hashlib.algorithms_guaranteed}
        if not shard.codec and (not known or number in self._checked):
            return file
        stored = file.read_buffer()
        for name, told in known.items():
            found = hashlib.new(name, stored, usedforsecurity=False).hexdigest()
            if found != told:
                raise ValueError(f"its {name} is {found}, but its index says {told}")
        self._checked.add(number)
        return _unpacked(stored, shard) if shard.codec else file

    def _encodings_of(
        self, folder: str, first: dict[str, Any], columns: Sequence[str] | None
    ) -> dict[str, Encoding]:
        told = dict(zip(first["column_names"], first["column_encodings"], strict=True))
        missing = [name for name in columns or () if name not in told]
        if missing:
            raise KeyError(f"no column {missing} in {folder}; it has {list(told)}")
        names = list(told) if columns is None else list(columns)
        # A shard may have no samples, and so no value to look at.
        start = next(number for number, shard in enumerate(self._shards) if shard.samples)
        found = {}
        for name in names:
            sample = lambda name=name: self._values(start, 0, 1, [name])[name][0]  # noqa: E731
            try:
                encoding = encoding_of(told[name], sample)
            except (ValueError, IndexError, KeyError) as error:
                raise FileUnreadable(self._shards[start].uri, f"column {name!r}: {said(error)}") from error
            if encoding is None:
                why = f"column {name!r} has the encoding {told[name]!r}, which is not read here"
                raise FileUnreadable(
                    inside(folder, INDEX), why, "Leave the column out: MdsSource(…, columns=[…])."
                )
            found[name] = encoding
        return found

    def _check_columns(self, described: Sequence[tuple[str, dict[str, Any]]]) -> None:
        kinds = [
            dict(zip(each["column_names"], each["column_encodings"], strict=True)) for _, each in described
        ]
        for shard, found in zip(self._shards, kinds, strict=True):
            if {name: found.get(name) for name in self._encodings} != {
                n: kinds[0][n] for n in self._encodings
            }:
                raise FileUnreadable(shard.uri, f"its columns differ from those of {self._shards[0].uri}")


def _unpacked(stored: pa.Buffer, shard: _Shard) -> pa.NativeFile:
    # No more than there should be: a few damaged bytes may stand for any size.
    whole = pa.CompressedInputStream(pa.BufferReader(stored), shard.codec).read_buffer(shard.raw_bytes + 1)
    if whole.size != shard.raw_bytes:
        raise ValueError(f"unpacked it does not have the {shard.raw_bytes} bytes that its index says")
    return pa.BufferReader(whole)


def _columns(shard: _Shard, sample: bytes) -> dict[str, bytes]:
    """The encoded columns of a sample."""
    own = sum(size is None for size in shard.sizes)
    told = iter(np.frombuffer(sample, "<u4", count=own).tolist())
    at, found = 4 * own, {}
    for name, fixed in zip(shard.columns, shard.sizes, strict=True):
        size = next(told) if fixed is None else fixed
        found[name] = sample[at : at + size]
        at += size
    if at != len(sample):
        raise ValueError(f"a sample of {len(sample)} bytes has columns of {at}")
    return found


def _index_of(folder: str) -> str:
    uri = inside(folder, INDEX)
    if size_of(uri) is None:
        raise FileUnreadable(folder, f"it has no {INDEX}", "Name the folder that MDSWriter wrote.")
    return read_text(uri)


def _shards_in(folder: str, text: str) -> list[dict[str, Any]]:
    try:
        told = json.loads(text)
        found: list[dict[str, Any]] = told["shards"]
        kinds = {(each["version"], each["format"]) for each in found}
    except (ValueError, KeyError, TypeError) as error:
        raise FileUnreadable(inside(folder, INDEX), f"it is no index of MDS ({error})") from error
    if kinds - {(2, "mds")}:
        version, kind = sorted(kinds - {(2, "mds")}, key=str)[0]
        why = f"its shards are {kind}, version {version}; known: mds, version 2"
        raise FileUnreadable(inside(folder, INDEX), why, "Write the set as MDS, or as Parquet.")
    return found


def _shard(folder: str, told: dict[str, Any]) -> _Shard:
    packed: dict[str, Any] | None = told.get("zip_data")
    raw: dict[str, Any] = told["raw_data"]
    # Whoever unpacked it may have kept both.
    use_raw = not packed or size_of(inside(folder, raw["basename"])) is not None
    stored = raw if use_raw or packed is None else packed
    # Behind a colon the writer notes the level, `zstd:7`, which no reader needs.
    uri, compression = (
        inside(folder, stored["basename"]),
        str(told.get("compression") or "").partition(":")[0],
    )
    if not use_raw and compression not in CODECS:
        why = f"it is compressed with {compression!r}, which is not read here; known: {', '.join(CODECS)}"
        raise FileUnreadable(uri, why, "Unpack the shard beside it, or write the set again.")
    if (size := size_of(uri)) != stored["bytes"]:
        found = "it is not there" if size is None else f"it has {size} bytes"
        raise FileUnreadable(uri, f"{found}, but its index says {stored['bytes']} bytes")
    return _Shard(
        uri,
        int(told["samples"]),
        tuple(told["column_names"]),
        tuple(told["column_sizes"]),
        "" if use_raw else CODECS[compression],
        int(raw["bytes"]),
        dict(stored.get("hashes") or {}),
    )
