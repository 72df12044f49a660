"""The index of a set of files, which says where its blocks lie: made by one process of a node, and kept there for all
others that read the set, joiners and later jobs among them."""

import fcntl
import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Thread
from time import monotonic, sleep, time_ns

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs

from ringleader.data.sources.paths import resolve
from ringleader.files import INDEXES, not_private, own_indexes

Facts = dict[str, pa.Array]
"""By name what an index says, as arrays of any lengths."""
FORMAT = 1
"""To be raised when sources cut files into other blocks, or keep other facts: what is kept then is made anew."""
SETTLED_NS = 2 * 10**9
"""The age of a file's last change from which another one cannot have the same time."""
SILENT_S = 60.0
BEAT_S, AGAIN_S = 1.0, 0.02
MOST_BYTES = 1 << 30
DIGEST_BYTES = 16
THREADS = 8


def index_key(uris: Sequence[str], *asked: object) -> str:
    """The name of an index, in hex: another one as soon as a file, or what is asked for, is another one. Empty where a
    change may not show: a file has just been written, or its file system does not say when it was.

    Args:
        asked: the format, and what else its blocks depend on.
    """
    states = [_state_of(uri) for uri in uris[:1]]
    if None not in states:  # one file system does not say: nor do all the others have to be asked
        with ThreadPoolExecutor(max(1, min(THREADS, len(uris)))) as pool:
            states += pool.map(_state_of, uris[1:])
    if None in states or not states:
        return ""
    told = repr((FORMAT, pa.__version__, asked, list(zip(uris, states, strict=True))))
    return hashlib.blake2b(told.encode(errors="surrogatepass"), digest_size=DIGEST_BYTES).hexdigest()


def kept_facts(
    key: Callable[[], str],
    make: Callable[[], Facts],
    *,
    silent_s: float = SILENT_S,
    most_bytes: int = MOST_BYTES,
) -> Facts:
    """The index of a key: the one that this node keeps, else one that is made now. One process makes it, while others
    wait; each makes its own where that one is silent, or no folder is to be had.

    Args:
        key: says the name, see `index_key`; asked again behind `make`, so that none is kept of files that change.
        silent_s: the longest wait for who makes it and gives no sign of life.
        most_bytes: as much as all indexes of the node take; the longest unused go first.
    """
    name = key()
    if not name:
        return make()
    if (given := os.environ.get(INDEXES)) and (found := _read(Path(given) / f"{name}.arrow")) is not None:
        return found
    if (folder := _folder()) is None:
        return make()
    kept = folder / f"{name}.arrow"
    if (found := _used(kept)) is not None:
        return found
    # A lock for many names: files of locks stay, and there are no more than these.
    with _alone(folder / f"{name[:2]}.lock", silent_s) as alone:
        if alone and (found := _used(kept)) is not None:
            return found
        made = make()
        if alone and key() == name:
            with suppress(OSError):  # no room: others make it too
                _write(kept, made)
                _make_room(folder, kept, most_bytes)
    return made


def numbers(facts: Facts, name: str, width: int = 0) -> np.ndarray:
    """The whole numbers of that name, (n,), or (n, width), in memory of this process."""
    found: np.ndarray = facts[name].to_numpy().copy()
    return found.reshape(-1, width) if width else found


def packed_schema(schema: pa.Schema) -> pa.Array:
    """A schema as a fact."""
    return pa.array([schema.serialize().to_pybytes()], pa.binary())


def schema_in(facts: Facts) -> pa.Schema:
    """The schema that was packed under the name `schema`."""
    return pa.ipc.read_schema(pa.py_buffer(facts["schema"][0].as_py()))


def _folder() -> Path | None:
    """The folder of indexes, which belongs to this account alone; None where there is none to be had."""
    own = own_indexes()
    with suppress(OSError):
        if not any(not_private(folder) for folder in (own.parent, own)):
            return own
    return None


def _state_of(uri: str) -> tuple[int, ...] | None:
    """The size and the times of a file, by which a change of it shows; None where it may not."""
    try:
        filesystem, path = resolve(uri)
        if isinstance(filesystem, pafs.LocalFileSystem):
            found = Path(path).stat()
            # A time of change may be set back; the one at which that was done may not.
            newest_ns = max(found.st_mtime_ns, found.st_ctime_ns)
            state: tuple[int, ...] = found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino
        else:
            info = filesystem.get_file_info(path)
            if info.mtime_ns is None or info.size is None:
                return None
            newest_ns, state = info.mtime_ns, (info.size, info.mtime_ns)
    except Exception:  # of whatever kind: each file system has its own, and who reads the file says so
        return None
    return state if newest_ns < time_ns() - SETTLED_NS else None


@contextmanager
def _alone(lock: Path, silent_s: float) -> Iterator[bool]:
    """Run the block in one process at a time, which gives signs of life meanwhile; False where another one is silent,
    or there are no locks."""
    try:
        place = os.open(lock, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError:
        yield False
        return
    over = Event()
    beat = Thread(target=_beat, args=(lock, over), daemon=True)
    try:
        # A lock, which the system takes from a process that dies.
        alone = _got(place, silent_s)
        if alone:
            beat.start()
        yield alone
    finally:
        over.set()
        if beat.ident is not None:
            beat.join()
        # Said, and not left to the end of the file: a process that was forked meanwhile has it open too.
        with suppress(OSError):
            fcntl.flock(place, fcntl.LOCK_UN)
        os.close(place)


def _got(place: int, silent_s: float) -> bool:
    """Wait for a lock, as long as who has it gives signs of life. Returns whether it is this process's."""
    heard, since = -1, monotonic()
    # Asked again and again, as a wait inside `flock` would have no deadline.
    while monotonic() - since < silent_s:
        try:
            fcntl.flock(place, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            pass
        except OSError:  # a file system without locks
            return False
        if (now := os.fstat(place).st_mtime_ns) != heard:
            heard, since = now, monotonic()
        sleep(AGAIN_S)
    return False


def _beat(lock: Path, over: Event) -> None:
    """Give signs of life, until it is over: a process that is stopped gives none."""
    while not over.wait(BEAT_S):
        with suppress(OSError):
            os.utime(lock)


def _write(kept: Path, facts: Facts) -> None:
    """Write an index under another name, and rename it: a reader sees a whole one or none."""
    lists = [pa.LargeListArray.from_arrays([0, len(each)], each) for each in facts.values()]
    table = pa.RecordBatch.from_arrays(lists, list(facts))
    out = pa.BufferOutputStream()
    with pa.ipc.new_file(out, table.schema) as writer:
        writer.write_batch(table)
    stored = out.getvalue()
    partial = kept.with_name(f"{kept.name}.partial")
    try:
        with partial.open("wb") as file:
            file.write(_digest(kept, stored))
            file.write(stored)
        partial.replace(kept)
    finally:
        partial.unlink(missing_ok=True)


def _used(kept: Path) -> Facts | None:
    """The index in a file of this process's folder, with a sign that it was used."""
    if (found := _read(kept)) is not None:
        with suppress(OSError):  # it has been removed meanwhile
            os.utime(kept)
    return found


def _read(kept: Path) -> Facts | None:
    """The index in a file; None where there is none, another account has written it, or the disk has lost a part."""
    try:
        with kept.open("rb") as file:
            if os.fstat(file.fileno()).st_uid != os.getuid():
                return None
            stored = file.read()
    except OSError:
        return None
    table = memoryview(stored)[DIGEST_BYTES:]
    if stored[:DIGEST_BYTES] != _digest(kept, table):
        return None
    batch = pa.ipc.open_file(pa.py_buffer(table)).get_batch(0)
    return {name: column.flatten() for name, column in zip(batch.schema.names, batch.columns, strict=True)}


def _digest(kept: Path, stored: memoryview | pa.Buffer) -> bytes:
    # With its name: an index under the name of another one is none.
    return hashlib.blake2b(stored, digest_size=DIGEST_BYTES, key=kept.name.encode()).digest()


def _make_room(folder: Path, newest: Path, most_bytes: int) -> None:
    """Remove the longest unused indexes, until all take no more than they may."""
    found = []
    for each in folder.glob("*.arrow*"):
        with suppress(FileNotFoundError):  # another process removes some too
            state = each.stat()
            found.append((state.st_mtime_ns, state.st_size, each))
    taken = sum(size for _, size, _ in found)
    for _, size, each in sorted(found):
        if taken <= most_bytes or each == newest:
            return
        each.unlink(missing_ok=True)
        taken -= size
