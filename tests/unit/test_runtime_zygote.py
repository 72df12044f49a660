"""Worker processes of the local cluster are forks of one that has the engine: what each of them has of its own."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from waiting import wait_for

from ringleader.runtime.nodes import fork_worker, zygote

PROGRAM = """
import json, os, signal, sys
import numpy as np
print(json.dumps({
    "argv": sys.argv[1:], "own": os.environ.get("OWN"), "folder": os.getcwd(), "near": sys.path[0], "name": __name__,
    "pid": os.getpid(), "parent": os.getppid(), "group": os.getpgid(0), "engine": "torch._dynamo" in sys.modules,
    "threads": len(os.listdir("/proc/self/task")), "open": len(os.listdir("/proc/self/fd")) - 1,
    "draws": np.random.rand(), "ended": signal.getsignal(signal.SIGCHLD) == signal.SIG_DFL,
    "killed_first": open("/proc/self/oom_score_adj").read(),
}), flush=True)
"""

STRANGER = """
import contextlib, os, socket, sys
os.setuid(65534)
listener = socket.socket(socket.AF_UNIX)
listener.bind("\\0" + sys.argv[1])
listener.listen()
print("listens", flush=True)
connection, _ = listener.accept()
told = b""
with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it has seen whose this is, and gone
    connection.send(b"R")
    told = connection.recv(9)
print(len(told), flush=True)
"""

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forks are for Linux")

Started = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def raylet() -> Iterator[subprocess.Popen[bytes]]:
    """Whoever the zygote ends with."""
    with subprocess.Popen(["sleep", "1000"]) as process:
        yield process
        process.kill()


@pytest.fixture
def started(tmp_path: Path, raylet: subprocess.Popen[bytes]) -> Started:
    """Starts a worker process as the raylet does."""
    (tmp_path / "program.py").write_text(PROGRAM)

    def start(own: str, *options: str, **environment: str) -> subprocess.Popen[str]:
        words = [str(tmp_path / "program.py"), f"--temp-dir={tmp_path}", "--language=PYTHON", *options]
        environ = os.environ | {"RAY_RAYLET_PID": str(raylet.pid), "OWN": own} | environment
        return subprocess.Popen(
            [sys.executable, fork_worker.__file__, *words],
            env=environ,
            stdout=subprocess.PIPE,
            text=True,
            cwd="/",
        )

    return start


def said(process: subprocess.Popen[str]) -> dict[str, Any]:
    assert process.stdout
    # Its end may be a while away: the zygote that the first one started holds it open, too.
    told = process.stdout.readline()
    assert process.wait(60) == 0
    return dict(json.loads(told))


def running(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def test_forks_have_the_engine_and_what_each_was_asked_for(
    started: Started, tmp_path: Path, raylet: Any
) -> None:
    """Both are asked for before the zygote is there, and only one comes."""
    processes = [started(own, f"--number={own}") for own in ("first", "second")]
    first, second = map(said, processes)
    for one, own in ((first, "first"), (second, "second")):
        assert one["engine"]
        assert one["argv"] == [f"--temp-dir={tmp_path}", f"--number={own}"], (
            "without what Ray's own program takes"
        )
        assert (one["own"], one["folder"], one["near"], one["name"]) == (own, "/", str(tmp_path), "__main__")
        assert (one["threads"], one["open"], one["ended"]) == (1, 3, True), (
            "of its parent it keeps nothing open"
        )
        assert one["group"] == one["pid"], "Ray ends a worker with its whole group"
        assert one["killed_first"] == Path("/proc/self/oom_score_adj").read_text()
        wait_for("its end, with nothing left of it", lambda pid=one["pid"]: not running(pid))
    assert first["parent"] == second["parent"]
    assert first["draws"] != second["draws"]
    assert os.getpgid(first["parent"]) == first["parent"]
    raylet.kill()
    raylet.wait()
    wait_for("end of the zygote", lambda: not running(first["parent"]))


def test_each_driver_has_a_zygote_of_its_own(started: Started) -> None:
    """Ray's library reads the driver's number once: a worker forked for another driver would end at once."""
    parents = [
        said(started("given", RAY_JOB_ID=driver))["parent"] for driver in ("01000000", "02000000", "01000000")
    ]
    assert parents[0] == parents[2] != parents[1]


def test_a_zygote_that_nobody_asks_for_long_ends_and_the_next_worker_has_another(
    raylet: subprocess.Popen[bytes],
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        watched = os.pidfd_open(raylet.pid)
        assert zygote.serve(listener, watched, idle_s=0.01) is None
        os.close(watched)
        assert listener.fileno() == -1, "who asks now is refused"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
def test_a_zygote_of_somebody_else_is_told_nothing(
    started: Started, tmp_path: Path, raylet: subprocess.Popen[bytes]
) -> None:
    name = fork_worker.zygote_of(tmp_path, {"RAY_RAYLET_PID": str(raylet.pid)})
    words = [sys.executable, "-c", STRANGER, name[1:]]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as stranger:
        assert stranger.stdout
        assert stranger.stdout.readline() == "listens\n"
        process = started("given")
        assert said(process)["pid"] == process.pid, "it went Ray's own way"
        assert stranger.stdout.readline() == "0\n"


@pytest.mark.parametrize(
    "option",
    ['--serialized-runtime-env-context={"env_vars": {"OWN": "set"}}', "--worker-type=SPILL_WORKER"],
    ids=["environment", "spills"],
)
def test_what_a_fork_cannot_be_goes_rays_own_way(started: Started, option: str) -> None:
    process = started("given", option)
    alone = said(process)
    assert not alone["engine"]
    assert (alone["pid"], alone["own"]) == (process.pid, "set" if "env_vars" in option else "given")


def test_where_there_can_be_no_zygote_workers_start_rays_own_way(
    started: Started, raylet: subprocess.Popen[bytes]
) -> None:
    raylet.kill()
    raylet.wait()
    process = started("given")
    alone = said(process)
    assert (alone["pid"], alone["engine"]) == (process.pid, False)
