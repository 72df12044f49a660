"""A real MLflow server for tests, on SQLite and loopback, that can be stopped and come back."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
from ports import free_port
from waiting import wait_for

PREFIX = "/mlflow"
# Ends the whole group when the test process, which holds the other end of stdin, is gone: also when it was killed.
GUARD = '"$@" </dev/null & read -r _; kill -9 0'
QUIET = {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}


class MlflowServer:
    """One server with its database in `folder`; `start` and `stop` may alternate."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self._http = httpx.Client(trust_env=False, timeout=2)
        self.url = f"http://127.0.0.1:{self._port}{PREFIX}"

    def start(self) -> None:
        log = (self._folder / "mlflow.log").open("ab")
        self._process = subprocess.Popen(
            [
                *(
                    "bash",
                    "-c",
                    GUARD,
                    "guard",
                    sys.executable,
                    "-m",
                    "mlflow",
                    "server",
                    "--host",
                    "127.0.0.1",
                    "--port",
                    str(self._port),
                ),
                *("--workers", "1", "--static-prefix", PREFIX),
                *("--backend-store-uri", f"sqlite:///{self._folder / 'mlflow.db'}"),
                *("--artifacts-destination", str(self._folder / "artifacts")),
            ],
            env={**os.environ, **QUIET},
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        log.close()
        wait_for(f"answer from {self.url}", self._healthy, deadline_s=90)

    def stop(self) -> None:
        """SIGKILL for the server and its children."""
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            assert self._process.stdin is not None
            self._process.stdin.close()
            self._process.wait(timeout=30)
            self._process = None

    def _healthy(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self._folder / "mlflow.log").read_text()[-2000:]
        try:
            return self._http.get(f"{self.url}/health").status_code == 200
        except httpx.TransportError:
            return False


@contextmanager
def mlflow_server(folder: Path) -> Iterator[MlflowServer]:
    folder.mkdir(parents=True, exist_ok=True)
    server = MlflowServer(folder)
    server.start()
    try:
        yield server
    finally:
        server.stop()
