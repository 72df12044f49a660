"""The index of a set of files, which says where its blocks lie: made by one process of a group, handed to its other
nodes, and kept on each for all others that read the set, joiners and later jobs among them."""

import fcntl
import hashlib
import os
import secrets
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from threading import Event, Thread
from time import monotonic, sleep, time_ns
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs

from ringleader.data.sources.paths import resolve
from ringleader.files import INDEXES, SCRATCH, not_private, own_indexes
from ringleader.index_group import joined

Found = TypeVar("Found")
Facts = dict[str, pa.Array]
"""By name what an index says, as arrays of any lengths."""
FORMAT = 2
"""To be raised when sources cut files into other blocks, or keep other facts: what is kept then is made anew."""
SETTLED_NS = 2 * 10**9
"""The age of a file's last change from which another one cannot have the same time."""
SILENT_S = 60.0
BEAT_S, AGAIN_S = 1.0, 0.02
MOST_BYTES = 1 << 30
DIGEST_BYTES = 16
THREADS = 8
KEEPS, KEEPS_NOTHING = 0o600, 0o700
"""The mode of a lock: whether what was made behind it could be kept. A full disk takes a mode, and no byte."""


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
    """The index of a key: the one that this node keeps or another one of the group has, else one that is made now. One
    process makes it, while others wait; each makes its own where that one is silent, or nothing can be kept.

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
        return _of_group(name, key, make)[0]
    kept = folder / f"{name}.arrow"
    return _used(kept) or _of_node(kept, key, make, silent_s, most_bytes)


def by_threads(find: Callable[[int], Found], count: int) -> Iterator[Found]:
    """The findings of each of so many files or blocks, in their order, by several threads; few are ahead of who takes
    it."""
    waiting: deque[Future[Found]] = deque()
    with ThreadPoolExecutor(max(1, min(THREADS, count))) as pool:
        try:
            for number in range(count):
                waiting.append(pool.submit(find, number))
                if len(waiting) == 2 * THREADS:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:  # who takes them may have failed
            for each in waiting:
                each.cancel()


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


def _of_node(
    kept: Path, key: Callable[[], str], make: Callable[[], Facts], silent_s: float, most_bytes: int
) -> Facts:
    """The index that another process of this node is making, else the group's, kept from then on."""
    # A lock for many names: files of locks stay, and there are no more than these.
    lock = kept.with_name(f"{kept.name[:2]}.lock")
    with _alone(lock, silent_s) as alone:
        if alone and (found := _used(kept)) is not None:
            return found
        if not alone and not _keeps_nothing(lock):  # who makes it is silent
            return make()
        made, stored = _of_group(kept.stem, key, make)
        if stored is None or not _keep(kept, lock, stored, most_bytes):
            return made
    # Its memory is the system's, and not this process's.
    return _read(kept) or made


def _of_group(name: str, key: Callable[[], str], make: Callable[[], Facts]) -> tuple[Facts, bytes | None]:
    """The index that another node has made, else one that is made now and handed to the others; and what is to be kept
    of it: None of files that have changed meanwhile."""
    group = joined()
    given = group.take(name) if group is not None else None
    if given is not None and (found := _facts_in(given, name)) is not None:
        return found, given
    stored = None
    try:
        made = make()
        if key() == name:
            stored = _stored(made, name)
    finally:  # also where it failed: the others wait
        if group is not None:
            group.give(name, stored)
    return made, stored


def _folder() -> Path | None:
    """The folder of indexes, which belongs to this account alone; None where there is none to be had."""
    own = own_indexes()
    why = "it belongs to another account, or is open to others"
    try:
        if not any(not_private(folder) for folder in (own.parent, own)):
            return own
    except OSError as error:
        why = str(error)
    _say_unkept(own, why)
    return None


@cache  # said once by a process
def _say_unkept(folder: Path, why: str) -> None:
    with suppress(OSError):  # what is printed may go to the same disk
        print(
            f"ringleader: no index of files can be kept in {folder} ({why}): each process of this node looks through "
            f"them for itself. Make room there, or have {SCRATCH} name a folder of the node's own disk.",
            file=sys.stderr,
            flush=True,
        )


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
    nothing can be kept, or there are no locks."""
    try:
        place = os.open(lock, os.O_RDWR | os.O_CREAT, KEEPS)
    except OSError as error:
        _say_unkept(lock.parent, error.strerror or str(error))
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
        if _marked(os.fstat(place)):  # waiting for one another would gain nobody anything
            return False
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


def _marked(lock: os.stat_result) -> bool:
    return lock.st_mode & KEEPS_NOTHING == KEEPS_NOTHING


def _keeps_nothing(lock: Path) -> bool:
    """Whether the last index behind a lock could not be kept, or there can be no such file."""
    return not os.access(lock, os.W_OK) or _marked(lock.stat())


def _keep(kept: Path, lock: Path, stored: bytes, most_bytes: int) -> bool:
    """Keep an index, and remove what is too much. Returns whether there was room for it, which the lock says too."""
    mode = KEEPS
    try:
        _write(kept, stored)
        _make_room(kept.parent, kept, most_bytes)
    except OSError as error:
        mode = KEEPS_NOTHING
        _say_unkept(kept.parent, error.strerror or str(error))
    with suppress(OSError):
        lock.chmod(mode)
    return mode == KEEPS


def _stored(facts: Facts, name: str) -> bytes:
    """An index as it is kept and handed over: its digest, then an Arrow file."""
    lists = [pa.LargeListArray.from_arrays([0, len(each)], each) for each in facts.values()]
    table = pa.RecordBatch.from_arrays(lists, list(facts))
    out = pa.BufferOutputStream()
    with pa.ipc.new_file(out, table.schema) as writer:
        writer.write_batch(table)
    file = memoryview(out.getvalue())
    return b"".join((_digest(file, name), file))


def _write(kept: Path, stored: bytes) -> None:
    """Write an index under another name, and rename it: a reader sees a whole one or none."""
    partial = kept.with_name(f"{kept.name}.{secrets.token_hex(4)}.partial")
    try:
        partial.write_bytes(stored)
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
    """The index in a file, mapped into memory; None where there is none, another account has written it, or the disk
    has lost a part."""
    try:
        if kept.stat().st_uid != os.getuid():
            return None
        with pa.memory_map(str(kept)) as file:
            return _facts_in(file.read_buffer(), kept.stem)
    except OSError:
        return None


def _facts_in(stored: pa.Buffer | bytes, name: str) -> Facts | None:
    """The facts of an index, without a copy; None where a byte of it is another one, or it is that of another name."""
    digest, table = memoryview(stored)[:DIGEST_BYTES], memoryview(stored)[DIGEST_BYTES:]
    if bytes(digest) != _digest(table, name):
        return None
    batch = pa.ipc.open_file(pa.py_buffer(table)).get_batch(0)
    return {name: column.flatten() for name, column in zip(batch.schema.names, batch.columns, strict=True)}


def _digest(stored: memoryview, name: str) -> bytes:
    # With its name: an index under the name of another one is none.
    return hashlib.blake2b(stored, digest_size=DIGEST_BYTES, key=name.encode()).digest()


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
