"""A Ray cluster on this machine that Ray's own autoscaler grows: a head without CPUs, and nodes as they are asked for.

The nodes are real raylets that `ray start` begins; everything but the cloud is what runs elsewhere.
"""

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from ringleader.bench.broken import BrokenPromise
from ringleader.bench.elasticity.commits import wait_for

PROVIDER = "ringleader.bench.elasticity.autoscaled_nodes.LocalNodeProvider"
HEAD, NODES = "127.0.0.2", "127.0.0.3"
"""Ray takes 127.0.0.1 for the machine's own address, and would listen there."""
HOOK = {"RAY_START_HOOK": "ringleader.runtime.preload.on_ray_start"}
"""The variable that is recommended for the environment of each `ray start`."""
START_S, END_S = 90.0, 30.0
STORE_BYTES = 80_000_000


@dataclass(frozen=True, slots=True)
class Autoscaled:
    """A running cluster; `log` holds what the head and the nodes print."""

    address: str
    token: Path
    log: Path

    @property
    def environ(self) -> dict[str, str]:
        """Variables for a process that connects to the cluster."""
        return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(self.token)}


@contextmanager
def autoscaled(*, node_cpus: int, max_nodes: int, idle_s: float = 3.0) -> Iterator[Autoscaled]:
    """A cluster without any node but its head; every process of it is ended with the block.

    Args:
        idle_s: seconds without work after which the autoscaler removes a node.
    """
    # Short: paths of Unix sockets have 107 bytes at most, and Ray's are deep below this folder.
    with tempfile.TemporaryDirectory(prefix="rla", dir="/tmp", ignore_cleanup_errors=True) as name:
        folder, port = Path(name), _free_port()
        token, log = folder / "token", folder / "head.log"
        # Its mode before its content: nobody else may read it in between.
        token.touch(0o600)
        token.write_text(secrets.token_hex(32))
        wanted = folder / "cluster.json"  # every JSON file is a YAML file
        wanted.write_text(json.dumps(_cluster(f"{HEAD}:{port}", node_cpus, max_nodes, idle_s)))
        with log.open("wb") as out:
            head = subprocess.Popen(
                _command(folder, port, wanted),
                env=_environ(token),
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            wait_for(
                "the head",
                lambda: "Ray runtime started" in _text(log) or None,
                START_S,
                lambda: _alive(head, log),
            )
            yield Autoscaled(f"{HEAD}:{port}", token, log)
        finally:
            # Over and over until none is found: a node may be starting while others are killed.
            wait_for("the end of the cluster", lambda: None if _end(folder) else True, END_S, lambda: None)
            head.wait(END_S)


def _cluster(gcs: str, node_cpus: int, max_nodes: int, idle_s: float) -> dict[str, object]:
    """A cluster file as `ray up` takes it, for nodes that are processes beside the head."""
    node = {"resources": {"CPU": node_cpus, "object_store_memory": STORE_BYTES}, "node_config": {}}
    return {
        "cluster_name": "local",
        "max_workers": max_nodes,
        "idle_timeout_minutes": idle_s / 60,
        "upscaling_speed": 10,
        "provider": {
            "type": "external",
            "module": PROVIDER,
            "gcs_address": gcs,
            "node_ip": NODES,
            # All nodes have one address, so the autoscaler tells them apart by their ids.
            "use_node_id_as_ip": True,
            "disable_node_updaters": True,
            "disable_launch_config_check": True,
        },
        "available_node_types": {
            "ray.head.default": {"resources": {"CPU": 0}, "node_config": {}, "max_workers": 0},
            "worker": {**node, "min_workers": 0, "max_workers": max_nodes},
        },
        "head_node_type": "ray.head.default",
        "auth": {},
        "setup_commands": [],
        "head_setup_commands": [],
        "worker_setup_commands": [],
        "initialization_commands": [],
        "head_start_ray_commands": [],
        "worker_start_ray_commands": [],
        "file_mounts": {},
        "cluster_synced_files": [],
        "file_mounts_sync_continuously": False,
    }


def _command(folder: Path, port: int, wanted: Path) -> list[str]:
    return [
        *(sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block"),
        *(f"--node-ip-address={HEAD}", f"--port={port}", "--num-cpus=0", "--include-dashboard=false"),
        *(f"--temp-dir={folder / 'ray'}", f"--object-store-memory={STORE_BYTES}", "--disable-usage-stats"),
        f"--autoscaling-config={wanted}",
    ]


def _environ(token: Path) -> dict[str, str]:
    # RAY_ADDRESS and the like of the caller would lead to another cluster.
    mine = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    return {
        **mine,
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(token),
        **HOOK,
        # Ray's provider for tests, which ours extends, refuses to start without it.
        "RAY_FAKE_CLUSTER": "1",
        "AUTOSCALER_UPDATE_INTERVAL_S": "1",
    }


def _alive(head: subprocess.Popen[bytes], log: Path) -> None:
    if head.poll() is not None:
        raise BrokenPromise(f"the head ended with code {head.returncode}:\n{_text(log)[-2000:]}")


def _text(log: Path) -> str:
    return log.read_text(errors="replace")


def _end(folder: Path) -> bool:
    """Kill every process of the cluster, the autoscaler's nodes included. Returns whether there were any. SIGTERM would
    take the autoscaler half a minute."""
    # Every process of the cluster has the folder in its command line or its environment.
    mark, found = os.fsencode(folder), False
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            line = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
        except OSError:
            continue
        if mark in line and int(entry.name) != os.getpid():
            found = True
            with suppress(ProcessLookupError):
                os.kill(int(entry.name), signal.SIGKILL)
    return found


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HEAD, 0))
        return int(probe.getsockname()[1])
