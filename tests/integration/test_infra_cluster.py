"""The cluster script with real Ray: two nodes on loopback join with a token, and leave nothing behind."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from waiting import wait_for

SCRIPT = Path(__file__).parents[2] / "infra/ray/cluster.sh"
NODES = ("127.0.0.1", "127.0.0.2")
START_DEADLINE_S = 90


@contextmanager
def running(folder: Path, environ: dict[str, str], *words: str) -> Iterator[subprocess.Popen[bytes]]:
    """The script in the foreground, ended as Ctrl-C ends it."""
    with (folder / f"{words[0]}.log").open("wb") as log:
        process = subprocess.Popen(
            [str(SCRIPT), *words], env=environ, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            yield process
        finally:
            os.killpg(process.pid, signal.SIGINT)
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait(10)


def processes_of(folder: Path) -> list[str]:
    """Command lines that name the folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if str(folder / "ray") in line:
            found.append(line)
    return found


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((NODES[0], 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.mark.timeout(300)
def test_two_nodes_join_with_a_token_and_leave_nothing_behind() -> None:
    with tempfile.TemporaryDirectory(prefix="rlc", ignore_cleanup_errors=True) as short, ExitStack() as stack:
        folder = Path(short)
        nodes, token = folder / "nodes", folder / "token"
        nodes.write_text("".join(f"{address} 1 0\n" for address in NODES))
        environ = {
            **{name: value for name, value in os.environ.items() if not name.startswith("RAY_")},
            "RAY_BIN": str(Path(sys.executable).parent / "ray"),
            "RAY_PORT": str(free_port()),
            "RAY_TMPDIR": str(folder / "ray"),
            "OBJECT_STORE_BYTES": "100000000",
        }
        subprocess.run([str(SCRIPT), "token", str(token)], check=True, timeout=20, capture_output=True)

        def status(token_file: Path) -> str:
            done = subprocess.run(
                [str(SCRIPT), "status", str(nodes), str(token_file)],
                env=environ, capture_output=True, text=True, timeout=60, check=False,
            )  # fmt: skip
            return done.stdout + done.stderr

        stack.enter_context(running(folder, environ, "head", str(nodes), str(token)))
        wait_for("head", lambda: "0.0/1.0 CPU" in status(token), START_DEADLINE_S)
        stack.enter_context(running(folder, environ, "join", str(nodes), str(token), NODES[1]))
        wait_for("second node", lambda: "0.0/2.0 CPU" in status(token), START_DEADLINE_S)

        wrong = folder / "wrong"
        subprocess.run([str(SCRIPT), "token", str(wrong)], check=True, timeout=20, capture_output=True)
        assert "0.0/2.0 CPU" not in status(wrong)
        assert len(processes_of(folder)) > 2

        stack.close()
        wait_for("end of every process", lambda: not processes_of(folder), 30)
