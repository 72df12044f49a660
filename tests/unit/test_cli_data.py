"""`ringleader data inspect`: what files hold, told by a process of its own."""

import json
import tarfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ringleader.cli.data import KINDS as OFFERED
from ringleader.cli.main import main
from ringleader.data.sources.kinds import KINDS, open_source
from ringleader.data.unreadable import FileUnreadable
from ringleader.train.rows.inspection import inspect


def parquet(folder: Path) -> Path:
    rows = {
        "x": list(range(100)),
        "text": ["long " * 50] * 100,
        "image": [b"\xff" * 20] * 100,
        "list": [[1] * 9] * 100,
    }
    pq.write_table(pa.table(rows), folder / "a.parquet", row_group_size=30)
    return folder / "a.parquet"


def test_it_tells_what_files_hold(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["data", "inspect", str(parquet(tmp_path)), "--batch", "20", "--shards", "2", "-o", "json"]
    assert main(asked) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["kind"], found["rows"], found["blocks"], found["block_rows"]) == (
        "parquet",
        100,
        4,
        [10, 30],
    )
    assert found["columns"] == {
        "x": "int64",
        "text": "string",
        "image": "binary",
        "list": "list<element: int64>",
    }
    assert [row["x"] for row in found["sample"]] == [0, 1, 2]
    assert found["sample"][0] == {
        "x": 0,
        "text": "long " * 12 + "… 250 characters",
        "image": "20 bytes: ff ff ff ff ff ff ff ff …",
        "list": [1, 1, 1, 1, 1, 1, "… 9 values"],
    }
    assert found["decoded_per_row"] == {"shuffled": 1.0, "row": 1.0, "block": 1.0}
    assert found["order_bytes"] == {"shuffled": 800, "row": 0, "block": 96}
    assert found["window_bytes"] == 4 * found["block_bytes"] > 4 * 30 * 250
    assert (found["batch"], found["shards"]) == (20, 2)
    assert 3 < found["shuffle_quality"]["row"]["batch_blocks"] <= 4


def test_people_read_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "inspect", str(parquet(tmp_path))]) == 0
    said = capsys.readouterr().out
    assert f"{tmp_path}/a.parquet: parquet, 100 rows" in said
    assert "4 blocks of 10 to 30 rows" in said
    assert "shuffled  800 B + cache_bytes" in said
    assert "DECODED  BLOCKS IN A BATCH  MIXING" in said
    assert "batches of 64 rows, logical shards: 1" in said


def labelled(folder: Path, labels: list[int]) -> str:
    """100 blocks of 10 rows."""
    columns = {
        "row": list(range(len(labels))),
        "label": labels,
        "text": [f"row {n}" for n in range(len(labels))],
    }
    pq.write_table(pa.table(columns), folder / "labelled.parquet", row_group_size=10)
    return str(folder / "labelled.parquet")


def test_sorted_files_are_warned_of_where_a_batch_has_few_blocks(tmp_path: Path) -> None:
    labels = sorted(n % 7 for n in range(1000))
    found = inspect(labelled(tmp_path, labels), batch=64, shards=1)
    assert set(found["sorted_by"]) == {"label"}
    quality = found["shuffle_quality"]
    assert 0.9 < quality["row"]["mixing"] <= 1.0
    assert 0.2 < quality["block"]["mixing"] < 0.4
    (warning,) = found["warnings"]
    assert warning.startswith(
        "the files are sorted by label, and sorted files shuffle worse by block: with order"
    )
    assert "data: {order: row}, a larger window_blocks" in warning
    # The cure cures.
    wide = inspect(labelled(tmp_path, labels), batch=64, shards=1, window_blocks=100)
    assert wide["shuffle_quality"]["block"]["mixing"] > 0.9
    assert (wide["warnings"], wide["window_bytes"]) == ([], 100 * wide["block_bytes"])


def test_files_in_random_order_are_sorted_by_nothing(tmp_path: Path) -> None:
    labels = np.random.default_rng(0).integers(0, 7, 1000).tolist()
    found = inspect(labelled(tmp_path, labels), batch=64, shards=1)
    assert found["sorted_by"] == {}
    assert found["warnings"][0].startswith("with order: block")
    assert "where neighbours in the files are alike" in found["warnings"][0]


def test_a_batch_has_a_row_for_each_shard(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "inspect", str(parquet(tmp_path)), "--batch", "2", "--shards", "3"]) == 2
    assert "--shards is above --batch" in capsys.readouterr().err


def test_what_cannot_be_read_is_an_error_with_its_cure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["data", "inspect", "nowhere://bucket/a.parquet"]) == 1
    said = capsys.readouterr().err
    assert "error (not_inspected): nowhere://bucket/a.parquet cannot be read: no file system is known" in said
    assert "hf://" in said


def test_the_command_offers_what_is_read() -> None:
    assert tuple(KINDS) == OFFERED


def test_files_say_their_kind(tmp_path: Path) -> None:
    with pytest.raises(FileUnreadable, match="does not exist"):
        open_source(str(tmp_path / "none"))
    (tmp_path / "notes.md").write_text("")
    with pytest.raises(
        FileUnreadable, match=r"nothing in it ends in \.parquet.*Say the kind: parquet, arrow"
    ):
        open_source(str(tmp_path))
    (tmp_path / "b.jsonl").write_text('{"x": 1}\n')
    assert open_source(str(tmp_path))[0] == "jsonl"
    with tarfile.open(tmp_path / "c.tar", "w"):
        pass
    with pytest.raises(FileUnreadable, match=r"several kinds \(jsonl, webdataset\)"):
        open_source(str(tmp_path))
    assert inspect(str(tmp_path), "jsonl")["rows"] == 1
    (tmp_path / "d").write_text('{"x": 1}\n')
    assert open_source(str(tmp_path / "d"), "jsonl")[0] == "jsonl"
    with pytest.raises(FileUnreadable, match="Say the kind"):
        open_source(str(tmp_path / "d"))
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "index.json").write_text('{"shards": []}')
    with pytest.raises(FileUnreadable, match="names no samples"):
        open_source(str(tmp_path / "set"))
