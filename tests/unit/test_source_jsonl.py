"""JSONL as a source: lines found by position, one schema over all of them, wrong lines named."""

import gzip
import json
import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from ringleader.data.sources import jsonl
from ringleader.data.sources.jsonl import JsonlSource
from ringleader.data.sources.source import Source
from ringleader.data.unreadable import BlockUnreadable, FileUnreadable


def write(path: Path, rows: list[Any], end: str = "\n") -> Path:
    path.write_text("\n".join(each if isinstance(each, str) else json.dumps(each) for each in rows) + end)
    return path


def everything(source: Source, columns: list[str] | None = None) -> list[dict[str, Any]]:
    return [row for n in range(len(source.block_rows)) for row in source.read(n, columns).to_pylist()]


ROWS = [{"text": f"row {n}\nä", "label": n, "deep": {"list": [n, n]}} for n in range(10)]


@pytest.mark.parametrize("end", ["\n", ""])
@pytest.mark.parametrize(("lines", "size"), [(3, 1 << 20), (4096, 150), (1, 1), (4096, 1 << 20)])
def test_every_line_is_a_row_in_its_order(tmp_path: Path, end: str, lines: int, size: int) -> None:
    path = write(tmp_path / "a.jsonl", ROWS, end)
    source = JsonlSource([path, path], block_lines=lines, block_bytes=size)
    assert isinstance(source, Source)
    assert everything(source) == ROWS * 2
    assert max(source.block_rows) <= lines
    assert everything(source, ["label"]) == [{"label": row["label"]} for row in ROWS] * 2


def test_blocks_do_not_depend_on_how_a_file_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "a.jsonl", ROWS)
    whole = JsonlSource(path, block_lines=4, block_bytes=200)
    monkeypatch.setattr(jsonl, "READ_BYTES", 7)
    pieces = JsonlSource(path, block_lines=4, block_bytes=200)
    assert pieces.block_rows.tolist() == whole.block_rows.tolist()
    assert pieces.digest == whole.digest
    assert everything(pieces) == ROWS


def test_one_schema_holds_over_all_blocks(tmp_path: Path) -> None:
    rows = [
        *({"x": 1, "date": "2026-01-01 10:00:00", "deep": {"a": 1}} for _ in range(3)),
        *({"x": 1.5, "date": "tomorrow", "deep": {"b": "text"}} for _ in range(3)),
        {"x": 2, "date": None, "more": [1]},
    ]
    source = JsonlSource(write(tmp_path / "a.jsonl", rows), block_lines=3)
    assert source.schema == pa.schema(
        {
            "x": pa.float64(),
            "date": pa.string(),
            "deep": pa.struct({"a": pa.int64(), "b": pa.string()}),
            "more": pa.list_(pa.int64()),
        }
    )
    found = everything(source)
    assert [row["x"] for row in found] == [1.0] * 3 + [1.5] * 3 + [2.0]
    assert [row["date"] for row in found][2:5] == ["2026-01-01 10:00:00", "tomorrow", "tomorrow"]
    assert found[-1]["more"] == [1]
    assert found[0]["more"] is None


@pytest.mark.parametrize("bad", ['{"x": "text"}', '{"x": 1', "[1]", '{"x": {"y": 1}}'])
@pytest.mark.parametrize("lines", [2, 4096])
def test_a_line_that_does_not_fit_is_named(tmp_path: Path, bad: str, lines: int) -> None:
    write(tmp_path / "a.jsonl", [{"x": n} for n in range(5)])
    write(tmp_path / "b.jsonl", ["", {"x": 1}, {"x": 2}, bad, {"x": 3}])
    with pytest.raises(FileUnreadable, match=r"line 4 of .*b.jsonl cannot be read"):
        JsonlSource(tmp_path, block_lines=lines)


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        (b'[{"x": 1}]', "one JSON object a line"),
        (b'{"x": 1},', "one JSON object a line"),
        (b'{"x": "\xe9"}', "it is not UTF-8 .* one JSON object a line, in UTF-8"),
        (b'{"x": "text"}', "the same types"),
    ],
)
def test_a_line_is_refused_with_its_own_cure(tmp_path: Path, bad: bytes, says: str) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'{"x": 1}\n' + bad + b"\n")
    with pytest.raises(FileUnreadable, match=f"line 2 of .*{says}"):
        JsonlSource(tmp_path)


def test_with_a_schema_a_text_that_is_not_utf_8_names_its_block(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'{"x": "\xe9"}\n')
    source = JsonlSource(tmp_path, schema=pa.schema([("x", pa.string())]))
    with pytest.raises(BlockUnreadable, match="from line 1 cannot be read: it is not UTF-8"):
        source.read(0, None)


def test_with_a_schema_lines_are_counted_and_parsed_when_they_are_read(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", [{"x": 1, "y": 2}, "", "   ", {"x": 3}, {"x": "text"}])
    source = JsonlSource(path, schema=pa.schema({"x": pa.int32()}), block_lines=4)
    assert source.block_rows.tolist() == [2, 1]
    assert source.read(0, None).column("x").type == pa.int32()
    assert source.read(0, None).to_pylist() == [{"x": 1}, {"x": 3}]
    with pytest.raises(BlockUnreadable, match=r"a.jsonl, 1 rows from line 5 cannot be read"):
        source.read(1, None)


def test_compressed_and_empty_files_are_refused_with_the_cure(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(gzip.compress(b'{"x": 1}\n'))
    with pytest.raises(FileUnreadable, match=r"a.jsonl cannot be read: it is compressed.*gunzip -k"):
        JsonlSource(tmp_path / "a.jsonl")
    (tmp_path / "b.jsonl").write_text("\n \n")
    with pytest.raises(FileUnreadable, match=r"b.jsonl cannot be read: it has no rows"):
        JsonlSource(tmp_path / "b.jsonl")
    with pytest.raises(FileUnreadable, match=r"none.jsonl cannot be read: it does not exist"):
        JsonlSource(tmp_path / "none.jsonl")


def test_a_file_that_changed_is_named_and_has_another_digest(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", ROWS)
    source = JsonlSource(path)
    again = pickle.loads(pickle.dumps(source))
    write(path, [{**row, "label": 0} for row in ROWS])
    assert JsonlSource(path).digest != source.digest == again.digest
    write(path, ROWS[:5])
    with pytest.raises(BlockUnreadable, match=r"a.jsonl, 10 rows from line 1 cannot be read"):
        again.read(0, None)
