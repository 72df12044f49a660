"""The files of a source by number: opened when they are needed in each process, read by position."""

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs

from ringleader.data.sources.open_files import OPEN_FILES, OpenFiles, PerProcess
from ringleader.data.sources.paths import resolve
from ringleader.data.unreadable import BlockUnreadable, FileUnreadable
from ringleader.data.uris import hint_for, said
from ringleader.errors import RingleaderError


class SourceFiles:
    """Files in their order.

    Args:
        open_: opens the file of a number; with `open_uri` where it is left out.
        most: as many are open at once in a process.

    """

    def __init__(
        self,
        uris: Sequence[str],
        open_: Callable[[int], pa.NativeFile] | None = None,
        most: int = OPEN_FILES,
    ) -> None:
        self.uris = list(uris)
        self._stamps = [stamp_of(uri) for uri in self.uris]
        self._open = open_
        self._most = most
        self._opened = PerProcess(self._open_files)

    def size(self, number: int) -> int:
        """Raises FileUnreadable where it is not there or cannot be opened."""
        with reading(self.uris[number]), self._opened.get().use(number) as file:
            return int(file.size())

    def read(self, number: int, offset: int, size: int) -> pa.Buffer:
        """So many bytes of a file, exactly; without a copy where it is mapped into memory.

        Raises:
            FileUnreadable: it has no such bytes, or is a local file that is not what it was when this was made.
        """
        uri = self.uris[number]
        with reading(uri), self._opened.get().use(number) as file:
            file.seek(offset)
            found = file.read_buffer(size)
        # Behind the read: it may have changed meanwhile.
        if stamp_of(uri) != self._stamps[number]:
            raise FileUnreadable(uri, "it has changed since it was first read", BlockUnreadable.cure)
        if found.size != size:
            raise FileUnreadable(uri, f"it ends {size - found.size} bytes before byte {offset + size}")
        return found

    def _open_files(self) -> OpenFiles[pa.NativeFile]:
        return OpenFiles(self._open or (lambda number: open_uri(self.uris[number])), self._most)


def stamp_of(uri: str) -> tuple[int, int]:
    """The size and time of a local file, by which a change of it shows; zeros for a remote one, or where there is none.

    Raises:
        UriUnusable: there is no file system for it.
    """
    # By its name: making a file system may ask a server.
    if "://" in uri and not uri.startswith("file://"):
        return 0, 0
    filesystem, path = resolve(uri)
    info = filesystem.get_file_info(path)
    return info.size or 0, info.mtime_ns or 0


class reading:
    """A block that reads a file: what its file system raises becomes FileUnreadable."""

    def __init__(self, uri: str) -> None:
        self._uri = uri

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: Any, error: BaseException | None, _trace: Any) -> None:
        if isinstance(error, FileNotFoundError):
            raise FileUnreadable(self._uri, "it does not exist", hint_for(error, self._uri)) from error
        # Of whatever kind: each file system has its own.
        if isinstance(error, Exception) and not isinstance(error, RingleaderError):
            raise FileUnreadable(self._uri, said(error), hint_for(error, self._uri)) from error


def open_uri(uri: str, *, mapped: bool = False) -> pa.NativeFile:
    """A file for reading at any position; mapped into memory, where it is local and that is asked for."""
    filesystem, path = resolve(uri)
    if mapped and isinstance(filesystem, pafs.LocalFileSystem):
        return pa.memory_map(path)
    return filesystem.open_input_file(path)


def inside(folder: str, name: str) -> str:
    """The path or URI of a file in a folder, by the name that an index gives: it may not lead out of there.

    Raises:
        FileUnreadable: it would.
    """
    if name.startswith("/") or ".." in name.split("/") or "://" in name or "\\" in name:
        raise FileUnreadable(folder, f"its index names {name!r}, which lies outside")
    return f"{folder.rstrip('/')}/{name}"


def size_of(uri: str) -> int | None:
    """The bytes of a file; None where there is none.

    Raises:
        FileUnreadable: its file system does not say.
    """
    with reading(uri):
        filesystem, path = resolve(uri)
        info = filesystem.get_file_info(path)
        return info.size if info.type is pafs.FileType.File else None


def read_text(uri: str) -> str:
    """A whole small file."""
    with reading(uri), open_uri(uri) as file:
        return bytes(file.read()).decode()


def digest_of(*parts: object) -> str:
    """A digest of arrays by their bytes, and of anything else by its text, in hex."""
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        # A path that is no UTF-8 comes with surrogates, which would be an error here.
        data = part.tobytes() if isinstance(part, np.ndarray) else str(part).encode(errors="surrogatepass")
        # With its length: else the same bytes, cut elsewhere into parts, would have the same digest.
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.hexdigest()
