"""Early notice that a process of this node dies, before the kernel has taken it apart.

Everything that tells of a death from outside (a pidfd, a closed socket, and so Ray) waits until the kernel has freed
the process's memory: 30 to 120 ms where torch is loaded. Robust mutexes are given up before that (`man
set_robust_list`): each worker process holds one in shared memory for as long as it lives, and whoever waits for it is
woken within about a millisecond of a SIGKILL. The process is still there then, but runs no code any more.
"""

import ctypes
import errno
import mmap
import os
import threading
import time
from functools import cache
from pathlib import Path

NAME = "life-of-a-ringleader-process"
"""The name of the shared memory. Not as segments are called: those are gone when a job is over."""
PAGE_BYTES = 4096
EXITING = 0x4
"""The flag of a thread that has begun to exit and never returns from the kernel: PF_EXITING of linux/sched.h."""
STATE, FLAGS, STATUS = 0, 6, 49
"""Fields of /proc/<pid>/task/<tid>/stat behind the name."""
ATTRIBUTE_BYTES = 64
"""No C library's pthread_mutexattr_t is larger."""
SHARED, ROBUST = 1, 1
EXIT_S = 1.0
STATUS_S = 0.05
"""The wait for a status, which an exiting process has as soon as it runs again; 0 is one only once it is a zombie."""
LOOK_S = 0.0005

Life = int
"""The descriptor of a process's life in that process; -1 where there is none."""


@cache
def own() -> Life:
    """This process's life: held until the process ends, however it ends. -1 where the system has no memfd."""
    if not hasattr(os, "memfd_create"):
        return -1
    descriptor = os.memfd_create(NAME, os.MFD_CLOEXEC)
    os.truncate(descriptor, PAGE_BYTES)
    mutex = _Mutex(descriptor)
    held = threading.Event()
    # A mutex dies with the thread that holds it.
    threading.Thread(target=_hold, args=(mutex, held), name="life", daemon=True).start()
    # Not before it is locked: a waiter would get a free mutex, and learn nothing.
    held.wait()
    return descriptor


def await_death(pid: int, life: Life) -> bool:
    """Wait until process `pid` runs no code any more.

    Args:
        life: what `own` returned in that process.

    Returns:
        whether it is so; False where that cannot be seen from here: nothing is known then.
    """
    if life < 0:
        return False
    try:
        mutex = _of(pid, life)
    except OSError:  # it is gone, its descriptor is another one's, or it may not be opened
        return _ends(pid)
    return mutex.await_end() and _await_exit(pid)


def status(pid: int) -> int | None:
    """The status of a process that runs no code any more, as `os.wait` tells a parent; None where it cannot be seen."""
    until = time.monotonic() + STATUS_S
    while time.monotonic() < until:
        try:
            fields = _fields(Path(f"/proc/{pid}/stat"))
            ended = int(fields[STATUS])
        except (OSError, IndexError):  # it is gone, or /proc is of another kind
            return None
        if ended or fields[STATE] == "Z":
            return ended
        time.sleep(LOOK_S)
    return None


class _Mutex:
    """A robust pthread mutex at the beginning of a page that others map."""

    def __init__(self, descriptor: int, *, there: bool = False) -> None:
        """`there`: another process has made it."""
        self._page = mmap.mmap(descriptor, PAGE_BYTES)
        # A child that is forked has the page of its parent and would be taken for it.
        self._page.madvise(mmap.MADV_DONTFORK)
        self._libc = ctypes.CDLL(None)
        self._mutex = ctypes.c_void_p(ctypes.addressof(ctypes.c_char.from_buffer(self._page)))
        if not there:
            attributes = ctypes.create_string_buffer(ATTRIBUTE_BYTES)
            self._libc.pthread_mutexattr_init(attributes)
            self._libc.pthread_mutexattr_setpshared(attributes, SHARED)
            self._libc.pthread_mutexattr_setrobust(attributes, ROBUST)
            self._libc.pthread_mutex_init(self._mutex, attributes)

    def hold(self) -> None:
        """Lock it until this thread ends."""
        self._libc.pthread_mutex_lock(self._mutex)

    def await_end(self) -> bool:
        """Wait for the thread that holds it to end. Returns whether it did."""
        # Other threads go on meanwhile: ctypes calls a CDLL's functions without the interpreter's lock.
        found = self._libc.pthread_mutex_lock(self._mutex)
        # Unlocked without pthread_mutex_consistent it becomes unrecoverable for good, which wakes all other waiters.
        self._libc.pthread_mutex_unlock(self._mutex)
        return found in (errno.EOWNERDEAD, errno.ENOTRECOVERABLE)


def _hold(mutex: _Mutex, held: threading.Event) -> None:
    mutex.hold()
    held.set()
    # For ever: with this thread the mutex would be given up, and the process be taken for dead.
    threading.Event().wait()


def _of(pid: int, descriptor: int) -> _Mutex:
    own = os.open(f"/proc/{pid}/fd/{descriptor}", os.O_RDWR | os.O_CLOEXEC)
    try:
        # The process id may be another process's by now, and the descriptor that of another file.
        if not str(Path(f"/proc/self/fd/{own}").readlink()).startswith(f"/memfd:{NAME}"):
            raise OSError(f"descriptor {descriptor} of process {pid} is nobody's life")
        return _Mutex(own, there=True)
    finally:
        os.close(own)


def _await_exit(pid: int) -> bool:
    """Wait until every thread of the process has begun to exit. False after `EXIT_S`."""
    until = time.monotonic() + EXIT_S
    # A fatal signal reaches all threads, but not at one instant.
    while not _exiting(pid):
        if time.monotonic() > until:
            return False
        time.sleep(LOOK_S)
    return True


def _ends(pid: int) -> bool:
    """Whether the process is still there and runs no code any more: its descriptors are closed before it is gone."""
    return Path(f"/proc/{pid}").exists() and _exiting(pid) and status(pid) is not None


def _exiting(pid: int) -> bool:
    try:
        threads = list(Path(f"/proc/{pid}/task").iterdir())
        return all(map(_has_ended, threads))
    except FileNotFoundError:
        return True


def _has_ended(thread: Path) -> bool:
    try:
        fields = _fields(thread / "stat")
    except (FileNotFoundError, ProcessLookupError):
        return True
    return fields[STATE] in "ZX" or bool(int(fields[FLAGS]) & EXITING)


def _fields(stat: Path) -> list[str]:
    """The fields behind the name, which is in brackets and may hold anything."""
    return stat.read_text().rpartition(")")[2].split()
