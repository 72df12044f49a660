"""On a node that `ray start` begins zygotes are forks of a process that has all but Ray, and no worker needs it."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from waiting import wait_for

from ringleader.runtime.nodes import environment, fork_worker
from ringleader.runtime.preload import on_ray_start

STARTS = """
import json, os, subprocess, sys
from types import SimpleNamespace
from ringleader.runtime import preload
from ringleader.runtime.nodes import fork_worker
node = SimpleNamespace(setup_worker_path=None, resource_isolation_config=None)
preload.on_ray_start(node, False)
raylet = subprocess.Popen([sys.argv[1], "1000"], stdout=2).pid if len(sys.argv) > 1 else None
print(json.dumps({
    "name": os.environ[fork_worker.PRELOADED], "raylet": raylet, "setup_worker_path": node.setup_worker_path,
}), flush=True)
"""
"""What matters of `ray start`, which ends then."""

PROGRAM = """
import json, os, sys
print(json.dumps({
    "pid": os.getpid(), "parent": os.getppid(), "group": os.getpgid(0), "nice": os.nice(0),
    "driver": os.environ.get("RAY_JOB_ID"), "open": len(os.listdir("/proc/self/fd")) - 1,
    "threads": len(os.listdir("/proc/self/task")), "torch": "torch._dynamo" in sys.modules, "ray": "ray" in sys.modules,
    "hashes": hash("a word"),
}), flush=True)
"""

ASKS = """
import sys
from ringleader.runtime.nodes import fork_worker
sys.exit(not fork_worker._preloaded(sys.argv[1:], [0, 1, 2]))
"""

pytestmark = pytest.mark.skipif(not fork_worker.forks(), reason="nothing is forked here")


@dataclass(frozen=True)
class Node:
    """One that such a `ray start` has begun. `raylet` is 0 where it had none."""

    name: str
    raylet: int
    setup_worker_path: str
    folder: Path

    def worker(self, driver: str) -> dict[str, Any]:
        """What a worker process that its raylet starts for that driver says of itself."""
        words = [self.setup_worker_path, str(self.folder / "program.py"), f"--temp-dir={self.folder}"]
        return self.said([*words, "--language=PYTHON"], RAY_JOB_ID=driver)

    def said(self, words: list[str], **environment: str) -> dict[str, Any]:
        environ = {"RAY_RAYLET_PID": str(self.raylet), fork_worker.PRELOADED: self.name} | environment
        with subprocess.Popen(
            ["nice", "-n", "1", sys.executable, *words],
            env=os.environ | environ,
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            assert process.stdout
            return dict(json.loads(process.stdout.readline()))

    def processes(self) -> list[int]:
        """All that have its mark from their start, but its raylet."""
        mark, found = f"{fork_worker.PRELOADED}={self.name}".encode(), []
        for entry in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if mark in (entry / "environ").read_bytes().split(b"\0") and int(entry.name) != self.raylet:
                    found.append(int(entry.name))
        return found

    def end(self) -> None:
        if self.raylet:
            with suppress(ProcessLookupError):
                os.kill(self.raylet, signal.SIGKILL)


def started(folder: Path, *raylet: str) -> Node:
    (folder / "program.py").write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, "-c", STARTS, *raylet], stdout=subprocess.PIPE, text=True, check=True, timeout=60
    )
    said = json.loads(done.stdout)
    return Node(said["name"], said["raylet"] or 0, said["setup_worker_path"], folder)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    raylet = shutil.copy(str(shutil.which("sleep")), tmp_path / "raylet")
    begun = started(tmp_path, str(raylet))
    yield begun
    begun.end()
    wait_for("end of all that it had ready", lambda: not begun.processes())


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_the_zygotes_of_all_drivers_are_forks_of_one_process_and_end_with_the_raylet(node: Node) -> None:
    (ready,) = node.processes()
    assert Path(node.setup_worker_path) == Path(fork_worker.__file__)
    first, again, other = (node.worker(driver) for driver in ("01000000", "01000000", "02000000"))
    assert first["parent"] == again["parent"] != other["parent"]
    assert {parent_of(worker["parent"]) for worker in (first, other)} == {ready}
    assert set(node.processes()) - {w["pid"] for w in (first, again, other)} == {
        ready,
        first["parent"],
        other["parent"],
    }
    for worker, driver in ((first, "01000000"), (other, "02000000")):
        assert (worker["driver"], worker["group"]) == (driver, worker["pid"])
        assert (worker["torch"], worker["ray"], worker["threads"], worker["open"]) == (True, True, 1, 3)
        assert worker["nice"] == min(os.nice(0) + 1, 19), "as the raylet starts them"
    assert os.getpriority(os.PRIO_PROCESS, first["parent"]) == os.nice(0), "jobs wait for it"
    node.end()
    wait_for("end of the zygotes, too", lambda: not node.processes())


def test_workers_of_all_nodes_and_runs_hash_alike(node: Node) -> None:
    anywhere = subprocess.run(
        [sys.executable, "-c", "print(hash('a word'))"],
        env=os.environ | {"PYTHONHASHSEED": environment.HASH_SEED},
        stdout=subprocess.PIPE,
        check=True,
    )
    assert node.worker("01000000")["hashes"] == int(anywhere.stdout)


def test_a_node_that_names_another_seed_of_hashes_keeps_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONHASHSEED", "7")
    environment.seed_hashes()
    assert os.environ["PYTHONHASHSEED"] == "7"


def test_what_is_ready_has_torch_but_not_ray(node: Node) -> None:
    """Whose library reads the raylet and the driver when it is loaded, and never again."""
    (ready,) = node.processes()
    asked = node.said(["-c", ASKS, str(node.folder / "program.py")])
    assert (asked["torch"], asked["ray"], asked["parent"]) == (True, False, ready)


def test_without_what_was_ready_the_first_worker_starts_the_zygote(node: Node) -> None:
    (ready,) = node.processes()
    os.kill(ready, signal.SIGKILL)
    wait_for("its end", lambda: not node.processes())
    worker = node.worker("01000000")
    assert worker["torch"]
    assert worker["parent"] in node.processes()


def test_where_no_raylet_comes_nothing_stays(tmp_path: Path) -> None:
    begun = started(tmp_path)
    assert begun.processes()
    wait_for("its end", lambda: not begun.processes())


def test_where_ray_keeps_workers_in_control_groups_they_start_its_own_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    isolated = SimpleNamespace(is_enabled=lambda: True)
    node: Any = SimpleNamespace(setup_worker_path=None, resource_isolation_config=isolated)
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    on_ray_start(node, head=False)
    assert os.environ["PYTHONHASHSEED"] == environment.HASH_SEED, "they hash alike all the same"
    assert node.setup_worker_path is None
    assert fork_worker.PRELOADED not in os.environ
