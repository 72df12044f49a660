"""WebDataset tars as a source: written by tarfile, grouped by key, read by position and never unpacked to disk."""

import gzip
import io
import json
import os
import pickle
import tarfile
import tracemalloc
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from counted_files import SCHEME, count_files, settle

from ringleader.data.sources.source import Source
from ringleader.data.sources.webdataset import WebDatasetSource
from ringleader.data.unreadable import BlockUnreadable, FileUnreadable
from ringleader.files import SCRATCH, own_indexes


def tar(path: Path, members: list[tuple[str, bytes]], form: int = tarfile.PAX_FORMAT) -> Path:
    with tarfile.open(path, "w", format=form) as out:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            out.addfile(info, io.BytesIO(data))
    return path


def sample(n: int) -> list[tuple[str, bytes]]:
    key = f"train/{n:04}"
    about = json.dumps({"size": [n, n], "who": f"ä{n}"}, indent=1).encode()
    return [(f"{key}.jpg", b"\xff\xd8" + bytes([n])), (f"{key}.cls", b"%d" % n), (f"{key}.json", about)]


def members(*numbers: int) -> list[tuple[str, bytes]]:
    return [member for n in numbers for member in sample(n)]


def everything(source: Source, columns: list[str] | None = None) -> list[dict[str, Any]]:
    return [row for n in range(len(source.block_rows)) for row in source.read(n, columns).to_pylist()]


def row(n: int) -> dict[str, Any]:
    jpg = b"\xff\xd8" + bytes([n])
    return {"__key__": f"train/{n:04}", "jpg": jpg, "cls": n, "json": {"size": [n, n], "who": f"ä{n}"}}


@pytest.mark.parametrize("form", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT])
@pytest.mark.parametrize(("samples", "size"), [(2, 1 << 20), (1024, 1), (1024, 1 << 20)])
def test_samples_are_rows_with_a_column_for_each_extension(
    tmp_path: Path, form: int, samples: int, size: int
) -> None:
    tar(tmp_path / "train-00.tar", members(0, 1, 2), form)
    tar(tmp_path / "train-01.tar", members(3, 4), form)
    source = WebDatasetSource(f"{tmp_path}/train-{{00..01}}.tar", block_samples=samples, block_bytes=size)
    assert isinstance(source, Source)
    assert everything(source) == [row(n) for n in range(5)]
    assert everything(source, ["cls", "__key__"]) == [
        {"cls": n, "__key__": row(n)["__key__"]} for n in range(5)
    ]
    assert source.name(0).startswith(f"{tmp_path}/train-00.tar, samples train/0000 to ")
    assert everything(pickle.loads(pickle.dumps(source))) == [row(n) for n in range(5)]


def test_names_are_data(tmp_path: Path) -> None:
    evil = [
        ("../../etc/passwd.txt", b"a"),
        ("/abs/olute.txt", b"b"),
        ("a'; rm -rf.txt", b"c"),
        ("x\n\x1b.txt", b"d"),
    ]
    here = sorted(tmp_path.parent.rglob("*"))
    source = WebDatasetSource(tar(tmp_path / "a.tar", evil))
    assert [each["txt"] for each in everything(source)] == ["a", "b", "c", "d"]
    assert sorted(tmp_path.parent.rglob("*")) == sorted([*here, tmp_path / "a.tar"])


def test_the_convention_of_keys_and_extensions_holds(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    with tarfile.open(path, "w") as out:
        for name, data in [
            ("dir.v2/a.seg.PNG", b"png"),
            ("dir.v2/a.seg.txt", b"text"),
            ("__meta__/b.txt", b"no sample"),
            (".hidden.txt", b"no sample"),
            ("README", b"no extension"),
            ("dir.v2/c.seg.txt", b"more"),
            ("dir.v2/c.pyd", pickle.dumps(1)),
        ]:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            out.addfile(info, io.BytesIO(data))
        link = tarfile.TarInfo("dir.v2/d.txt")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        out.addfile(link)
    assert everything(WebDatasetSource(path)) == [
        {"__key__": "dir.v2/a", "seg.png": b"png", "seg.txt": "text", "pyd": None},
        {"__key__": "dir.v2/c", "seg.png": None, "seg.txt": "more", "pyd": pickle.dumps(1)},
    ]


def test_json_has_one_type_over_all_tars(tmp_path: Path) -> None:
    tar(tmp_path / "0.tar", [("a.json", b"1"), ("b.json", b" 2.5\n")])
    assert everything(WebDatasetSource(tmp_path), ["json"]) == [{"json": 1.0}, {"json": 2.5}]
    tar(tmp_path / "1.tar", [("c.json", b"3"), ("d.json", b'"text"')])
    with pytest.raises(FileUnreadable, match=r"1.tar, member d.json cannot be read"):
        WebDatasetSource(tmp_path)
    tar(tmp_path / "1.tar", [("c.json", b"3"), ("d.json", b'1}\n{"value":1')])
    with pytest.raises(FileUnreadable, match=r"1.tar, member d.json cannot be read"):
        WebDatasetSource(tmp_path)


@pytest.mark.parametrize("cut", [1, 512, 1024, 3 * 1024, 5 * 1024 + 7])
def test_a_truncated_tar_is_named(tmp_path: Path, cut: int) -> None:
    path = tar(tmp_path / "a.tar", members(0, 1, 2))
    whole = path.read_bytes().rstrip(b"\0")
    whole += b"\0" * (-len(whole) % 512)
    path.write_bytes((whole + b"\0" * 1024)[: -1024 - cut + 1])
    with pytest.raises(FileUnreadable, match=r"a.tar cannot be read: it is truncated"):
        WebDatasetSource(path)


def test_damaged_and_compressed_tars_are_named(tmp_path: Path) -> None:
    path = tar(tmp_path / "a.tar", members(0, 1, 2))
    whole = path.read_bytes()
    at = whole.index(b"train/0001.cls")
    path.write_bytes(whole[:at] + b"X" + whole[at + 1 :])
    with pytest.raises(FileUnreadable, match=r"a.tar cannot be read: the header at byte \d+ is damaged"):
        WebDatasetSource(path)
    path.write_bytes(gzip.compress(whole))
    with pytest.raises(FileUnreadable, match=r"a.tar cannot be read: it is no tar, or compressed"):
        WebDatasetSource(path)
    with pytest.raises(FileUnreadable, match=r"b.tar cannot be read: it has two members 'a.txt'"):
        WebDatasetSource(tar(tmp_path / "b.tar", [("a.txt", b"1"), ("a.txt", b"2")]))
    with pytest.raises(FileUnreadable, match=r"c.tar cannot be read: it has no samples"):
        WebDatasetSource(tar(tmp_path / "c.tar", []))


def test_no_sample_is_left_out_without_a_word(tmp_path: Path) -> None:
    joined = tmp_path / "joined.tar"
    parts = [
        tar(tmp_path / name, members(number)).read_bytes() for name, number in (("a.tar", 0), ("b.tar", 1))
    ]
    joined.write_bytes(parts[0] + bytes(3 << 20) + parts[1])
    with pytest.raises(FileUnreadable, match=r"joined.tar cannot be read: there is more behind its end"):
        WebDatasetSource(joined)
    joined.write_bytes(parts[0] + bytes(3 << 20))
    assert WebDatasetSource(joined).block_rows.tolist() == [1]
    with tarfile.open(tmp_path / "linked.tar", "w") as out:
        for name, target in (("a.txt", ""), ("b.txt", "a.txt")):
            member = tarfile.TarInfo(name)
            member.type, member.linkname = (tarfile.LNKTYPE if target else tarfile.REGTYPE), target
            out.addfile(member)
    with pytest.raises(
        FileUnreadable, match=r"its member 'b.txt' is a hard link to 'a.txt'. .*--hard-dereference"
    ):
        WebDatasetSource(tmp_path / "linked.tar")


def test_a_member_that_cannot_be_decoded_is_named(tmp_path: Path) -> None:
    source = WebDatasetSource(tar(tmp_path / "a.tar", [("a.cls", b"1"), ("b.cls", b"one")]))
    with pytest.raises(BlockUnreadable, match=r"a.tar, samples a to b cannot be read.*'one'"):
        source.read(0, None)


@pytest.mark.parametrize("change", ["another text", "cut off", "gone"])
def test_a_tar_that_changes_while_it_is_read_is_named(tmp_path: Path, change: str) -> None:
    path = tar(tmp_path / "a.tar", [("a.txt", b"one"), ("b.txt", b"two")])
    source = WebDatasetSource(path, block_samples=1)
    source.read(0, None)
    whole = path.read_bytes()
    path.unlink()
    if change == "another text":  # at the same place, of the same size
        path.write_bytes(whole.replace(b"two", b"ten"))
        os.utime(path, ns=(0, 1))  # within one tick of the clock files have one time
    elif change == "cut off":
        path.write_bytes(whole[: whole.index(b"two") + 1])
    for again in (source, pickle.loads(pickle.dumps(source))):
        with pytest.raises(BlockUnreadable, match=r"a\.tar, samples b to b cannot be read: it ") as told:
            again.read(1, None)
    assert ("has changed since it was first read" in str(told.value)) == (change != "gone")


def test_another_member_gives_another_digest(tmp_path: Path) -> None:
    digest = WebDatasetSource(tar(tmp_path / "a.tar", members(0, 1))).digest
    assert WebDatasetSource(tar(tmp_path / "b.tar", members(0, 1))).digest == digest
    assert WebDatasetSource(tar(tmp_path / "b.tar", members(0, 2))).digest != digest


def test_keys_and_places_of_a_kept_index_take_no_memory_of_who_opens_the_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SCRATCH, str(tmp_path / "scratch"))
    samples = [(f"{n:06}-{'k' * 200}.{ending}", b"1") for n in range(2000) for ending in ("cls", "txt")]
    (tmp_path / "tars").mkdir()
    tar(tmp_path / "tars" / "a.tar", samples, tarfile.GNU_FORMAT)
    settle(tmp_path / "tars")
    count_files()
    path = f"{SCHEME}{tmp_path}/tars/a.tar"
    first = WebDatasetSource(path)
    (index,) = own_indexes().glob("*.arrow")
    before = pa.total_allocated_bytes()
    tracemalloc.start()
    again = WebDatasetSource(path)
    _, most_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert index.stat().st_size > 400_000
    assert most_bytes < 100_000
    assert pa.total_allocated_bytes() - before < 100_000
    assert (again.digest, everything(again)) == (first.digest, everything(first))


def test_the_digest_is_that_of_earlier_versions(tmp_path: Path) -> None:
    """A job goes on only with files of the digest that it began with."""
    assert (
        WebDatasetSource(tar(tmp_path / "a.tar", members(0, 1, 2))).digest
        == "924c9aeb8109dcc50fb907e446558332"
    )
