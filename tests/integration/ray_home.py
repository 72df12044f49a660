"""A Ray cluster for a test module, started as `ringleader up` starts it, and an ingest server that remembers."""

import json
import os
import secrets
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from ray_environ import ray_environ
from waiting import wait_for

from ringleader.guard import guarded
from ringleader.wire.ingest import Ingest
from ringleader.wire.system import SystemSample

TOKEN = secrets.token_hex(32)
"""Of all clusters of this process: Ray reads its token once."""
GRACE_S = 10


@contextmanager
def ray_head(home: Path, num_cpus: int = 8) -> Iterator[tuple[str, str]]:
    """The address and the folder of a running head; ended with the block."""
    head = begin_head(home, num_cpus)
    try:
        assert head.stdout is not None
        said = json.loads(head.stdout.readline())
        os.environ["RAY_AUTH_MODE"] = "token"
        os.environ["RAY_AUTH_TOKEN_PATH"] = str(home / "ray_token")
        yield said["address"], said["temp_dir"]
    finally:
        assert head.stdin is not None
        head.stdin.close()
        assert head.wait(timeout=60) == 0
        assert not Path(said["temp_dir"]).exists()


def begin_head(home: Path, num_cpus: int) -> "subprocess.Popen[str]":
    """The guard of a head that says in a line when it is ready, and where it is. Ends with its standard input."""
    home.mkdir(parents=True, exist_ok=True)
    token = home / "ray_token"
    token.touch(0o600)
    token.write_text(TOKEN)
    command = [
        sys.executable,
        "-m",
        "ringleader.runtime.head",
        "--home",
        str(home),
        "--num-cpus",
        str(num_cpus),
    ]
    return subprocess.Popen(
        guarded(command, grace_s=GRACE_S, record=home / "head.json"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=ray_environ(),
    )


def address() -> str:
    """Of the cluster that this process is connected to."""
    import ray

    return str(ray.get_runtime_context().gcs_address)


def living() -> set[str]:
    """Ids of the nodes of that cluster."""
    import ray

    return {node["NodeID"] for node in ray.nodes() if node["Alive"]}


@contextmanager
def ray_node(ip: str, num_cpus: int, num_gpus: int = 0) -> Iterator[str]:
    """Another node of the cluster that this process is connected to, at an address of its own; yields its id. What it
    says of devices Ray takes for true.

    `ray start` would refuse: this process's environment says that Ray shall keep to loopback and form no cluster."""
    from ray._private.node import Node
    from ray._private.parameter import RayParams

    params = RayParams(
        gcs_address=address(),
        node_ip_address=ip,
        num_cpus=num_cpus,
        num_gpus=num_gpus,
        object_store_memory=100_000_000,
        min_worker_port=0,
        max_worker_port=0,
        dashboard_agent_listen_port=0,
        include_log_monitor=False,
    )
    node = Node(params, head=False, shutdown_at_exit=False, spawn_reaper=True)
    try:
        yield node.node_id
    finally:
        node.kill_all_processes(check_alive=False, allow_graceful=True, wait=True)
        wait_for("end of the node", lambda: node.node_id not in living(), 60)


class IngestServer:
    """Stores what supervisors post, as the API would: a record sent twice is kept once. `away` refuses all, `gone` says
    that the attempt is none of it, `blocked` is the status of a proxy's answer, `garbled` answers what the API never
    would. `secrets` are the job's."""

    def __init__(self) -> None:
        self.records: dict[tuple[int, str], list[dict[str, Any]]] = {}
        self.status: dict[str, Any] = {}
        self.system: list[SystemSample] = []
        self.away = False
        self.gone = False
        self.blocked = 0
        self.garbled = False
        self.posts = 0
        self.refusals = 0
        self.secrets: dict[str, str] = {}
        self._lock = threading.Lock()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                known = self.path == "/secrets" and self.headers["Authorization"] == "Bearer secret"
                outer.answer(self, 200 if known else 404, {"values": outer.secrets} if known else {})

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if outer.away:
                    self.send_error(503)
                    return
                if outer.blocked:
                    outer.answer(self, outer.blocked, {})
                    return
                if outer.gone or self.headers["Authorization"] != "Bearer secret":
                    outer.answer(self, 409 if outer.gone else 401, {}, "problem+json")
                    return
                try:
                    ingest = Ingest.model_validate_json(body)
                except ValidationError as error:
                    outer.refusals += 1
                    outer.refuse(self, error)
                    return
                outer.answer(self, 200, "<html>" if outer.garbled else {"acked": outer.store(ingest)})

            def log_message(self, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        serve = {"poll_interval": 0.02}  # which its end waits for
        threading.Thread(target=self._server.serve_forever, kwargs=serve, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}/ingest"

    def answer(self, to: BaseHTTPRequestHandler, status: int, body: Any, kind: str = "json") -> None:
        told = json.dumps(body).encode()
        to.send_response(status)
        to.send_header("Content-Type", f"application/{kind}")
        to.send_header("Content-Length", str(len(told)))
        to.end_headers()
        to.wfile.write(told)

    def refuse(self, to: BaseHTTPRequestHandler, error: ValidationError) -> None:
        found = [{"pointer": "/".join(map(str, e["loc"])), "message": e["msg"]} for e in error.errors()]
        self.answer(to, 422, {"errors": found}, "problem+json")

    def store(self, ingest: Ingest) -> dict[str, int]:
        with self._lock:
            self.posts += 1
            if ingest.status is not None:
                self.status = ingest.status.model_dump(mode="json")
            self.system += ingest.system
            acked: dict[str, int] = {}
            for record in ingest.records:
                kept = self.records.setdefault((ingest.attempt, record.stream), [])
                if not kept or kept[-1]["seq"] < record.seq:
                    kept.append(record.model_dump(mode="json"))
                acked[record.stream] = kept[-1]["seq"]
            return acked

    def stream(self, name: str, attempt: int = 1) -> list[dict[str, Any]]:
        with self._lock:
            return list(self.records.get((attempt, name), []))

    def events(self, kind: str, attempt: int = 1) -> list[dict[str, Any]]:
        return [e["data"] for e in self.stream("events", attempt) if e["type"] == kind]

    def every(self, name: str) -> list[dict[str, Any]]:
        """The records of a stream, of all attempts."""
        with self._lock:
            return [record for (_, stream), kept in self.records.items() if stream == name for record in kept]

    def outcome(self, attempt: int = 1) -> dict[str, Any] | None:
        return next(iter(self.stream("outcome", attempt)), None)

    def forget(self) -> None:
        with self._lock:
            self.records.clear()
            self.status = {}

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
