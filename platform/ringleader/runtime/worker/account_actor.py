"""A member whose program runs under another account, as its actor holds it: in a process of its own.

```
supervisor ── Ray ── actor (the stack's owner: Ray's token, no code of the user)
                       │ pickled calls ↓      ↑ plain values (plain_values.py), of one type each
                     child (the job's account: session, exchange, user's code; no token, no RAY_*, one socket)
```

The actor says who the child is: what that says of itself counts for nothing. The child dies with its actor, and the
actor with it, so that for the supervisor both are one worker.
"""

import ctypes
import os
import queue
import resource
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO, Any, NoReturn

from ringleader.accounts import Account, RunAsImpossible
from ringleader.elastic import Meeting, Plan
from ringleader.files import SCRATCH
from ringleader.runtime.messages import (
    GONE_S,
    Attendance,
    Heartbeat,
    MemberTask,
    ParkMessage,
    ProcessIdentity,
    RunEnded,
)
from ringleader.runtime.worker import plain_values
from ringleader.runtime.worker.supervisor_link import SupervisorLink
from ringleader.wire.states import Reason

ATTENDS_S = 60.0
READY_S = 300.0
"""The time to load Python, torch and the engine, on an overloaded machine."""
HANDED_DOWN = frozenset(
    {"PATH", "LANG", "LC_ALL", "TZ", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES", "PYTHONHASHSEED"}
)
"""The variables of its actor's environment that the child gets."""
QUESTIONS = 4
"""The most questions under way: a member asks one or two at a time."""
WITHOUT_CHILD = 72
DIES_S = 1.0
LAST_WORDS = 20
PROGRAM = (
    "import sys; sys.path[:] = {path!r}; "
    "from ringleader.runtime.worker.account_process import main; main({descriptor}, {parent})"
)


class AccountMember:
    """The actor's side of the child, with the methods of `PlanClient`; `run` is called once, on a thread that lasts."""

    def __init__(self, task: MemberTask, identity: ProcessIdentity, supervisor_link: SupervisorLink) -> None:
        self._task, self._supervisor_link, self._identity = task, supervisor_link, identity
        self._begun, self._over = threading.Event(), threading.Event()
        self._sending, self._ending = threading.Lock(), threading.Lock()
        self._asking = threading.BoundedSemaphore(QUESTIONS)
        self._questions = ThreadPoolExecutor(QUESTIONS, "question")
        self._attendances: dict[int, queue.SimpleQueue[Attendance]] = {}
        self._number = 0
        self._ended = RunEnded("dismissed")
        self.seats = self

    def run(self, package: bytes | None) -> RunEnded:
        """Run the child until it says how it ended. Where it dies, this process does."""
        try:
            self._begin(package)
        except RunAsImpossible as error:
            return RunEnded("failed", Reason.PLATFORM_ERROR, error.message, error.hint)
        self._over.wait()
        return self._ended

    def _begin(self, package: bytes | None) -> None:
        task, run_as = self._task, self._task.run_as
        assert run_as is not None
        folders = [task.scratch, task.artifacts.parent]
        # A place that the job names is its own to make.
        folders += [] if task.spec.checkpoint.uri else [Path(task.checkpoints)]
        for folder in folders:
            run_as.have(folder)
        self._process, self._line = _start(run_as.account, task.scratch)
        # No life: a mutex in memory that the child has made would be its way to write into whoever waits for it.
        self._identity = replace(self._identity, pid=self._process.pid, life=-1)
        self._said = _ExitOutput(self._process.stderr)
        if not self._is_ready():
            self._process.kill()
            self._process.wait()
            raise RunAsImpossible(
                f"the account {run_as.account.name} cannot run this package here: {self._said.text()}",
                hint=f"The account must be able to read {sys.executable} and everything that it imports.",
            )
        self._send((task, package, self._identity))
        for work in (self._hear, self._outlive):
            threading.Thread(target=work, name=work.__name__, daemon=True).start()
        self._begun.set()

    def attendance(self) -> Attendance:
        if not self._begun.is_set():
            return Attendance(self._identity, busy=True)
        with self._sending:
            self._number += 1
            number = self._number
        answer = self._attendances[number] = queue.SimpleQueue()
        try:
            self._tell("attendance", number)
            return replace(answer.get(timeout=ATTENDS_S), identity=self._identity)
        finally:
            del self._attendances[number]

    def take(self, plan: Plan) -> None:
        self._tell("take", plan)

    def interrupt(self, generation: int) -> None:
        self._tell("interrupt", generation)

    def announce(self, generation: int) -> None:
        self._tell("announce", generation)

    def follow(self, meeting: Meeting, number: int) -> None:
        self._tell("follow", meeting, number)

    def donate(self, meeting: Meeting, number: int) -> None:
        self._tell("donate", meeting, number)

    def dismiss(self) -> None:
        self._tell("dismiss")

    # --------------------------------------------------------------------------------------------------------------

    def _is_ready(self) -> bool:
        """Whether the child has imported what it needs, and nothing of the user's yet."""
        try:
            return (
                self._line.poll(READY_S)
                and plain_values.read(self._line.recv_bytes(plain_values.MOST_BYTES))[0] == "ready"
            )
        except (OSError, EOFError, plain_values.NotPlain):
            return False

    def _hear(self) -> None:
        try:
            while True:
                self._take(*plain_values.read(self._line.recv_bytes(plain_values.MOST_BYTES)))
        except Exception as error:  # it is gone, or says what no member says
            self._end(error)

    def _outlive(self) -> None:
        """Wait for the child's death."""
        # The end of the line is no sign of it: what the child has forked may hold the other end for longer.
        self._process.wait()
        self._end(EOFError())

    def _take(self, kind: str, values: tuple[Any, ...]) -> None:
        worker = self._task.worker
        match kind:
            case "parked":
                self._supervisor_link.parked(self._own(values[0]))
            case "seated":
                self._supervisor_link.seated(worker, values[0])
            case "in_sync":
                self._supervisor_link.in_sync(worker, values[0])
            case "attendance":
                number, attendance = values
                # Without this a late answer, whose question was given up, would end this process.
                if number in self._attendances:
                    self._attendances[number].put(attendance)
            case "ended" if not self._over.is_set():
                self._ended = values[0]
                self._over.set()
            case "beat":
                number, beat = values
                self._ask(number, lambda: self._supervisor_link.beat(self._of_here(beat)))
            case "secrets":
                self._ask(values[0], self._supervisor_link.secrets)
            case "index":
                number, name = values
                self._ask(number, lambda: self._supervisor_link.index(worker, name))
            case "index_made":
                self._supervisor_link.index_made(worker, *values)
            case _:
                raise plain_values.NotPlain(f"{kind!r} at this time")

    def _ask(self, number: int, ask: Callable[[], Any]) -> None:
        """Ask the supervisor on a thread of its own."""
        # Bounded: the child must not have this process queue without end.
        if not self._asking.acquire(blocking=False):
            raise plain_values.NotPlain("more questions at once than a member has")
        # Not on this thread, which reads what the child sends: the supervisor may be away.
        self._questions.submit(self._answer, number, ask)

    def _answer(self, number: int, ask: Callable[[], Any]) -> None:
        answer = None
        with suppress(Exception):  # what the supervisor could not take is told again, as by any worker
            answer = ask()
        # Before the answer: whoever has that may ask again at once.
        self._asking.release()
        self._tell("answer", number, answer)

    def _of_here(self, beat: Heartbeat) -> Heartbeat:
        park_message = None if beat.park_message is None else self._own(beat.park_message)
        return replace(beat, worker=self._task.worker, identity=self._identity, park_message=park_message)

    def _own(self, park_message: ParkMessage) -> ParkMessage:
        return replace(park_message, worker=self._task.worker, identity=self._identity)

    def _tell(self, word: str, *values: Any) -> None:
        if not self._begun.wait(READY_S):
            return
        try:
            self._send((word, *values))
        except OSError as error:
            # Also after a timeout: a part may have been sent, and nothing behind it could be read.
            self._end(error)

    def _send(self, told: Any) -> None:
        """Send to the child. Raises BlockingIOError where it has not read for `GONE_S`."""
        with self._sending:
            self._line.send(told)

    def _end(self, why: Exception) -> NoReturn:
        """End the child and this process: for the supervisor this worker is lost."""
        self._ending.acquire()  # whoever comes second has nothing to say
        # A line that is closed with words unread in it is reset.
        died = isinstance(why, EOFError | ConnectionError) and self._has_died()
        self._process.kill()
        code = self._process.wait()
        said = f"the member's process ended with {code} ({why!r}): {self._said.text()}"
        print(f"ringleader: {said}", file=sys.stderr, flush=True)
        _end_with(code if died else WITHOUT_CHILD)

    def _has_died(self) -> bool:
        """Whether the child has ended by itself; one that has closed its line is given a moment for that."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(DIES_S)
        return self._process.returncode is not None


class _ExitOutput:
    """The last lines of the child's error stream, beside what Python captures there."""

    def __init__(self, stream: IO[bytes] | None) -> None:
        self._lines: deque[bytes] = deque(maxlen=LAST_WORDS)
        self._thread = threading.Thread(target=self._read, args=(stream,), name="exit-output", daemon=True)
        self._thread.start()

    def text(self) -> str:
        self._thread.join(1.0)
        return b"".join(self._lines).decode("utf-8", "replace").strip()

    def _read(self, stream: IO[bytes] | None) -> None:
        if stream is not None:
            with suppress(OSError, ValueError), stream:
                while line := stream.readline(1000):
                    self._lines.append(line)


def _end_with(code: int) -> NoReturn:
    """End this process as a child ended whose `returncode` it was: the cause of a loss is read from this one."""
    if code < 0:
        # A dump would hold Ray's token.
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        # Python sets no handler outside of its main thread, and Ray's own would not end this process.
        ctypes.CDLL(None).signal(-code, int(signal.SIG_DFL))
        os.kill(os.getpid(), -code)
        threading.Event().wait(DIES_S)
    os._exit(code if code >= 0 else WITHOUT_CHILD)


def _start(account: Account, scratch: Path) -> "tuple[subprocess.Popen[bytes], Connection[Any, Any]]":
    ours, theirs = socket.socketpair()
    # A child that does not read must not hold the threads of this process.
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", int(GONE_S), 0))
    path = [place for place in sys.path if place]
    try:
        # A new Python, with no line of the environment that is not named: a fork would have Ray's token in its memory.
        with theirs:
            program = PROGRAM.format(path=path, descriptor=theirs.fileno(), parent=os.getpid())
            process = subprocess.Popen(
                # Not -I, with which Python would not read the seed of its hashes either.
                [sys.executable, "-s", "-P", "-c", program],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                pass_fds=[theirs.fileno()],
                user=account.uid,
                group=account.gid,
                # Left out, the child would keep the supplementary groups of the stack's owner.
                extra_groups=[],
                umask=0o077,
                # The actor's own folder may be closed to that account.
                cwd="/",
                env=_environ(account, str(scratch)),
            )
    except OSError as error:
        ours.close()
        raise RunAsImpossible(
            f"cannot start a process under the account {account.name}: {error}.",
            hint=f"Ray's processes on the node must run as root, and {sys.executable} must be readable by all "
            "accounts.",
        ) from None
    return process, Connection(ours.detach())


def _environ(account: Account, scratch: str) -> dict[str, str]:
    """The child's environment: what is harmless of this process's own. The job's variables it sets itself."""
    kept = {name: value for name, value in os.environ.items() if name in HANDED_DOWN}
    own = {
        "HOME": scratch,
        "TMPDIR": scratch,
        SCRATCH: scratch,
        "USER": account.name,
        "LOGNAME": account.name,
    }
    return {**kept, **own}
