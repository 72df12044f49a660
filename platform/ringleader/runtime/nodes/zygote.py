"""The zygote of a Ray node: a process that has imported Ray and the engine, and forks each worker of its raylet.

A process that starts from nothing spends seconds of a core on imports; a fork of this one has them behind it and shares
their memory. `fork_worker.py` starts it for the first worker of a driver and asks it for each. Ends with its raylet, or
when nobody has asked for a while: drivers end, and nobody tells. Linux only.
"""

import json
import os
import runpy
import selectors
import signal
import socket
import sys
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    del sys.path[0]  # this folder: it came with the script

from ringleader.runtime.nodes.fork_worker import same_user

READY = b"R"
ASKING_S = 5.0
ASKED_BYTES = 1 << 20
STREAMS = 4
"""The standard ones, and the socket on which a zygote listens."""
IDLE_S = 600.0


def main() -> None:
    """Run `zygote.py DESCRIPTOR` of a listening socket, in the environment that the raylet gives its workers."""
    raylet = os.pidfd_open(int(os.environ["RAY_RAYLET_PID"]))
    listener = socket.socket(fileno=int(sys.argv[1]))
    _import()
    # No zombie is left of who ends: Ray asks whether a pid is there.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    asked = serve(listener, raylet)
    if asked is None:
        os._exit(0)  # nothing to put away, and Ray's folder is removed now
    be(asked)


def _import() -> None:
    """Import what Ray's worker program imports, then what `WorkerActor.warm` does. None of it starts a thread."""
    # The allocator of pyarrow would start a thread, which a fork does not have.
    os.environ.setdefault("JE_ARROW_MALLOC_CONF", "background_thread:false")
    import ray._private.node
    import ray._private.runtime_env.setup_hook  # noqa: F401

    from ringleader.runtime.nodes.imports import import_engine

    import_engine()


def serve(listener: socket.socket, raylet: int, idle_s: float | None = IDLE_S) -> dict[str, Any] | None:
    """Fork for each caller. Returns the request in the fork that serves it, and None in the zygote when the raylet has
    ended or nobody has called for `idle_s`: later callers are refused, and start another zygote."""
    with selectors.DefaultSelector() as calls, listener:
        calls.register(listener, selectors.EVENT_READ)
        calls.register(raylet, selectors.EVENT_READ)
        # Anything else ends the zygote: a pidfd is readable once its process has ended, and a timeout selects nothing.
        while [key.fileobj for key, _ in calls.select(idle_s)] == [listener]:
            connection, _ = listener.accept()
            asked, streams = _asked(connection) if same_user(connection) else (None, [])
            connection.close()
            if asked is not None and os.fork() == 0:
                calls.close()
                listener.close()
                os.close(raylet)
                for number, stream in enumerate(streams):  # none of them is below its own number
                    os.dup2(stream, number)
                    os.close(stream)
                return asked
            for stream in streams:
                os.close(stream)
    return None


def _asked(connection: socket.socket) -> tuple[dict[str, Any] | None, list[int]]:
    """The request, None where its sender has given up; and the standard streams that came with it."""
    streams: list[int] = []
    with connection:
        connection.settimeout(ASKING_S)
        try:
            connection.sendall(READY)
            told, streams, _, _ = socket.recv_fds(connection, ASKED_BYTES, STREAMS)
            while told and (more := connection.recv(ASKED_BYTES)):
                told += more
        except OSError:
            return None, streams
    return (json.loads(told) if told else None), streams


def be(asked: dict[str, Any]) -> None:
    """Be the process that runs `argv` as its program, in the environment and the folder of its caller."""
    import numpy as np

    os.setpgid(0, 0)  # Ray ends a worker with its whole group
    # Where it is ignored, waiting for a child of one's own finds none.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.environ.clear()
    os.environ.update(asked["environ"])
    os.chdir(asked["folder"])
    # Ray gives workers a value by which the kernel kills them before the raylet; a fork has its parent's.
    Path("/proc/self/oom_score_adj").write_text(asked["oom_score_adj"])
    if asked["niceness"] is not None:
        os.setpriority(os.PRIO_PROCESS, 0, asked["niceness"])
    np.random.seed()  # the one generator that would be in the same state in every fork
    sys.argv = asked["argv"]
    # As Python itself does for a script, and runpy does not.
    sys.path.insert(0, str(Path(sys.argv[0]).parent))
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
