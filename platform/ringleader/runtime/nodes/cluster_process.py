"""A cluster connection with deadlines: calls go through a process of their own, which is killed when it misses one.

Ray's client may hang in any call, for a minute or for ever: its control store is frozen, was killed a moment ago, or
the connection is half open. A thread that hangs there cannot be freed, a process can. It takes nothing with it:
whatever lives on the cluster is detached.

Each call has a socket of its own, whose other end the process gets: the pickled method and arguments go there, and the
pickled result or error comes back, each up to the end of its half. So any number may be under way at once. They are
pickled, with packages of many MB in them, because both ends are ours and nobody else reaches a socket without a name.

`python -m ringleader.runtime.nodes.cluster_process DESCRIPTOR` is that process.
"""

import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from time import monotonic
from traceback import format_exception
from typing import Any, NoReturn

from ringleader.errors import RingleaderError
from ringleader.lifeline import end_with_parent
from ringleader.runtime.nodes.cluster import ANSWER_S, CALL_S, GONE_S, LOOK_UP_S, WARM_S, RayCluster

RAY_S = 10.0
"""The deadline for what Ray's control store answers in milliseconds, on an overloaded machine."""
CONNECT_S = 60.0
"""Python, the import of Ray and its driver take two seconds, and thirty where each core has ten others to serve."""
START_S = 30.0
"""A package is handed over and written down, and the first start of all exports the supervisor's code."""
DEADLINES_S: Mapping[str, float] = {
    "connect": CONNECT_S,
    "warm": WARM_S + RAY_S,
    "warmed": CALL_S + RAY_S,
    "start": START_S,
    "supervisors": RAY_S,
    "answers": LOOK_UP_S + ANSWER_S + RAY_S,
    "resize": CALL_S + RAY_S,
    "cancel": CALL_S + RAY_S,
    "pause": CALL_S + RAY_S,
    "drain": CALL_S + RAY_S,
    "fault": CALL_S + RAY_S,
    "release": 2 * CALL_S + 2 * ANSWER_S + GONE_S + RAY_S,
    "node_lost": RAY_S,
    "forget": RAY_S,
    "capacity": RAY_S,
    "layout": RAY_S,
    "ask": RAY_S,
    "autoscaler_trouble": RAY_S,
}
"""The methods that may be called and their deadlines: what a method waits for by itself, and `RAY_S`."""
COMMAND = (sys.executable, "-m", __name__)
THREADS = 64
"""More than the threads that call: 40 of the API take requests, and one reconciles."""
REAPED_S = 5.0
CHUNK_BYTES = 1 << 20


class OutOfReach(RingleaderError):
    """The cluster did not answer; whether it did what it was asked is not known."""

    code = "cluster_unreachable"


class ClusterProcess:
    """The process and its calls, from any thread. Once it is not `alive` it stays so: make another one.

    It dies with the thread that made it, too: make it on one that lasts.

    Args:
        command: starts it; gets the descriptor of a socket as its last argument.
        deadlines_s: by method.
    """

    def __init__(
        self, command: Sequence[str] = COMMAND, deadlines_s: Mapping[str, float] = DEADLINES_S
    ) -> None:
        self._deadlines_s = deadlines_s
        self._why = ""
        self._handing = threading.Lock()
        self._door, theirs = socket.socketpair()
        # A process that reads nothing must not hold `_handing`, and with it all other calls.
        self._door.settimeout(RAY_S)
        with theirs:
            self._process = subprocess.Popen(
                [*command, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=2,  # what libraries print belongs to the log
                pass_fds=[theirs.fileno()],
            )

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def call(self, method: str, *args: Any) -> Any:
        """The result of the cluster's `method`.

        Raises:
            OutOfReach: no answer within its deadline, or the process has ended. It is not `alive` any more.
            RingleaderError: what the method raised; Ray's own errors become one with their name in it.
        """
        within_s = self._deadlines_s[method]
        try:
            went_well, value = pickle.loads(self._exchange(pickle.dumps((method, args)), within_s))  # noqa: S301
        except TimeoutError:
            raise self._gave_up(f"the cluster did not answer `{method}` within {within_s:g} s.") from None
        except (OSError, EOFError, pickle.UnpicklingError):
            raise self._gave_up(f"the connection to the cluster ended during `{method}`.") from None
        if not went_well:
            raise value
        return value

    def close(self) -> None:
        """Kill the process, whatever it is doing: calls that are under way raise OutOfReach."""
        self._process.kill()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(REAPED_S)
        with self._handing:
            # Locked: a thread about to hand a socket over must not find another file under this descriptor.
            self._door.close()

    def _gave_up(self, why: str) -> OutOfReach:
        """The error of a failed call, with the reason for which the process was given up first."""
        # The calls that fail when the process is killed would each give a reason of their own.
        self._why = self._why or why
        self.close()
        return OutOfReach(self._why, hint="The connection is closed and opened again.")

    def _exchange(self, said: bytes, within_s: float) -> bytes:
        """The pickled answer; nothing, or a part of it, where the process has ended."""
        until = monotonic() + within_s
        ours, theirs = socket.socketpair()
        with ours:
            # Our copy of their end is closed at once: the end of the process has to end the answer.
            with theirs, self._handing:
                socket.send_fds(self._door, [b"."], [theirs.fileno()])
            ours.settimeout(within_s)
            ours.sendall(said)
            ours.shutdown(socket.SHUT_WR)
            return _all_of(ours, until)


def _all_of(answering: socket.socket, until: float) -> bytes:
    parts: list[bytes] = []
    while True:
        left_s = until - monotonic()
        if left_s <= 0:
            raise TimeoutError
        answering.settimeout(left_s)
        part = answering.recv(CHUNK_BYTES)
        if not part:
            return b"".join(parts)
        parts.append(part)


def serve(connect: Callable[..., Any]) -> NoReturn:
    """Answer calls until the parent is gone. `connect` makes the cluster, once that method is called."""
    end_with_parent()  # the end of the socket says so as well, but not to a process that is frozen
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal: the parent decides
    door, service = socket.socket(fileno=int(sys.argv[-1])), _Service(connect)
    pool = ThreadPoolExecutor(THREADS)
    with suppress(OSError):
        while (handed := socket.recv_fds(door, 1, 1))[0]:
            pool.submit(service.answer, handed[1][0])
    os._exit(0)  # nobody waits for those who hang


class _Service:
    def __init__(self, connect: Callable[..., Any]) -> None:
        self._connect = connect
        self._cluster: Any = None

    def answer(self, descriptor: int) -> None:
        # Descriptors come over a socket without close-on-exec: a child would keep the call open.
        os.set_inheritable(descriptor, False)
        with socket.socket(fileno=descriptor) as asking, suppress(OSError):  # it has given up
            with asking.makefile("rb") as said:
                called = said.read()
            asking.sendall(self._do(called))

    def _do(self, called: bytes) -> bytes:
        try:
            method, args = pickle.loads(called)  # noqa: S301
            if method == "connect":
                self._cluster = self._connect(*args)
                return pickle.dumps((True, None))
            return pickle.dumps((True, getattr(self._cluster, method)(*args)))
        except BaseException as error:  # whatever Ray raises
            return pickle.dumps((False, _portable(error)))


def _portable(error: BaseException) -> RingleaderError:
    """The error in a form that can be raised where there is no Ray, with its traceback as a note."""
    told = (
        error if isinstance(error, RingleaderError) else RingleaderError(f"{type(error).__name__}: {error}")
    )
    told.add_note("".join(format_exception(error)))
    return told


if __name__ == "__main__":
    serve(RayCluster.connect)
