"""What a stack still holds of its jobs: asked of Ray itself and of the machine, not of the control plane."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ringleader.bench.processes.orphans import Machine

ASK = """
import json, signal, sys
from ringleader.runtime.nodes.cluster import RayCluster
cluster = RayCluster.connect(sys.argv[1])  # before Ray is imported, whose settings it makes
import ray
from ray._private.state import actors
from ray.util.placement_group import placement_group_table
from ringleader.runtime.nodes.warm_pool import pool
for _ in sys.stdin:
    signal.alarm(60)
    alive = [a for a in actors().values() if a["State"] != "DEAD"]
    capacity = cluster.capacity()
    print(json.dumps({
        "supervisors": [job for job, _ in cluster.supervisors()],
        "actor_pids": [a["Pid"] for a in alive],
        "workers": sum(a["ActorClassName"] == "WorkerActor" for a in alive),
        "idle_workers": sum(ray.get(pool().ready.remote(), timeout=20).values()),
        "groups": [g["name"] for g in placement_group_table().values() if g["state"] != "REMOVED"],
        "cpus_held": capacity.cpus - capacity.available.get("CPU", 0),
    }), flush=True)
    signal.alarm(0)
"""


@dataclass(frozen=True)
class Remains:
    """A driver on the stack's Ray that answers what is left."""

    home: Path
    process: "subprocess.Popen[str]"
    machine: Machine

    def of_cluster(self) -> dict[str, Any]:
        """All that Ray holds, whomever it is of; `workers` beyond `idle_workers` are of jobs or just starting."""
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        found: dict[str, Any] = json.loads(self.process.stdout.readline())
        return found

    def of_job(self, job_id: str, pids: set[int]) -> dict[str, Any]:
        """What is left of a job whose code ran in `pids`, by kind; kinds with nothing left are not named."""
        found = self.of_cluster()
        left = {
            "supervisors": [job for job in found["supervisors"] if job == job_id],
            "actors": pids & set(found["actor_pids"]),
            "groups": [name for name in found["groups"] if job_id in name],
            "processes": {pid for pid in pids if Path(f"/proc/{pid}").exists()},
            "folders": list((self.home / "scratch").glob(f"{job_id}-*")),
        }
        return {kind: some for kind, some in left.items() if some}

    def segments(self) -> set[str]:
        """Shared memory that was not there before: named segments that nobody else has, for other tests run at the same
        time, and actors that map nameless ones."""
        mapping = {f"process {pid}" for pid in self.of_cluster()["actor_pids"] if _maps_segments(pid)}
        return {str(name) for name in self.machine.left().get("segments", ())} | mapping


def _maps_segments(pid: int) -> bool:
    try:
        return "/memfd:ringleader" in Path(f"/proc/{pid}/maps").read_text()
    except OSError:  # it has ended
        return False


@contextmanager
def remains(home: Path) -> Iterator[Remains]:
    """Ask about the stack of `home` while the block runs."""
    said = [line for line in (home / "log" / "ray.log").read_text().splitlines() if line.startswith("{")]
    with subprocess.Popen(
        [sys.executable, "-c", ASK, json.loads(said[-1])["address"]],
        env=os.environ | {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(home / "ray_token")},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield Remains(home, process, Machine.now(home))
        finally:
            process.kill()
