"""The cluster script with real Ray: two nodes on loopback join with a token, and leave nothing behind."""

import os
import stat
import subprocess
import tempfile
from contextlib import ExitStack
from pathlib import Path

import pytest
from cluster_script import SCRIPT, make_token, processes_of, running, script_environ
from ports import free_port
from waiting import wait_for

from ringleader.runtime.nodes.fork_worker import forks

NODES = ("127.0.0.12", "127.0.0.13")
"""Where no other test of the machine has a node: two of Ray at one address take each other's ports."""
START_DEADLINE_S = 90
STARTED = "Ray runtime started"


@pytest.mark.timeout(300)
def test_two_nodes_join_with_a_token_and_leave_nothing_behind() -> None:
    with tempfile.TemporaryDirectory(prefix="rlc", ignore_cleanup_errors=True) as short, ExitStack() as stack:
        folder = Path(short)
        nodes, token = folder / "nodes", folder / "token"
        nodes.write_text("".join(f"{address} 1 0\n" for address in NODES))
        environ = script_environ(folder, free_port(NODES[0]))
        make_token(token)

        def status(token_file: Path) -> str:
            done = subprocess.run(
                [str(SCRIPT), "status", str(nodes), str(token_file)],
                env=environ, capture_output=True, text=True, timeout=60, check=False,
            )  # fmt: skip
            return done.stdout + done.stderr

        def said(log: str) -> str:
            return (folder / log).read_text(errors="replace")

        stack.enter_context(running(folder, environ, "head", str(nodes), str(token)))
        wait_for("head", lambda: STARTED in said("head.log"), START_DEADLINE_S)
        stack.enter_context(running(folder, environ, "join", str(nodes), str(token), NODES[1]))
        wait_for("second node", lambda: STARTED in said(f"join-{NODES[1]}.log"), START_DEADLINE_S)
        wait_for("both in the status", lambda: "0.0/2.0 CPU" in status(token), START_DEADLINE_S)

        wrong = folder / "wrong"
        make_token(wrong)
        assert "0.0/2.0 CPU" not in status(wrong)
        assert len(processes_of(folder)) > 2
        if forks():
            ready = [line for line in processes_of(folder) if "preload.py" in line]
            assert len(ready) == len(NODES), "each node has a process that its workers are forked from"

        own = folder / "ray" / f"rl-{os.getuid()}"
        assert stat.S_IMODE(own.stat().st_mode) == 0o700
        assert [path.name for path in (folder / "ray").iterdir()] == [own.name], (
            "all of Ray's files lie in there"
        )
        assert (own / "ray" / "session_latest").exists()

        stack.close()
        wait_for("end of every process", lambda: not processes_of(folder), 30)
