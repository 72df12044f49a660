"""The folder of a job's checkpoints, on any file system that pyarrow knows."""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
from pyarrow import fs

from ringleader.checkpoint.manifest import (
    CheckpointFile,
    CheckpointPosition,
    CheckpointsUnreachable,
    CheckpointUnreadable,
    Manifest,
    order_of,
)

MANIFEST = "manifest.json"
SET_ASIDE = "manifest.set-aside.json"
CHUNK_BYTES = 1 << 22


class OpenFile:
    """A file of a checkpoint, open for reading: on a local disk it can be read to its end even once it is removed."""

    def __init__(self, place: str, piece: CheckpointFile, file: pa.NativeFile) -> None:
        self._place = place
        self._piece = piece
        self._file = file

    def read(self, start: int, size_bytes: int) -> bytes:
        """Read exactly these bytes. Raises CheckpointUnreadable."""
        try:
            content: bytes = self._file.read_at(size_bytes, start)
        except (OSError, ValueError) as error:
            raise _unread(self._place, self._piece.name, error) from None
        if len(content) != size_bytes:
            raise CheckpointUnreadable(
                self._place, f"{self._piece.name} ends before byte {start + size_bytes}"
            )
        return content

    def checking(self) -> Iterator[None]:
        """Read it through, a chunk each turn. Raises CheckpointUnreadable: its bytes have changed since."""
        digest = hashlib.sha256()
        for start in range(0, self._piece.size_bytes, CHUNK_BYTES):
            digest.update(self.read(start, min(CHUNK_BYTES, self._piece.size_bytes - start)))
            yield
        if digest.hexdigest() != self._piece.sha256:
            raise CheckpointUnreadable(self._place, self._piece.changed)

    def close(self) -> None:
        self._file.close()


class Folder:
    """The checkpoints below one URI: writes, finds, reads and thins them out.

    Args:
        uri: a path, or a URI of a pyarrow file system such as `s3://bucket/folder`.
        chunk_bytes: the size of one write.
        rest: called after each chunk.

    Raises:
        ValueError: pyarrow knows no such file system.
    """

    def __init__(
        self, uri: str, chunk_bytes: int = CHUNK_BYTES, rest: Callable[[], None] = lambda: None
    ) -> None:
        self.uri = uri.rstrip("/")
        self._chunk_bytes = chunk_bytes
        self._rest = rest
        self._fs: fs.FileSystem
        self._root: str
        try:
            self._fs, self._root = fs.FileSystem.from_uri(self.uri) if "://" in uri else _local(self.uri)
        except pa.ArrowInvalid as error:
            raise ValueError(f"{uri!r} names no file system for checkpoints: {error}") from None
        except OSError as error:  # some are asked for the region of the bucket first
            raise CheckpointsUnreachable(self.uri, str(error)) from None

    @property
    def job(self) -> str:
        """The job whose checkpoints are in here."""
        return self.uri.rpartition("/")[2]

    def write(self, name: str, file: str, *parts: bytes | memoryview) -> CheckpointFile:
        """Write one file of a checkpoint from these parts; returns its entry for the manifest. Where that fails there
        is no such file."""
        folder, digest, size_bytes = f"{self._root}/{name}", hashlib.sha256(), 0
        self._fs.create_dir(folder, recursive=True)
        try:
            with self._fs.open_output_stream(f"{folder}/{file}") as stream:
                for part in parts:
                    for start in range(0, len(part), self._chunk_bytes):
                        # Neither call holds the interpreter: whoever trains in this process goes on meanwhile.
                        chunk = part[start : start + self._chunk_bytes]
                        digest.update(chunk)
                        stream.write(pa.py_buffer(chunk))
                        self._rest()
                    size_bytes += len(part)
        except Exception:
            with suppress(OSError):  # where there is no room, what is torn must not take what is left of it
                self._fs.delete_file(f"{folder}/{file}")
            raise
        return CheckpointFile(file, size_bytes, digest.hexdigest())

    def commit(self, name: str, manifest: Manifest) -> None:
        """Write the manifest: from here on the checkpoint exists."""
        self.write(name, MANIFEST, manifest.encode())

    def check_there(self, name: str, pieces: Sequence[CheckpointFile]) -> None:
        """Raise CheckpointUnreadable, naming a file that was written but cannot be seen from here."""
        infos = self._fs.get_file_info([f"{self._root}/{name}/{piece.name}" for piece in pieces])
        for piece, info in zip(pieces, infos, strict=True):
            # None where there is no such file.
            if info.size != piece.size_bytes:
                why = (
                    f"{piece.name} was written but cannot be seen from here: with workers on several nodes, "
                    "checkpoint.uri must be in a place that all of them share"
                )
                raise CheckpointUnreadable(self.place_of(name), why)

    def names(self) -> list[str]:
        """Names of all that have a manifest, the newest first. Raises CheckpointsUnreachable."""
        selector = fs.FileSelector(self._root, recursive=True, allow_not_found=True)
        try:
            infos: Sequence[fs.FileInfo] = self._fs.get_file_info(selector)
        except OSError as error:
            raise CheckpointsUnreachable(self.uri, str(error)) from None
        paths = (info.path for info in infos if info.base_name == MANIFEST)
        return sorted((path.split("/")[-2] for path in paths), key=_age, reverse=True)

    def place_of(self, name: str) -> str:
        """The URI of a checkpoint."""
        return f"{self.uri}/{name}"

    def manifest(self, name: str) -> Manifest:
        """The manifest of a checkpoint. Raises CheckpointUnreadable: it is missing, torn or of another one."""
        place = self.place_of(name)
        manifest = Manifest.decode(place, self._read(place, name, MANIFEST))
        if manifest.position.name != name:
            raise CheckpointUnreadable(place, f"its manifest is that of {manifest.position.name}")
        return manifest

    def open(self, name: str, piece: CheckpointFile) -> OpenFile:
        """Open one file; none of it is read yet. Raises CheckpointUnreadable: it is missing, or of another size."""
        place = self.place_of(name)
        try:
            file = self._fs.open_input_file(f"{self._root}/{name}/{piece.name}")
            size_bytes = file.size()
        except OSError as error:
            raise _unread(place, piece.name, error) from None
        if size_bytes != piece.size_bytes:
            file.close()
            raise CheckpointUnreadable(place, piece.resized(size_bytes))
        return OpenFile(place, piece, file)

    def read(self, name: str) -> tuple[Manifest, dict[str, bytes]]:
        """The manifest, and every file by its name.

        Raises:
            CheckpointUnreadable: naming the file that is missing, torn, changed or of another checkpoint.
            CheckpointsUnreachable: the file system does not answer.
        """
        place, manifest = self.place_of(name), self.manifest(name)
        contents = {}
        for piece in manifest.pieces:
            contents[piece.name] = self._read(place, name, piece.name)
            if wrong := piece.check(contents[piece.name]):
                raise CheckpointUnreadable(place, wrong)
        return manifest, contents

    def loose(self, file: str) -> bytes:
        """The content of a file in the folder itself. Raises CheckpointUnreadable, CheckpointsUnreachable."""
        return self._content(self.place_of(file), f"{self._root}/{file}", file)

    def set_aside(self, position: CheckpointPosition) -> Iterator[str]:
        """Rename the manifests of what earlier attempts have written at this step and later, so that it is no
        checkpoint any more. The files stay until `thin_out` removes them.

        Yields:
            each name once it is done.
        """
        for name in self.names():
            # The attempt of `position` could not read it, and began before it.
            if position.outdoes(name):
                self._fs.move(f"{self._root}/{name}/{MANIFEST}", f"{self._root}/{name}/{SET_ASIDE}")
                yield name

    def thin_out(self, keep: int, but: str = "", *, last: bool = False) -> Iterator[str]:
        """Remove all but the newest `keep` checkpoints, and incomplete ones older than the oldest kept. `but` stays.

        Args:
            last: nobody writes any more, so that all incomplete ones go.

        Yields:
            each name that is no checkpoint any more, before the rest of its files goes.
        """
        kept = self.names()[:keep]
        oldest = _age(but if last else kept[-1]) if kept else ()
        # A newer one without a manifest may still be being written.
        doomed = [name for name in self._folders() if _age(name) < oldest and name not in {*kept, but}]
        for name in sorted(doomed, key=_age):
            # The manifest goes first: what is half removed is no checkpoint.
            if self._fs.get_file_info(f"{self._root}/{name}/{MANIFEST}").type is fs.FileType.File:
                self._fs.delete_file(f"{self._root}/{name}/{MANIFEST}")
            yield name
            self._fs.delete_dir(f"{self._root}/{name}")

    def _folders(self) -> Iterator[str]:
        selector = fs.FileSelector(self._root, allow_not_found=True)
        infos: Sequence[fs.FileInfo] = self._fs.get_file_info(selector)
        return (info.base_name for info in infos if info.type is fs.FileType.Directory)

    def _read(self, place: str, name: str, file: str) -> bytes:
        return self._content(place, f"{self._root}/{name}/{file}", file)

    def _content(self, place: str, path: str, file: str) -> bytes:
        try:
            with self._fs.open_input_stream(path) as stream:
                content: bytes = stream.read()
                return content
        except FileNotFoundError as error:
            raise (_gone(place) if file == MANIFEST else _unread(place, file, error)) from None
        except OSError as error:
            # Of files elsewhere only that one is missing is certain: the network may fail for all of them alike.
            if isinstance(self._fs, fs.LocalFileSystem):
                raise _unread(place, file, error) from None
            raise CheckpointsUnreachable(place, f"{file}: {error}") from None


def _age(name: str) -> tuple[int, ...]:
    """The sort key of a checkpoint's name, its numbers as numbers; other names come first."""
    return order_of(name) or ()


def _unread(place: str, file: str, error: Exception) -> CheckpointUnreadable:
    return CheckpointUnreadable(place, f"{file} cannot be read ({error})")


def _gone(place: str) -> CheckpointUnreadable:
    return CheckpointUnreadable(
        place, "there is no checkpoint; a job keeps only its newest ones, as many as checkpoint.keep says"
    )


def _local(path: str) -> tuple[fs.FileSystem, str]:
    return fs.LocalFileSystem(), str(Path(path).expanduser().resolve())
