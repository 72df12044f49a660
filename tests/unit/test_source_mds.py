"""MDS as a source: shards written here as MosaicML's format says, read by their index."""

import hashlib
import json
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from ringleader.data.sources.mds import MdsSource
from ringleader.data.sources.source import Source
from ringleader.data.unreadable import BlockUnreadable, FileUnreadable

FIXED = {"int": 8, "uint8": 1, "float32": 4, "float16": 2, "ndarray:int32:2,2": 16}
CODECS = {"zstd": "zstd", "gz": "gzip", "bz2": "bz2", "br": "brotli"}


def array(values: np.ndarray, *, typed: bool = False) -> bytes:
    """An array with its dimensions before it, and its type, where the name of the encoding says neither."""
    number = bytes([33]) if typed else b""
    return number + bytes([values.ndim << 2]) + np.array(values.shape, np.uint8).tobytes() + values.tobytes()


def shard(columns: dict[str, str], samples: list[list[bytes]]) -> bytes:
    """A shard as the format has it: count, places, description, samples."""
    about = json.dumps({"column_names": list(columns)}).encode()
    bodies = []
    for values in samples:
        own = [len(v) for v, kind in zip(values, columns.values(), strict=True) if kind not in FIXED]
        bodies.append(np.array(own, "<u4").tobytes() + b"".join(values))
    first = 4 + 4 * (len(samples) + 1) + len(about)
    places = first + np.cumsum([0, *map(len, bodies)])
    return np.array([len(samples), *places], "<u4").tobytes() + about + b"".join(bodies)


def pack(raw: bytes, codec: str) -> bytes:
    out = pa.BufferOutputStream()
    with pa.CompressedOutputStream(out, codec) as packing:
        packing.write(raw)
    return bytes(out.getvalue())


def write(
    folder: Path,
    columns: dict[str, str],
    shards: list[list[list[bytes]]],
    *,
    compression: str | None = None,
    hashes: tuple[str, ...] = ("sha1", "xxh64"),
) -> Path:
    folder.mkdir(exist_ok=True)
    told = []
    for number, samples in enumerate(shards):
        name = f"shard.{number:05}.mds"
        raw = shard(columns, samples)
        files = {"raw_data": (name, raw), "zip_data": None}
        if compression:
            codec = CODECS.get(compression.partition(":")[0])
            packed = pack(raw, codec) if codec else raw
            files["zip_data"] = (f"{name}.{compression.partition(':')[0]}", packed)
        stored = files["zip_data"] or files["raw_data"]
        assert stored is not None
        (folder / stored[0]).write_bytes(stored[1])
        about: dict[str, Any] = {
            "column_encodings": list(columns.values()),
            "column_names": list(columns),
            "column_sizes": [FIXED.get(kind) for kind in columns.values()],
            "compression": compression,
            "format": "mds",
            "hashes": list(hashes),
            "samples": len(samples),
            "size_limit": 1 << 26,
            "version": 2,
        }
        for kind, file in files.items():
            about[kind] = file and {
                "basename": file[0],
                "bytes": len(file[1]),
                "hashes": {h: hashlib.sha1(file[1]).hexdigest() if h == "sha1" else "0" * 16 for h in hashes},
            }
        told.append(about)
    (folder / "index.json").write_text(json.dumps({"shards": told, "version": 2}))
    return folder


COLUMNS = {
    "n": "int",
    "name": "str",
    "half": "float16",
    "tokens": "ndarray:int32",
    "box": "ndarray:int32:2,2",
    "image": "jpeg",
}


def sample(n: int) -> list[bytes]:
    return [
        np.int64(n).tobytes(),
        f"ä{n}".encode(),
        np.float16(n / 2).tobytes(),
        array(np.arange(n + 1, dtype=np.int32)),
        np.full((2, 2), n, np.int32).tobytes(),
        b"\xff\xd8" + bytes([n]),
    ]


def row(n: int) -> dict[str, Any]:
    box = [[n, n], [n, n]]
    tokens = list(range(n + 1))
    return {
        "n": n,
        "name": f"ä{n}",
        "half": n / 2,
        "tokens": tokens,
        "box": box,
        "image": b"\xff\xd8" + bytes([n]),
    }


SHARDS = [[sample(n) for n in range(5)], [], [sample(n) for n in range(5, 8)]]


def everything(source: Source, columns: list[str] | None = None) -> list[dict[str, Any]]:
    return [row for n in range(len(source.block_rows)) for row in source.read(n, columns).to_pylist()]


@pytest.mark.parametrize("compression", [None, "zstd:7", "gz", "bz2", "br"])
def test_samples_are_rows(tmp_path: Path, compression: str | None) -> None:
    source = MdsSource(write(tmp_path / "set", COLUMNS, SHARDS, compression=compression), block_samples=2)
    assert isinstance(source, Source)
    assert source.block_rows.tolist() == [2, 2, 1, 2, 1]
    assert everything(source) == [row(n) for n in range(8)]
    assert everything(source, ["tokens", "n"]) == [{"tokens": row(n)["tokens"], "n": n} for n in range(8)]
    assert source.schema.field("box").type == pa.list_(pa.list_(pa.int32(), 2), 2)
    assert source.name(3).endswith(", samples 0 to 1")
    assert "shard.00002.mds" in source.name(3)
    assert everything(pickle.loads(pickle.dumps(source))) == [row(n) for n in range(8)]


def test_arrays_of_any_type_and_text_of_numbers_are_read(tmp_path: Path) -> None:
    columns = {
        "any": "ndarray",
        "digits": "str_int",
        "real": "str_float",
        "about": "json",
        "raw": "bytes",
        "b": "uint8",
    }
    values = [array(np.eye(2, dtype=np.int32), typed=True), b"12", b"0.5", b'{"a": 1}', b"\0", b"\x07"]
    source = MdsSource(write(tmp_path / "set", columns, [[values]]))
    assert everything(source) == [
        {"any": [[1, 0], [0, 1]], "digits": 12, "real": 0.5, "about": '{"a": 1}', "raw": b"\0", "b": 7}
    ]


def test_what_cannot_be_read_is_refused_by_name(tmp_path: Path) -> None:
    pickled = write(tmp_path / "a", {"n": "int", "any": "pkl"}, [[[np.int64(1).tobytes(), pickle.dumps(1)]]])
    with pytest.raises(
        FileUnreadable, match=r"a/index.json cannot be read: column 'any' has the encoding 'pkl'"
    ):
        MdsSource(pickled)
    assert everything(MdsSource(pickled, columns=["n"])) == [{"n": 1}]
    with pytest.raises(KeyError, match="no column"):
        MdsSource(pickled, columns=["none"])
    with pytest.raises(
        FileUnreadable, match=r"shard.00000.mds.lz77 cannot be read: it is compressed with 'lz77'"
    ):
        MdsSource(write(tmp_path / "b", COLUMNS, SHARDS, compression="lz77"))
    with pytest.raises(FileUnreadable, match=r"none cannot be read: it has no index.json"):
        MdsSource(tmp_path / "none")
    with pytest.raises(FileUnreadable, match=r"names no samples"):
        MdsSource(write(tmp_path / "c", COLUMNS, [[]]))
    (tmp_path / "c" / "index.json").write_text('{"shards": [{"version": 2, "format": "csv"}]}')
    with pytest.raises(FileUnreadable, match=r"its shards are csv, version 2"):
        MdsSource(tmp_path / "c")
    (tmp_path / "c" / "index.json").write_text("[]")
    with pytest.raises(FileUnreadable, match=r"c/index.json cannot be read: it is no index of MDS"):
        MdsSource(tmp_path / "c")


def test_an_index_leads_nowhere_else(tmp_path: Path) -> None:
    folder = write(tmp_path / "set", COLUMNS, SHARDS)
    index = folder / "index.json"
    index.write_text(index.read_text().replace("shard.00000.mds", "../set/shard.00000.mds"))
    with pytest.raises(FileUnreadable, match="lies outside"):
        MdsSource(folder)


def test_shards_are_compared_with_the_index(tmp_path: Path) -> None:
    folder = write(tmp_path / "set", COLUMNS, SHARDS)
    shard_ = folder / "shard.00002.mds"
    whole = shard_.read_bytes()
    shard_.write_bytes(whole[:-1] + b"X")
    source = MdsSource(folder)
    assert source.read(0, None).num_rows == 5
    with pytest.raises(BlockUnreadable, match=r"shard.00002.mds, samples 0 to 2 cannot be read.*sha1"):
        source.read(1, None)
    shard_.write_bytes(whole[:-1])
    with pytest.raises(
        FileUnreadable, match=r"shard.00002.mds cannot be read: it has \d+ bytes, but its index says"
    ):
        MdsSource(folder)
    shard_.unlink()
    with pytest.raises(FileUnreadable, match=r"shard.00002.mds cannot be read: it is not there"):
        MdsSource(folder)


@pytest.mark.parametrize("compression", [None, "gz"])
@pytest.mark.parametrize("change", ["another number", "cut off", "gone"])
def test_a_shard_that_changes_while_it_is_read_is_named(
    tmp_path: Path, change: str, compression: str | None
) -> None:
    source = MdsSource(
        write(tmp_path / "set", COLUMNS, SHARDS, hashes=(), compression=compression), block_samples=4
    )
    source.read(0, None)
    (path,) = (tmp_path / "set").glob("shard.00000.mds*")
    whole = path.read_bytes()
    path.unlink()
    if change == "another number":  # at the same place, of the same size
        path.write_bytes(whole[:-1] + b"X")
        os.utime(path, ns=(0, 1))  # within one tick of the clock files have one time
    elif change == "cut off":
        path.write_bytes(whole[:-10])
    for again in (source, pickle.loads(pickle.dumps(source))):
        with pytest.raises(BlockUnreadable, match=r"shard\.00000\.mds.*, samples 4 to 4 cannot be read"):
            again.read(1, None)


def test_shards_of_other_columns_are_named(tmp_path: Path) -> None:
    folder = write(tmp_path / "set", COLUMNS, SHARDS)
    index = folder / "index.json"
    told = json.loads(index.read_text())
    told["shards"][2]["column_encodings"][0] = "uint8"
    index.write_text(json.dumps(told))
    with pytest.raises(
        FileUnreadable, match=r"shard\.00002\.mds cannot be read: its columns differ from those of .*00000"
    ):
        MdsSource(folder)


def test_without_checksums_a_damaged_sample_is_named(tmp_path: Path) -> None:
    folder = write(tmp_path / "set", COLUMNS, SHARDS, hashes=())
    path = folder / "shard.00000.mds"
    data = bytearray(path.read_bytes())
    first = int.from_bytes(data[4:8], "little")
    for at, value in [
        (first, 200),
        (4 * 2, 255),
        (0, 9),
    ]:  # a size in a sample, a place of one, the number of samples
        damaged = bytearray(data)
        damaged[at] = value
        path.write_bytes(damaged)
        with pytest.raises((BlockUnreadable, FileUnreadable), match=r"shard.00000.mds.* cannot be read"):
            MdsSource(folder).read(0, None)
