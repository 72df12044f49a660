"""Imports ahead of a node: a process that `ray start` has ready before its raylet, from which zygotes are forked.

`RAY_START_HOOK=ringleader.runtime.preload.on_ray_start` in the environment of `ray start` (head or node) has Ray call
`on_ray_start` before it starts anything. The process that it begins imports torch and the engine while the raylet comes
up, but not Ray: its library reads the raylet and the driver when it is loaded. It ends with its raylet, or when none
comes. Where it does not answer, `fork_worker.py` starts zygotes itself.
"""

import os
import secrets
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from time import monotonic, sleep
from typing import TYPE_CHECKING

if __name__ == "__main__":
    del sys.path[0]  # this folder: it came with the script

from ringleader.runtime.nodes import environment, fork_worker

if TYPE_CHECKING:
    from ray._private.parameter import RayParams

RAYLET_S = 60.0
LOOK_S = 0.05


def on_ray_start(node: "RayParams", head: bool) -> None:
    """Have the raylet that `ray start` is about to start run `fork_worker.py` for its worker processes, and start the
    process that zygotes are forked from; not where processes are not forked, nor where Ray keeps workers in control
    groups. Workers hash alike in any case."""
    environment.seed_hashes()
    isolated = node.resource_isolation_config
    # A fork stays in the control group of its parent, not in the worker's own.
    if not fork_worker.forks() or (isolated is not None and isolated.is_enabled()):
        return
    node.setup_worker_path = str(Path(fork_worker.__file__).resolve())
    with suppress(OSError):
        # Without it workers start their zygote themselves: no reason to keep the node from starting.
        _begin(f"ringleader-preloaded-{secrets.token_hex(16)}")


def _begin(name: str) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        # Bound before there is a process: a worker that comes early waits instead of being refused.
        listener.bind(f"\0{name}")
        listener.listen(socket.SOMAXCONN)
        os.environ[fork_worker.PRELOADED] = name  # the raylet's, and from there the workers'
        subprocess.Popen(
            [sys.executable, __file__, str(listener.fileno()), str(os.getpid())],
            pass_fds=[listener.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,  # whoever reads what `ray start` prints waits for the end of all that hold it
            stderr=subprocess.DEVNULL,
            # It outlives `ray start`: what ends that command's terminal or group must not end it.
            start_new_session=True,
        )


def main() -> None:
    """Run `preload.py DESCRIPTOR PID`: the descriptor of a listening socket and the process id of `ray start`."""
    listener, parent = socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2])
    # The allocator of pyarrow would start a thread, which a fork does not have.
    os.environ.setdefault("JE_ARROW_MALLOC_CONF", "background_thread:false")
    from ringleader.runtime.nodes import imports, zygote

    imports.import_all_but_ray()
    # Nobody waits for zygotes: ignored, none of them stays as a zombie.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    raylet = raylet_with(os.environ[fork_worker.PRELOADED], parent)
    # Without an idle limit: each new driver needs a zygote, whenever it comes.
    asked = None if raylet is None else zygote.serve(listener, raylet, idle_s=None)
    if asked is None:
        os._exit(0)
    zygote.be(asked)


def raylet_with(name: str, parent: int) -> int | None:
    """A pidfd of the raylet whose environment has that name; None where none has come within `RAYLET_S`, or by the end
    of `parent`, the process that started this one."""
    mark = os.fsencode(f"{fork_worker.PRELOADED}={name}")
    until = monotonic() + RAYLET_S
    while monotonic() < until:
        # Asked before the look: a raylet that came just before `ray start` ended is still found.
        orphan = os.getppid() != parent
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):  # it has ended, or is somebody else's
                if (process / "comm").read_text() == "raylet\n" and mark in _environ(process):
                    return os.pidfd_open(int(process.name))
        if orphan:
            return None
        sleep(LOOK_S)
    return None


def _environ(process: Path) -> list[bytes]:
    return (process / "environ").read_bytes().split(b"\0")


if __name__ == "__main__":
    main()
