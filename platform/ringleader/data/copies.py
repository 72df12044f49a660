"""One node's copies of the files that a replicated job reads: each made once, whole or not at all, for all workers, and
decoded. One that another job has left there is taken."""

import fcntl
import hashlib
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from time import monotonic, sleep

import pyarrow as pa
import pyarrow.fs as pafs

from ringleader.data.kept_copies import KeptCopies
from ringleader.data.sources.arrow_copy import ENDING, facts_of, write_copy
from ringleader.data.sources.paths import resolve
from ringleader.errors import RingleaderError

CHUNK_BYTES = 8 << 20
STALLED_S = 600.0
"""The longest time without growth of a file that another worker copies: in the end it reads the whole copy again."""
AGAIN_S = 0.05
IN_USE = ".in-use"
KEPT = "kept-copies"
"""The folder of what jobs have left, beside those of their attempts."""
DECODED = 4
"""As many times as large is a file decoded, about, where room is made for it."""


class CopyFailed(RingleaderError):
    """A file cannot be copied onto this node."""

    code = "entrypoint_raised"

    def __init__(self, source: str, why: str) -> None:
        super().__init__(
            f"data.distribution is replicated, but {source} cannot be copied to this node: {why}.",
            hint="Copies are stored in the node's RINGLEADER_SCRATCH; data.distribution: sharded reads from the "
            "source.",
        )


class NodeCopies:
    """The folder of a node's copies, used by this process as long as it lives.

    Args:
        folder: local to the node, the same for all workers of the attempt that are there. Copies that earlier jobs
            left below the folder two above it, and no process uses, are removed.
        stalled_s: seconds to wait for another worker's copy that does not grow.

    Raises:
        CopyFailed: the folder cannot be used.
    """

    def __init__(self, folder: Path, stalled_s: float = STALLED_S) -> None:
        self._folder = folder
        self._stalled_s = stalled_s
        self._here = Path.cwd()
        self._kept = KeptCopies(folder.parent.parent / KEPT)
        _use(folder)
        for other in folder.parent.parent.glob(f"*/*/{IN_USE}"):
            if other.parent != folder:
                remove_unused(other.parent)
        # What was in use when the last copy was made may not be any more.
        self._kept.make_room()

    def of(self, source: str, digest: str = "") -> str:
        """The path of this node's copy of a Parquet file: as Arrow, decoded, but where a column has a dictionary or
        cannot be decoded. Files in this process's working directory are here already.

        Args:
            digest: of the file's footer, in hex, for a copy that another job has left; without it none is taken or
                kept, nor of a file whose source does not say when it last changed.

        Raises:
            CopyFailed: with the source and the reason.
        """
        filesystem, path = resolve(source)
        local = isinstance(filesystem, pafs.LocalFileSystem)
        if local and Path(path).is_relative_to(self._here):
            return source
        # With the kind of file system: a path may exist on two of them.
        name = hashlib.sha256(f"{filesystem.type_name}:{path}".encode()).hexdigest()[:32]
        copy = self._folder / f"{name}.parquet"
        try:
            info = filesystem.get_file_info(path)
            if (size := info.size) is None:
                raise FileNotFoundError("the file does not exist")
            with self._alone(copy, source):
                arrow = copy.with_suffix(ENDING)
                kept = _kept_name(arrow, digest, info.mtime_ns)
                made = arrow if arrow.exists() or (kept and self._taken(arrow, kept)) else None
                if made is None:
                    # The Parquet file stays beside what is made of it until that is whole.
                    self._kept.make_room((1 + DECODED) * size)
                    if not copy.exists():
                        _fetch(filesystem, path, size, copy)
                    made = self._decoded(copy, arrow, kept)
            found = facts_of(made).size_bytes if made == arrow else made.stat().st_size
        except OSError as error:
            raise CopyFailed(source, str(error)) from error
        if found != size:
            raise CopyFailed(
                source, f"it has {size} bytes now, but had {found} when the first worker copied it"
            )
        return str(made)

    def _taken(self, arrow: Path, name: str) -> bool:
        """Whether another job has left a copy of the file, which is this one's now too."""
        if not self._kept.take(name, arrow):
            return False
        with suppress(OSError):
            facts_of(arrow)
            return True
        # What the disk has lost is made again.
        arrow.unlink()
        self._kept.drop(name)
        return False

    def _decoded(self, copy: Path, arrow: Path, name: str) -> Path:
        """The copy as Arrow, in place of the one as Parquet, kept for later jobs where it has a name for that. The one
        as Parquet where it cannot be decoded, which only the first worker of the node tries."""
        undecoded = copy.with_suffix(".undecoded")
        try:
            if undecoded.exists() or not write_copy(copy, arrow):
                return copy
        except (OSError, pa.ArrowException) as error:
            # No room, or a column that nobody may ever read. What is read has the same bits.
            with suppress(OSError):
                undecoded.touch()
            print(
                f"ringleader: {copy} stays Parquet, as it cannot be decoded: {error}",
                file=sys.stderr,
                flush=True,
            )
            return copy
        copy.unlink()
        # Under a name that says what it is a copy of: the file may have changed since the caller has read its footer.
        if f"-{facts_of(arrow).digest}-" in name:
            self._kept.keep(name, arrow)
        return arrow

    @contextmanager
    def _alone(self, copy: Path, source: str) -> Iterator[None]:
        """Run the block in one worker at a time."""
        # A lock, which the system takes from a worker that dies.
        place = os.open(copy.with_suffix(".lock"), os.O_RDWR | os.O_CREAT, 0o600)
        try:
            size, since = -1, monotonic()
            # Asked again and again, as a wait inside `flock` would have no deadline.
            while not _got(fcntl.flock, place, fcntl.LOCK_EX):
                now = _size(_partial(copy))
                if now != size:
                    size, since = now, monotonic()
                elif monotonic() - since > self._stalled_s:
                    raise CopyFailed(
                        source,
                        f"another worker is copying it, but has made no progress for {self._stalled_s:g} s",
                    )
                sleep(AGAIN_S)
            yield
        finally:
            # The file stays: were it removed, two workers could each lock a file of this name.
            os.close(place)


def remove_unused(folder: Path) -> None:
    """Remove a node's copies, unless another process uses them."""
    gone = folder.with_name(f"{folder.name}.{os.getpid()}")
    try:
        mark = os.open(folder / IN_USE, os.O_RDWR)
    except OSError:
        return
    try:
        # `lockf`, whose locks are the process's: that of this worker, which is the last to leave, does not stop itself.
        fcntl.lockf(mark, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Renamed under the lock, removed without it: a worker that opens the mark meanwhile sees that it moved.
        folder.rename(gone)
    except OSError:
        return
    finally:
        os.close(mark)
    shutil.rmtree(gone, ignore_errors=True)
    with suppress(OSError):  # others are in there
        folder.parent.rmdir()


def _use(folder: Path) -> None:
    """Mark the folder as used until this process ends: the lock is the process's, and goes when it is killed."""
    _own(folder.parent.parent)
    until = monotonic() + STALLED_S
    while monotonic() < until:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            mark = os.open(folder / IN_USE, os.O_RDWR | os.O_CREAT, 0o600)
        except FileNotFoundError:
            continue  # whoever left last is removing it
        # The mark may be that of a folder renamed since it was opened: then the lock holds nothing. A right one
        # stays open as long as the process, because closing it would release the lock.
        if _got(fcntl.lockf, mark, fcntl.LOCK_SH) and _is(mark, folder / IN_USE):
            return
        os.close(mark)
        sleep(AGAIN_S)
    raise CopyFailed(str(folder), "another process is removing this folder and does not finish")


def _own(base: Path) -> None:
    """Make the folder of all copies, which no other user may look into."""
    base.mkdir(parents=True, exist_ok=True, mode=0o700)
    # Scratch may be a folder such as /tmp, where another account can make this one first, or a link elsewhere.
    if base.is_symlink() or base.stat().st_uid != os.getuid():
        raise CopyFailed("any file", f"{base} belongs to another account")


def _got(lock: Callable[[int, int], object], file: int, how: int) -> bool:
    try:
        lock(file, how | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):  # what systems say where somebody else has it
        return False
    return True


def _is(mark: int, path: Path) -> bool:
    """Whether that open file still has this name."""
    try:
        return os.path.samestat(os.fstat(mark), path.stat())
    except FileNotFoundError:
        return False


def _fetch(filesystem: pafs.FileSystem, path: str, size: int, copy: Path) -> None:
    """Copy under another name, read it back, and rename.

    Raises:
        OSError: saying what is wrong.
    """
    free = shutil.disk_usage(copy.parent).free
    if size > free:
        raise OSError(f"it has {size} bytes, but {copy.parent} has room for only {free}")
    partial = _partial(copy)
    try:
        written = _write(filesystem, path, partial)
        with partial.open("rb") as file:
            there = hashlib.file_digest(file, hashlib.blake2b).digest()
        if there != written or partial.stat().st_size != size:
            raise OSError(
                f"the {partial.stat().st_size} bytes written differ from the {size} bytes of the source"
            )
        # Only now under its name: a copy that is there is whole.
        partial.replace(copy)
    finally:
        partial.unlink(missing_ok=True)


def _write(filesystem: pafs.FileSystem, path: str, partial: Path) -> bytes:
    """Copy the source; returns the digest of the bytes that were read."""
    digest = hashlib.blake2b()
    # By default pyarrow unpacks a file whose name ends in .gz: the copy has to have the source's bytes.
    with filesystem.open_input_stream(path, compression=None) as stream, partial.open("wb") as file:
        while chunk := stream.read(CHUNK_BYTES):
            digest.update(chunk)
            file.write(chunk)
    return digest.digest()


def _partial(copy: Path) -> Path:
    return copy.with_suffix(".partial")


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return -1


def _kept_name(arrow: Path, digest: str, mtime_ns: int | None) -> str:
    """The name under which later jobs find the copy; empty where it is not kept."""
    # With the time of its last change, which not every source says: numbers can change without a byte of the footer.
    return f"{arrow.stem}-{digest}-{mtime_ns}{ENDING}" if digest and mtime_ns is not None else ""
