"""A process that writes what its parent has copied, so that writing never takes the parent's interpreter lock.

A thread would need that lock between two chunks. At the lowest priority it gets the lock when the training thread gives
it up, and then no core to go on: training waits for both.
"""

import mmap
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from math import inf
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any, TypeAlias

from ringleader.checkpoint.folder import Folder
from ringleader.checkpoint.manifest import CheckpointFile
from ringleader.lifeline import end_with_parent

LEAST_URGENT = 19

CHUNK_BYTES = 256 << 10
BREATH_S = 0.3
"""The pause between the copy and the first write: the step after the copy has lost its caches already."""
RESTS, MOST_REST_S = 6.0, 1.0
"""After each chunk the process rests RESTS times as long as it computed, MOST_REST_S in total at most: work done at
once would show in one step. Once something waits for it, it rests no more."""
SHARE = 1 / 4
"""The largest share of the time since the checkpoint before that the pause, or the rests, take: the next one may come
as soon."""

HURRY = "hurry"
PATIENCE_S = 10.0
LOOK_S = 5.0
"""The interval at which a process that has an order is checked. One that a signal has stopped may go on; one that is
stopped at two checks in a row is killed, and the next checkpoint has another."""
Answer = tuple[list[CheckpointFile], str]
Line: TypeAlias = "Connection[Any, Any]"


class WriteFailed(Exception):
    """A file could not be written; says why."""


@dataclass(frozen=True, slots=True)
class WriteOrder:
    """Files of one checkpoint.

    Attributes:
        place: the folder's URI.
        name: that of the checkpoint.
        small: files and their content.
        large: the file that begins with `head` and goes on with the memory.
        descriptor: the parent's descriptor of the shared memory.
        rest_s: seconds that the process may rest in total.
    """

    place: str
    name: str
    small: tuple[tuple[str, bytes], ...]
    large: str
    head: bytes
    descriptor: int
    size_bytes: int
    rest_s: float = MOST_REST_S


class Writer:
    """Starts the process with the first order, and again if it has died or was stopped. Used by one thread, which
    outlives it; but `hurry` belongs to any."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._line: Line | None = None
        self._sends = threading.Lock()
        self._haste = threading.Event()

    @property
    def runs(self) -> bool:
        """Whether the process runs."""
        return self._process is not None and self._process.poll() is None

    def prepare(self) -> None:
        """Start the process, unless it runs."""
        self._running()

    def hurry(self) -> None:
        """Make the current write, or the next one, rest no more: something waits for it. Never waits itself."""
        if not self._haste.is_set():
            self._haste.set()
            self._press()

    def write(self, order: WriteOrder, spare_s: float = inf) -> list[CheckpointFile]:
        """Have the files written; returns their entries for the manifest. Raises WriteFailed.

        Args:
            spare_s: seconds until the next order may come.
        """
        self._haste.wait(min(BREATH_S, SHARE * spare_s))
        order = replace(order, rest_s=min(order.rest_s, SHARE * spare_s))
        process, line = self._running()
        try:
            with _watched(process):
                with self._sends:
                    line.send(order)
                # A `hurry` during the send found the lock taken, and left its message to this line.
                if self._haste.is_set():
                    self._press()
                answer: Answer = line.recv()
        except (OSError, EOFError):
            code = process.wait()
            self.close()
            raise WriteFailed(f"the writing process ended with {code}") from None
        finally:
            self._haste.clear()
        pieces, why = answer
        if why:
            raise WriteFailed(why)
        return pieces

    def close(self) -> None:
        """End the process, while nothing is being written. Idempotent."""
        with self._sends:
            process, line = self._process, self._line
            self._process = self._line = None
        if process is None or line is None:
            return
        with suppress(OSError):  # it is gone
            line.send(None)  # whoever was forked here may hold the line open
        line.close()
        try:
            process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _press(self) -> None:
        if not self._sends.acquire(blocking=False):
            return  # an order is being sent: whoever sends it looks then
        try:
            if self._line is not None:
                self._line.send(HURRY)
        except OSError:  # it is gone, which whoever waits for its answer hears
            pass
        finally:
            self._sends.release()

    def _running(self) -> "tuple[subprocess.Popen[bytes], Line]":
        if self._process is None or self._line is None or self._process.poll() is not None:
            self.close()
            process, line = _start()
            with self._sends:
                self._process, self._line = process, line
            return process, line
        return self._process, self._line


def serve(descriptor: int, parent: int) -> None:
    """Run the process: write each order that comes, until no more can be sent, or `parent` is gone."""
    end_with_parent()  # elsewhere than on Linux the end of the line has to do
    if os.getppid() != parent:
        os._exit(1)  # lost before it could be asked for the signal
    give_way()
    line: Line = Connection(descriptor)
    with suppress(OSError, EOFError):
        while (order := line.recv()) is not None:
            if order != HURRY:  # that was for the one before
                line.send(_answer(order, parent, line))


def give_way() -> None:
    """Give the calling thread the lowest priority."""
    # On Linux alone, where each thread has a priority of its own: elsewhere it would be the whole process's.
    if sys.platform == "linux":
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, 0, LEAST_URGENT)


class _Rest:
    """The rests after each chunk of one checkpoint, until a message comes on the line."""

    def __init__(self, line: Line, rest_s: float) -> None:
        self._line = line
        self._seen_s = time.process_time()
        self._left_s = rest_s

    def __call__(self) -> None:
        # Of the CPU: at this priority most of the time on the clock goes by in waiting for a core.
        now_s = time.process_time()
        rest_s = min(RESTS * (now_s - self._seen_s), self._left_s)
        self._left_s -= rest_s
        self._seen_s = now_s
        # The message stays on the line: `serve` reads it after this order, and passes over it.
        if rest_s and self._line.poll(rest_s):
            self._left_s = 0.0


def _start() -> tuple["subprocess.Popen[bytes]", Line]:
    here, there = Pipe()
    number = there.fileno()
    code = (
        # Who ends a whole group lets its workers leave first: what they have copied is still to be written.
        "import signal, sys; [signal.signal(s, signal.SIG_IGN) for s in (signal.SIGINT, signal.SIGTERM)]; "
        f"sys.path[:] = {sys.path!r}; from ringleader.checkpoint.writer import serve; serve({number}, {os.getpid()})"
    )
    # Closed here once the child has it: the line then ends with the child.
    with there:
        command = [sys.executable, "-c", code]
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=(number,)), here


@contextmanager
def _watched(process: "subprocess.Popen[bytes]") -> Iterator[None]:
    """Kill a process that stays stopped."""
    over = threading.Event()

    def watch() -> None:
        stopped = False
        while not over.wait(LOOK_S):
            before, stopped = stopped, _is_stopped(process.pid)
            if before and stopped:
                process.kill()

    # On a thread: neither sending an order nor waiting for the answer has a deadline itself.
    watcher = threading.Thread(target=watch, name="ringleader-saver-watch", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()


def _is_stopped(child: int) -> bool:
    if not hasattr(os, "waitid"):
        return False
    with suppress(ChildProcessError):  # it has ended, which the line says
        # WNOWAIT leaves the news where it is: the next look has to see it again.
        return os.waitid(os.P_PID, child, os.WSTOPPED | os.WNOHANG | os.WNOWAIT) is not None
    return False


def _answer(order: WriteOrder, parent: int, line: Line) -> Answer:
    try:
        return _written(order, parent, line), ""
    except Exception as error:  # of whatever file system
        return [], f"{type(error).__name__}: {error}"


def _written(order: WriteOrder, parent: int, line: Line) -> list[CheckpointFile]:
    folder = Folder(order.place, CHUNK_BYTES, _Rest(line, order.rest_s))
    pieces = [folder.write(order.name, file, content) for file, content in order.small]
    if not order.size_bytes:
        return [*pieces, folder.write(order.name, order.large, order.head)]
    descriptor = os.open(f"/proc/{parent}/fd/{order.descriptor}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        memory = mmap.mmap(descriptor, order.size_bytes, prot=mmap.PROT_READ)
    finally:
        os.close(descriptor)
    # The view ends before the mapping, which cannot be closed while one is left.
    with memory, memoryview(memory) as content:
        return [*pieces, folder.write(order.name, order.large, order.head, content)]
