"""Arrow files and streams as a source: written by pyarrow, and as Hugging Face `datasets` lays a saved set out."""

import json
import os
import pickle
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from ringleader.data.sources.arrow import ArrowSource
from ringleader.data.sources.source import Source
from ringleader.data.unreadable import BlockUnreadable, FileUnreadable

BATCH, ROWS = 4, 10


def table(first: int = 0, rows: int = ROWS) -> pa.Table:
    numbers = range(first, first + rows)
    return pa.table(
        {
            "name": pa.array([f"row {n}" for n in numbers]),
            "label": pa.array([n % 3 for n in numbers], pa.int64()),
            "tokens": pa.array([[n, n + 1] for n in numbers], pa.list_(pa.int32())),
        }
    )


def write(path: Path, rows: pa.Table, kind: str = "file", compression: str | None = None) -> Path:
    options = pa.ipc.IpcWriteOptions(compression=compression)
    open_ = pa.ipc.new_file if kind == "file" else pa.ipc.new_stream
    with open_(path, rows.schema, options=options) as writer:
        writer.write_table(rows, max_chunksize=BATCH)
    return path


def everything(source: Source, columns: list[str] | None = None) -> pa.Table:
    return pa.Table.from_batches([source.read(n, columns) for n in range(len(source.block_rows))])


@pytest.mark.parametrize("kind", ["file", "stream"])
@pytest.mark.parametrize("compression", [None, "zstd"])
def test_blocks_are_the_record_batches(tmp_path: Path, kind: str, compression: str | None) -> None:
    source = ArrowSource(write(tmp_path / "a.arrow", table(), kind, compression))
    assert isinstance(source, Source)
    assert source.block_rows.tolist() == [4, 4, 2]
    assert everything(source).equals(table())
    assert everything(source, ["tokens", "name"]).equals(table().select(["tokens", "name"]))
    assert source.name(2) == f"{tmp_path}/a.arrow, record batch 2"


def test_rows_stay_mapped_when_their_file_is_closed(tmp_path: Path) -> None:
    for n in range(40):
        write(tmp_path / f"{n:02}.arrow", table(ROWS * n))
    source = ArrowSource(tmp_path)
    kept = [source.read(3 * n, None) for n in range(40)]
    assert [batch.column("name")[0].as_py() for batch in kept] == [f"row {ROWS * n}" for n in range(40)]


def test_a_mapped_batch_is_no_copy(tmp_path: Path) -> None:
    with pa.ipc.new_file(tmp_path / "a.arrow", table().schema) as writer:
        writer.write_table(table(rows=10_000))
    source = ArrowSource(tmp_path)
    before = pa.total_allocated_bytes()
    batch = source.read(0, None)
    assert batch.nbytes > 100_000
    # But for what pyarrow notes about it.
    assert pa.total_allocated_bytes() - before < 1000


def test_a_set_that_datasets_saved_is_read_in_the_order_of_its_state(tmp_path: Path) -> None:
    names = ["data-00000-of-00002.arrow", "data-00001-of-00002.arrow"]
    for number, name in enumerate(names):
        write(tmp_path / name, table(ROWS * number), "stream")
    write(tmp_path / "cache-1.arrow", table(), "stream")
    state = {
        "_data_files": [{"filename": name} for name in reversed(names)],
        "_fingerprint": "1",
        "_split": "train",
    }
    (tmp_path / "state.json").write_text(json.dumps(state))
    (tmp_path / "dataset_info.json").write_text("{}")
    source = ArrowSource(tmp_path)
    assert everything(source)["name"].to_pylist() == [f"row {n}" for n in [*range(10, 20), *range(10)]]


def test_what_datasets_saved_otherwise_is_refused_with_the_cure(tmp_path: Path) -> None:
    (tmp_path / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    with pytest.raises(FileUnreadable, match=r"several sets: train, test.*folder of one"):
        ArrowSource(tmp_path)
    (tmp_path / "dataset_dict.json").unlink()
    state = {"_data_files": [{"filename": "a.arrow"}], "_indices_data_files": [{"filename": "i.arrow"}]}
    (tmp_path / "state.json").write_text(json.dumps(state))
    with pytest.raises(FileUnreadable, match="flatten_indices"):
        ArrowSource(tmp_path)
    (tmp_path / "state.json").write_text('{"_data_files": [{"filename": "../other.arrow"}]}')
    with pytest.raises(FileUnreadable, match="lies outside"):
        ArrowSource(tmp_path)
    (tmp_path / "state.json").write_text("{}")
    with pytest.raises(FileUnreadable, match="not what datasets writes"):
        ArrowSource(tmp_path)


def test_wrong_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(FileUnreadable, match=r"none.arrow cannot be read: it does not exist"):
        ArrowSource(tmp_path / "none.arrow")
    with pytest.raises(FileNotFoundError, match="no Arrow file found under"):
        ArrowSource(tmp_path)
    (tmp_path / "text.arrow").write_text("no arrow at all, whatever its name")
    with pytest.raises(FileUnreadable, match=r"text.arrow cannot be read"):
        ArrowSource(tmp_path / "text.arrow")
    empty = write(tmp_path / "empty.arrow", table(rows=0))
    with pytest.raises(FileUnreadable, match=r"empty.arrow cannot be read: it has no rows"):
        ArrowSource(empty)
    a = write(tmp_path / "a.arrow", table())
    b = write(tmp_path / "b.arrow", table().drop_columns("label"))
    with pytest.raises(
        FileUnreadable, match=r"b.arrow cannot be read: its columns differ from those of .*a.arrow"
    ):
        ArrowSource([a, b])
    coded = table().set_column(0, "name", table()["name"].dictionary_encode())
    with pytest.raises(FileUnreadable, match="dictionary-encoded"):
        ArrowSource(write(tmp_path / "coded.arrows", coded, "stream"))
    assert everything(ArrowSource(write(tmp_path / "coded.arrow", coded)))["name"].to_pylist()[3] == "row 3"


@pytest.mark.parametrize("kind", ["file", "stream"])
def test_a_damaged_batch_is_named(tmp_path: Path, kind: str) -> None:
    path = write(tmp_path / "a.arrow", table(), kind)
    source = ArrowSource(path)
    data = bytearray(path.read_bytes())
    # The offsets of the names of the second batch: the first of them that ascend by the length of "row 4".
    offsets = np.arange(0, 25, 6 - 1, dtype=np.int32).tobytes()
    at = data.find(offsets, data.find(offsets) + 1)
    data[at + 4 : at + 8] = b"\xff\xff\xff\x7f"
    path.write_bytes(data)
    damaged = ArrowSource(path)
    with pytest.raises(BlockUnreadable, match=r"a.arrow, record batch 1 cannot be read"):
        damaged.read(1, None)
    assert damaged.read(0, None).num_rows == BATCH
    assert source.digest == damaged.digest  # of the places of batches, not of what is in them


def test_a_mapped_file_that_is_cut_off_is_named_before_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.arrow"
    table = pa.table({"n": list(range(100_000))})
    with pa.ipc.new_file(path, table.schema) as out:
        out.write_table(table, max_chunksize=50_000)
    source = ArrowSource(path)
    source.read(0, None)
    os.truncate(path, 4096)  # what is mapped behind it ends the process
    with pytest.raises(BlockUnreadable, match=r"a\.arrow, record batch 1 cannot be read: it has changed"):
        source.read(1, None)


def test_a_truncated_stream_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "a.arrow", table(), "stream")
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(FileUnreadable, match=r"a.arrow cannot be read"):
        ArrowSource(path)


def test_a_source_goes_to_other_processes_and_has_a_digest_of_its_files(tmp_path: Path) -> None:
    source = ArrowSource(write(tmp_path / "a.arrow", table()))
    source.read(0, None)
    again = pickle.loads(pickle.dumps(source))
    assert everything(again).equals(table())
    assert again.digest == source.digest == ArrowSource(tmp_path).digest
    assert ArrowSource(write(tmp_path / "a.arrow", table(rows=9))).digest != source.digest
