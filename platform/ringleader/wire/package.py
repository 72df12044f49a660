"""The packed working directory: a deterministic zip, and the gate that admits plain files only."""

import hashlib
import io
import os
import shutil
import stat
import struct
import tempfile
import unicodedata
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import IO

from ringleader.errors import PackageRefused

MAX_PACKED_BYTES = 100 << 20
MAX_UNPACKED_BYTES = 512 << 20
MAX_ENTRIES = 10_000
EXCLUDED = frozenset(
    {".git", ".hg", ".svn", ".venv", "venv", "node_modules", "__pycache__", ".DS_Store", ".ipynb_checkpoints"}
    | {".mypy_cache", ".ruff_cache", ".pytest_cache", ".hypothesis", ".tox"}
)
EXCLUDED_SUFFIXES = frozenset({".pyc", ".pyo"})

# Of all files, the earliest that a zip can hold: the digest must not depend on when they were written.
_EPOCH = (1980, 1, 1, 0, 0, 0)
_CHUNK = 1 << 18
_MAX_TABLE_BYTES = 16 << 20  # the table of contents, before it is read into memory
_END = struct.Struct("<4s4H2LH")
_FIELD = struct.Struct("<2H")  # the head of an extra field: its kind, and the bytes that follow
_UNICODE_NAME = 0x7075
_LOCAL = struct.Struct("<4s5H3L2H")
# The format's general purpose bits 0, 6 and 13: encrypted, strongly encrypted, with masked headers.
_ENCRYPTED = 0x1 | 0x40 | 0x2000


def digest(data: bytes) -> str:
    """The name of a package: `sha256:` and 64 hex digits."""
    return "sha256:" + hashlib.sha256(data).hexdigest()


def pack(directory: Path) -> bytes:
    """Zip a folder; the same files give the same bytes on every machine with the same zlib.

    Version control, caches, virtual environments and node_modules stay out. A link to a file inside the
    folder is packed as that file.

    Raises:
        PackageRefused: a link that leaves the folder or leads to one, a device, too many or too big files.
    """
    root = directory.resolve()
    if not root.is_dir():
        raise PackageRefused(str(directory), "it is not a folder")
    packed = io.BytesIO()
    total = 0
    folders: set[PurePosixPath] = set()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as archive:
        for count, (name, path) in enumerate(_files(root), start=1):
            status = path.stat()
            total += status.st_size
            # Before the file is read: whoever names the wrong folder may have terabytes in it.
            _within(count, total, name)
            folders.update(PurePosixPath(name).parents)
            _few_folders(len(folders) - 1, name)  # the working directory itself is none
            entry = zipfile.ZipInfo(name, _EPOCH)
            # Unix, wherever it is packed: elsewhere the default differs, and with it the digest.
            entry.create_system = 3
            # Of the mode only whether it can be run: the rest depends on the machine's umask.
            entry.external_attr = (stat.S_IFREG | (0o755 if status.st_mode & 0o100 else 0o644)) << 16
            archive.writestr(entry, path.read_bytes(), compress_type=zipfile.ZIP_DEFLATED)
    if packed.tell() > MAX_PACKED_BYTES:
        raise PackageRefused(str(directory), f"it is larger than {MAX_PACKED_BYTES >> 20} MB compressed")
    return packed.getvalue()


def packed(files: Mapping[str, bytes]) -> bytes:
    """Zip files, given by their name, as `pack` does. Raises PackageRefused."""
    with tempfile.TemporaryDirectory() as folder:
        for name, content in files.items():
            path = Path(folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        return pack(Path(folder))


def check(path: Path) -> None:
    """Read a package to its end without writing anything.

    Raises:
        PackageRefused: naming the first entry that `unpack` would not take.
    """
    with path.open("rb") as stream:
        _walk(stream, lambda entry, chunks: _drain(chunks))


def unpack(data: bytes | Path, destination: Path) -> None:
    """Unpack whole or not at all: `destination` appears once every entry has been checked and written.

    Raises:
        PackageRefused: as `check`; nothing is left behind.
        FileExistsError: `destination` already holds something.
    """
    if destination.exists() and any(destination.iterdir()):
        raise FileExistsError(f"{destination} is not empty")
    destination.parent.mkdir(parents=True, exist_ok=True)
    # Beside the destination: a rename is atomic within one file system only.
    partial = Path(tempfile.mkdtemp(prefix=f".{destination.name}.", dir=destination.parent))
    try:
        with io.BytesIO(data) if isinstance(data, bytes) else data.open("rb") as stream:
            _walk(stream, lambda entry, chunks: _write(partial, entry, chunks))
        partial.chmod(0o755)  # mkdtemp made it 0700
        partial.rename(destination)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _files(root: Path) -> Iterator[tuple[str, Path]]:
    """(name in the package, path) of everything to pack, sorted by name."""
    found: list[tuple[str, Path]] = []
    for folder, folders, files in os.walk(root):
        # In place: os.walk then does not go into the others.
        folders[:] = [f for f in folders if f not in EXCLUDED]
        here = Path(folder)
        # os.walk lists links to folders as folders, and does not follow them: without this they would be left
        # out silently.
        for name in [*files, *(f for f in folders if (here / f).is_symlink())]:
            path = here / name
            if name in EXCLUDED or path.suffix in EXCLUDED_SUFFIXES:
                continue
            relative = path.relative_to(root).as_posix()
            _packable(relative, path, root)
            found.append((relative, path))
    return iter(sorted(found))  # the digest must not depend on the order of a listing


def _packable(name: str, path: Path, root: Path) -> None:
    if path.is_symlink():
        target = path.resolve()
        if not target.is_relative_to(root):
            raise PackageRefused(name, "it is a link that leaves the working directory")
        if target.is_dir():
            raise PackageRefused(name, "it is a link to a folder")
    if not path.is_file():
        raise PackageRefused(name, "it is not a regular file")
    _safe_name(name)


def _walk(stream: IO[bytes], take: Callable[[zipfile.ZipInfo, Iterator[bytes]], None]) -> None:
    """Check the table of contents as a whole, then hand each entry's bytes to `take`."""
    _bounded_table(stream)
    try:
        with zipfile.ZipFile(stream) as archive:
            entries = archive.infolist()
    except (zipfile.BadZipFile, NotImplementedError, ValueError, OSError, struct.error) as error:
        raise PackageRefused("", f"it is not a readable zip file ({error})") from None
    _check_table(entries)
    for entry in entries:
        take(entry, _content(stream, entry))


def _bounded_table(stream: IO[bytes]) -> None:
    """Refuse a package whose table of contents could not be read cheaply."""
    size = stream.seek(0, os.SEEK_END)
    if size > MAX_PACKED_BYTES:
        raise PackageRefused("", f"it has {size} bytes, more than {MAX_PACKED_BYTES >> 20} MB")
    # The end record is followed by a comment of 0xFFFF bytes at most.
    start = max(0, size - _END.size - 0xFFFF)
    stream.seek(start)
    tail = stream.read()
    # The last one, as zipfile takes it: both have to look at the same table.
    at = tail.rfind(b"PK\x05\x06")
    if at < 0 or len(tail) - at < _END.size:
        raise PackageRefused("", "it is not a zip file")
    table_bytes = _END.unpack_from(tail, at)[5]
    # PK 06 07 is Zip64's locator: only more than 65,535 entries, or 4 GB, need one.
    if table_bytes > _MAX_TABLE_BYTES or tail[max(0, at - 20) : at].startswith(b"PK\x06\x07"):
        raise PackageRefused("", f"it has more than {MAX_ENTRIES} entries")
    stream.seek(0)


def _check_table(entries: list[zipfile.ZipInfo]) -> None:
    files: set[str] = set()
    folders: set[str] = set()
    total = 0
    for count, entry in enumerate(entries, start=1):
        _plain(entry)
        total += entry.file_size
        _within(count, total, entry.filename)
        # Some file systems ignore case, or the form of accents: two such entries would be one file.
        folded = unicodedata.normalize("NFC", entry.filename.rstrip("/")).casefold()
        above = _new_folders(folded, folders)
        if folded in files or (folded in folders and not entry.is_dir()) or not files.isdisjoint(above):
            raise PackageRefused(
                entry.filename, "another entry has the same name (ignoring upper and lower case)"
            )
        folders.update(above)
        (folders if entry.is_dir() else files).add(folded)
        _few_folders(len(folders), entry.filename)


def _new_folders(name: str, known: set[str]) -> list[str]:
    """The folders above an entry that are not known."""
    found = []
    # No further than a known one: to walk up from each of 10,000 entries that lie 500 deep would take half a minute.
    while (name := name.rpartition("/")[0]) and name not in known:
        found.append(name)
    return found


def _plain(entry: zipfile.ZipInfo) -> None:
    """Refuse all but a plain file or folder with a name that stays inside."""
    # `filename` is cut at a NUL: the name as it was sent.
    _safe_name(entry.orig_filename)
    # From Python 3.12 on zipfile takes that name for the entry's, in place of the one that was just looked at.
    if _UNICODE_NAME in _fields(entry.extra):
        raise PackageRefused(entry.orig_filename, "it has a second name, in an extra field")
    # 0 where it was packed on a system without Unix modes.
    kind = stat.S_IFMT(entry.external_attr >> 16)
    if kind not in {0, stat.S_IFREG, stat.S_IFDIR}:
        what = "a link" if kind == stat.S_IFLNK else "a device, pipe or socket"
        raise PackageRefused(entry.filename, f"it is {what}")
    if entry.flag_bits & _ENCRYPTED:
        raise PackageRefused(entry.filename, "it is encrypted")
    if entry.compress_type not in {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}:
        raise PackageRefused(entry.filename, "its compression is neither stored nor deflated")
    if entry.is_dir() and entry.file_size:
        raise PackageRefused(entry.filename, "it is a folder entry with content")


def _fields(extra: bytes) -> Iterator[int]:
    """The kinds of an entry's extra fields."""
    while len(extra) >= _FIELD.size:
        kind, size = _FIELD.unpack_from(extra)
        yield kind
        extra = extra[_FIELD.size + size :]


def _safe_name(name: str) -> None:
    parts = name.removesuffix("/").split("/")
    if name.startswith("/"):
        raise PackageRefused(name, "its name is absolute")
    if ".." in parts:
        raise PackageRefused(name, "its name leaves the working directory")
    if "\\" in name or (len(name) > 1 and name[1] == ":"):
        raise PackageRefused(name, "its name holds a backslash or a drive letter")
    if (
        # Surrogates, which cannot be encoded, are refused further down.
        any(part in {"", "."} or len(part.encode(errors="replace")) > 255 for part in parts)
        or len(name) > 1024
    ):
        raise PackageRefused(name[:200], "its name has an empty or overlong part")
    if any(unicodedata.category(c) in {"Cc", "Cs"} for c in name):
        raise PackageRefused(name, "its name holds a control character")


def _few_folders(count: int, name: str) -> None:
    """Refuse a package with more folders than it may have."""
    # Names alone can ask for millions of them, each of which takes memory here and room on the disk there.
    if count > MAX_ENTRIES:
        raise PackageRefused(name, f"there are more than {MAX_ENTRIES} folders")


def _within(count: int, total_bytes: int, name: str) -> None:
    if count > MAX_ENTRIES:
        raise PackageRefused(name, f"there are more than {MAX_ENTRIES} entries")
    if total_bytes > MAX_UNPACKED_BYTES:
        raise PackageRefused(name, f"the package holds more than {MAX_UNPACKED_BYTES >> 20} MB unpacked")


def _content(stream: IO[bytes], entry: zipfile.ZipInfo) -> Iterator[bytes]:
    """The entry's bytes, never more than it declares."""
    # A damaged table can make it negative, which `seek` does not take; the signature is checked next anyway.
    stream.seek(max(0, entry.header_offset))
    header = stream.read(_LOCAL.size)
    if len(header) < _LOCAL.size or not header.startswith(b"PK\x03\x04"):
        raise PackageRefused(entry.filename, "its header is damaged")
    *_, name_length, extra_length = _LOCAL.unpack(header)
    # By the local header's own lengths: its extra field may differ from the one in the table.
    stream.seek(name_length + extra_length, os.SEEK_CUR)
    written = crc = 0
    for chunk in _inflated(stream, entry):
        written += len(chunk)
        crc = zlib.crc32(chunk, crc)
        # Counted here: zipfile's own reader cuts a lying entry short without a word.
        if written > entry.file_size:
            raise PackageRefused(
                entry.filename, f"it holds more than the {entry.file_size} bytes it declares"
            )
        yield chunk
    if written != entry.file_size or crc != entry.CRC:
        raise PackageRefused(entry.filename, "its content is damaged")


def _inflated(stream: IO[bytes], entry: zipfile.ZipInfo) -> Iterator[bytes]:
    if entry.compress_type == zipfile.ZIP_STORED:
        yield from _raw(stream, entry.compress_size)
        return
    # Negative, for a raw stream: a zip has neither zlib's head nor its checksum.
    inflater = zlib.decompressobj(-zlib.MAX_WBITS)
    try:
        for raw in _raw(stream, entry.compress_size):
            pending = raw
            while pending:
                # Bounded: a few bytes may stand for gigabytes, which are counted before they take memory.
                yield inflater.decompress(pending, _CHUNK)
                pending = inflater.unconsumed_tail
                if inflater.unused_data:
                    raise PackageRefused(entry.filename, "its content continues after its end")
        yield inflater.flush()  # what a full chunk held back, a few hundred bytes
    except zlib.error:
        raise PackageRefused(entry.filename, "its content is damaged") from None


def _raw(stream: IO[bytes], size: int) -> Iterator[bytes]:
    while size and (chunk := stream.read(min(size, _CHUNK))):
        size -= len(chunk)
        yield chunk


def _drain(chunks: Iterator[bytes]) -> None:
    for _ in chunks:
        pass


def _write(root: Path, entry: zipfile.ZipInfo, chunks: Iterator[bytes]) -> None:
    target = root / entry.filename
    if entry.is_dir():
        _drain(chunks)
        target.mkdir(parents=True, exist_ok=True)
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    mode = 0o755 if (entry.external_attr >> 16) & 0o100 else 0o644
    # O_EXCL and O_NOFOLLOW: no entry writes over another one, or through a link.
    with os.fdopen(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode), "wb") as file:
        for chunk in chunks:
            file.write(chunk)
