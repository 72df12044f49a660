"""The program that the raylet starts in place of Ray's `setup_worker.py`: has the zygote fork a worker process.

The first one starts the zygote, as a fork where `preload.py` has something ready. A worker with a runtime environment,
one of another language, and any that the zygote does not accept in time start Ray's own way. Imports nothing but the
standard library, which is the point.
"""

import argparse
import json
import os
import runpy
import socket
import struct
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from time import monotonic, sleep

PRELOADED = "RINGLEADER_PRELOADED"
"""The variable in the environment of a raylet for which `preload.py` has a process ready: the name of its socket."""
READY_S = 30.0
"""Half of the minute after which Ray gives up a process that has not registered."""
AGAIN_S = 0.01


def main() -> None:
    del sys.path[0]  # this folder: it came with the script
    # No abbreviations: most words are those of Ray's worker, and one may begin like ours.
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--serialized-runtime-env-context", default="{}")
    parser.add_argument("--language", default="PYTHON")
    setting, program = parser.parse_known_args()
    # Parsed again only to look: these words belong to the worker, and stay in `program`.
    parser.add_argument("--worker-type", default="WORKER")
    parser.add_argument("--temp-dir", default=None)
    options, _ = parser.parse_known_args()
    plain = (setting.serialized_runtime_env_context, setting.language) == ("{}", "PYTHON")
    forks = plain and options.worker_type == "WORKER" and options.temp_dir and not program[0].startswith("-")
    if not forks or not _forked(program, Path(options.temp_dir)):
        _as_ray_does()


def forks() -> bool:
    """Whether worker processes here are forks of the zygote."""
    # CUDA does not survive the fork of a process that has asked it anything, as an import may.
    return sys.platform == "linux" and not Path("/dev/nvidiactl").exists()


def _forked(program: list[str], folder: Path) -> bool:
    """Whether the zygote has accepted to fork a process in place of this one."""
    try:
        zygote = _connected(zygote_of(folder, os.environ))
    except OSError:
        return False
    return _taken_on(zygote, program, [0, 1, 2], os.getpriority(os.PRIO_PROCESS, 0))


def _taken_on(by: socket.socket, program: list[str], streams: list[int], niceness: int | None) -> bool:
    """Whether the process at the other end of `by` is about to fork one that runs `program` as this process would, with
    `streams` as its first descriptors. Without `niceness` the fork keeps that of its parent."""
    asked = {
        "argv": program,
        "environ": dict(os.environ),
        "folder": str(Path.cwd()),
        "oom_score_adj": Path("/proc/self/oom_score_adj").read_text(),
        "niceness": niceness,
    }
    told = json.dumps(asked).encode()
    with by:
        try:
            # Nothing is sent before the zygote says that it is ready: until then Ray's own way is open.
            if not by.recv(1):
                return False
        except OSError:
            return False
        # The descriptors go with the first bytes; how many bytes that were only the result says.
        sent = socket.send_fds(by, [told], streams)  # from here on it may have forked
        by.sendall(told[sent:])
    return True


def zygote_of(folder: Path, environ: Mapping[str, str]) -> str:
    """The name of the socket on which the zygote for this worker listens."""
    # By the driver: Ray's library reads its number when it is loaded, and never again. An abstract name of Linux: no
    # file that somebody could replace.
    return f"\0{folder}/zygote-{environ['RAY_RAYLET_PID']}-{environ.get('RAY_JOB_ID', '')}"


def _connected(name: str) -> socket.socket:
    """A connection to the zygote of that name, which is started if there is none."""
    until = monotonic() + READY_S
    while True:
        zygote = socket.socket(socket.AF_UNIX)
        zygote.settimeout(READY_S)
        try:
            zygote.connect(name)
        except ConnectionRefusedError:
            zygote.close()
            if monotonic() > until:
                raise
            _start(name)
            continue
        if not same_user(zygote):
            raise PermissionError(name)
        return zygote


def same_user(connection: socket.socket) -> bool:
    """Whether the other end is a process of this user."""
    # Asked of the kernel: anybody on the machine may bind a name, and connect to it.
    told = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    _, user, _ = struct.unpack("3i", told)
    return bool(user == os.geteuid())


def _start(name: str) -> None:
    program = str(Path(__file__).with_name("zygote.py"))
    with socket.socket(socket.AF_UNIX) as listener:
        try:
            listener.bind(name)
        except OSError:  # another worker is about to start it
            sleep(AGAIN_S)
            return
        # It listens before the zygote exists: workers that come meanwhile wait here while that imports.
        listener.listen(socket.SOMAXCONN)
        if not _preloaded([program, "3"], [0, 1, 2, listener.fileno()]):
            words = [sys.executable, program, str(listener.fileno())]
            # Ray ends a worker with its whole group, to which the zygote must not belong.
            subprocess.Popen(words, pass_fds=[listener.fileno()], process_group=0)


def _preloaded(program: list[str], streams: list[int]) -> bool:
    """Whether `program` is started as a fork of the process that this node's `ray start` had made ready."""
    name = os.environ.get(PRELOADED)
    if not name:
        return False
    with socket.socket(socket.AF_UNIX) as ready:
        ready.settimeout(READY_S)
        try:
            ready.connect(f"\0{name}")
            # Jobs wait for a zygote: it gets the CPU as Ray's own processes on a new node do, before workers.
            return same_user(ready) and _taken_on(ready, program, streams, niceness=None)
        except OSError:  # it has ended, or never came
            return False


def _as_ray_does() -> None:
    runpy.run_module("ray._private.workers.setup_worker", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
