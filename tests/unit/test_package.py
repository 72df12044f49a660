"""The packed working directory: what goes in, what comes out, and what is refused."""

import io
import stat
import struct
import time
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from ringleader.errors import PackageRefused
from ringleader.wire import package


def _folder(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def _zip(*entries: tuple[zipfile.ZipInfo | str, bytes], deflate: bool = True) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED if deflate else zipfile.ZIP_STORED) as archive:
        for entry, content in entries:
            archive.writestr(entry, content)
    return packed.getvalue()


def _mode(name: str, mode: int) -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(name)
    entry.create_system = 3
    entry.external_attr = mode << 16
    return entry


def _refusal(data: bytes, tmp_path: Path) -> PackageRefused:
    """Both gates refuse, name the same entry and leave nothing behind."""
    upload = tmp_path / "upload.zip"
    upload.write_bytes(data)
    with pytest.raises(PackageRefused) as at_check:
        package.check(upload)
    room = tmp_path / "room"
    room.mkdir(exist_ok=True)
    with pytest.raises(PackageRefused) as at_unpack:
        package.unpack(data, room / "work")
    assert at_check.value.entry == at_unpack.value.entry
    assert list(room.iterdir()) == []
    return at_check.value


def test_what_was_packed_comes_out_again(tmp_path: Path) -> None:
    source = _folder(tmp_path / "in", {"train.py": "x = 1\n", "deep/er/data.txt": "é" * 300_000, "empty": ""})
    (source / "run.sh").write_text("#!/bin/sh\n")
    (source / "run.sh").chmod(0o755)
    data = package.pack(source)
    upload = tmp_path / "upload.zip"
    upload.write_bytes(data)
    package.check(upload)
    package.unpack(upload, tmp_path / "out")
    for path in source.rglob("*"):
        copy = tmp_path / "out" / path.relative_to(source)
        assert copy.is_dir() if path.is_dir() else copy.read_bytes() == path.read_bytes()
    assert (tmp_path / "out" / "run.sh").stat().st_mode & 0o100


def test_the_same_files_give_the_same_bytes(tmp_path: Path) -> None:
    one = _folder(tmp_path / "one", {"a.py": "1", "b/c.py": "2"})
    two = _folder(tmp_path / "two", {"b/c.py": "2", "a.py": "1"})
    assert package.digest(package.pack(one)) == package.digest(package.pack(two))
    assert package.digest(b"").startswith("sha256:e3b0c442")


def test_caches_and_version_control_stay_out(tmp_path: Path) -> None:
    source = _folder(
        tmp_path / "in",
        {"a.py": "", ".git/config": "", "__pycache__/a.pyc": "", "b/node_modules/x.js": "", "c.pyc": ""},
    )
    (source / ".venv").symlink_to("/usr")
    with zipfile.ZipFile(io.BytesIO(package.pack(source))) as archive:
        assert archive.namelist() == ["a.py"]


def test_a_link_inside_is_packed_as_its_file_and_one_that_leaves_is_refused(tmp_path: Path) -> None:
    source = _folder(tmp_path / "in", {"a.py": "content"})
    (source / "b.py").symlink_to("a.py")
    with zipfile.ZipFile(io.BytesIO(package.pack(source))) as archive:
        assert archive.read("b.py") == b"content"
    (source / "secret").symlink_to("/etc/hostname")
    with pytest.raises(PackageRefused, match=r"secret.*leaves"):
        package.pack(source)


def test_a_folder_over_the_limit_is_not_packed(tmp_path: Path) -> None:
    source = _folder(tmp_path / "in", {"a.py": ""})
    with (source / "big").open("wb") as big:
        big.truncate(package.MAX_UNPACKED_BYTES + 1)
    with pytest.raises(PackageRefused, match=r"big.*512 MB"):
        package.pack(source)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("../evil.py", "leaves"),
        ("a/../../evil.py", "leaves"),
        ("/etc/passwd", "absolute"),
        ("C:/windows.ini", "drive"),
        ("a\\..\\b", "backslash"),
        ("a//b", "empty"),
        ("./a", "empty"),
        ("a\nb", "control"),
        ("x" * 300, "overlong"),
    ],
)
def test_a_name_that_is_not_plain_is_refused(name: str, why: str, tmp_path: Path) -> None:
    refusal = _refusal(_zip(("fine.py", b""), (name, b"x")), tmp_path)
    assert refusal.entry == name[:200]
    assert why in refusal.message


def test_an_entry_with_a_second_name_is_refused(tmp_path: Path) -> None:
    # Info-ZIP's field for names in Unicode, which Python's zipfile goes by from 3.12 on.
    entry, elsewhere = zipfile.ZipInfo("fine.py"), b"../evil.py"
    field = struct.pack("<BL", 1, zlib.crc32(b"fine.py")) + elsewhere
    entry.extra = struct.pack("<2H", 1, 0) + struct.pack("<2H", 0x7075, len(field)) + field
    refusal = _refusal(_zip((entry, b"x")), tmp_path)
    assert "second name" in refusal.message
    assert list(tmp_path.rglob("evil.py")) == []


@pytest.mark.parametrize("kind", [stat.S_IFLNK, stat.S_IFCHR, stat.S_IFBLK, stat.S_IFIFO, stat.S_IFSOCK])
def test_links_and_devices_are_refused(kind: int, tmp_path: Path) -> None:
    assert _refusal(_zip((_mode("odd", kind | 0o777), b"/etc/passwd")), tmp_path).entry == "odd"


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize(
    "names", [("a.py", "a.py"), ("a.py", "A.PY"), ("ä", "ä"), ("a", "a/b"), ("a/b", "a"), ("a/", "a")]
)
def test_two_entries_of_one_name_are_refused(names: tuple[str, str], tmp_path: Path) -> None:
    assert _refusal(_zip((names[0], b""), (names[1], b"")), tmp_path).entry == names[1]


def test_an_encrypted_entry_is_refused(tmp_path: Path) -> None:
    data = bytearray(_zip(("a.py", b"x")))
    data[data.index(b"PK\x01\x02") + 8] |= 1
    assert "encrypted" in _refusal(bytes(data), tmp_path).message


def test_ten_gigabytes_of_zeros_are_refused_before_a_byte_is_written(tmp_path: Path) -> None:
    packed = bytearray(_zip(("zeros", bytes(1 << 20))))
    packed[30 + len("zeros")] |= (
        0b110  # the first deflated block has no kind: whoever inflates a byte says so
    )
    refusal = _refusal(_declaring(bytes(packed), 0xFFFFFFF0), tmp_path)
    assert refusal.entry == "zeros"
    assert "512 MB" in refusal.message


def test_many_entries_that_add_up_are_refused(tmp_path: Path) -> None:
    data = _zip(*((f"z{i}", bytes(60 << 20)) for i in range(9)))
    assert _refusal(data, tmp_path).entry == "z8"


@pytest.mark.parametrize("deflate", [True, False])
def test_an_entry_longer_than_it_declares_is_refused_while_unpacking(deflate: bool, tmp_path: Path) -> None:
    data = _declaring(_zip(("liar", bytes(1 << 20)), deflate=deflate), 1000)
    assert "declares" in _refusal(data, tmp_path).message


def test_an_entry_shorter_than_it_declares_is_refused(tmp_path: Path) -> None:
    assert "damaged" in _refusal(_declaring(_zip(("liar", b"abc")), 1000), tmp_path).message


def test_too_many_entries_are_refused(tmp_path: Path) -> None:
    data = _zip(*((f"f{i}", b"") for i in range(package.MAX_ENTRIES + 1)))
    assert _refusal(data, tmp_path).entry == f"f{package.MAX_ENTRIES}"


def test_names_that_ask_for_more_folders_than_may_be_are_refused(tmp_path: Path) -> None:
    depth = 400
    deep = [f"{i}/" + "d/" * (depth - 1) + "f" for i in range(package.MAX_ENTRIES // depth + 1)]
    assert _refusal(_zip(*((name, b"") for name in deep)), tmp_path).entry == deep[-1]
    upload = tmp_path / "upload.zip"
    upload.write_bytes(_zip(*((name, b"") for name in deep[:-1])))
    package.check(upload)


def test_many_entries_deep_in_one_folder_take_no_time_for_each_folder_above(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "deep.zip", "w") as archive:
        for number in range(2000):
            archive.writestr(zipfile.ZipInfo("a/" * 500 + str(number)), b"")
    begun = time.process_time()
    package.check(tmp_path / "deep.zip")
    assert time.process_time() - begun < 4, "it took six seconds of a core; ten thousand took thirty"


def test_a_folder_with_more_folders_than_may_be_is_not_packed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = _folder(tmp_path / "source", {"a/b/c.py": "", "d.py": ""})
    monkeypatch.setattr(package, "MAX_ENTRIES", 2)
    package.pack(source)
    monkeypatch.setattr(package, "MAX_ENTRIES", 1)
    (source / "d.py").unlink()
    with pytest.raises(PackageRefused, match="more than 1 folders"):
        package.pack(source)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda data: b"",
        lambda data: b"not a zip at all" * 10,
        lambda data: data[: len(data) // 2],
        lambda data: data[len(data) // 2 :],
        lambda data: data.replace(b"PK\x03\x04", b"PK\x00\x00"),
    ],
)
def test_a_damaged_archive_is_refused(spoil: Callable[[bytes], bytes], tmp_path: Path) -> None:
    _refusal(spoil(_zip(("a.py", b"print(1)" * 999))), tmp_path)


def test_a_full_destination_is_left_alone(tmp_path: Path) -> None:
    _folder(tmp_path / "out", {"mine.txt": "keep"})
    with pytest.raises(FileExistsError):
        package.unpack(_zip(("a.py", b"")), tmp_path / "out")
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


def _declaring(data: bytes, size: int) -> bytes:
    """The archive with its only entry's declared size changed, in both headers."""
    spoiled = bytearray(data)
    for magic, offset in ((b"PK\x03\x04", 22), (b"PK\x01\x02", 24)):
        at = data.index(magic) + offset
        spoiled[at : at + 4] = size.to_bytes(4, "little")
    return bytes(spoiled)
