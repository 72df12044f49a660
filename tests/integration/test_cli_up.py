"""`ringleader up` with the real Ray, MLflow and API."""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from test_cli_stack import processes_of
from waiting import wait_for

from ringleader.client import Client


def _ringleader(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "ringleader.cli.main", *arguments],
        env={**os.environ, "RINGLEADER_HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


@pytest.mark.timeout(300)
def test_up_detaches_answers_refuses_a_second_and_leaves_nothing_when_killed() -> None:
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        try:
            up = _ringleader(home, "up", "--detach", "-o", "json")
            assert up.returncode == 0, up.stderr
            answer = json.loads(up.stdout)
            temp_dir = Path(json.loads((home / "run" / "ray.json").read_text())["remove"][0])
            assert temp_dir.is_dir()

            assert "already_up" in _ringleader(home, "up").stderr
            assert "ringleader 0" in _ringleader(home, "version").stdout
            with Client(answer["url"], (home / "token").read_text().strip()) as client:
                cluster = wait_for(
                    "cluster", lambda: client.cluster() if client.cluster()["reachable"] else None
                )
                assert cluster["cpus"] >= 4

            os.kill(answer["pid"], signal.SIGKILL)
            wait_for("end of all processes", lambda: not processes_of(home))
            wait_for("end of Ray's processes", lambda: not processes_of(temp_dir))
            assert not temp_dir.exists()
            assert _ringleader(home, "status").returncode == 1
        finally:
            _ringleader(home, "down")
        assert "no stack is running" in _ringleader(home, "down").stdout


@pytest.mark.timeout(300)
def test_an_up_that_fails_shows_its_own_words_and_not_those_of_an_earlier_one() -> None:
    with tempfile.TemporaryDirectory() as folder, socket.create_server(("127.0.0.1", 0)) as taken:
        log = Path(folder) / "log" / "up.log"
        log.parent.mkdir(mode=0o700)
        log.write_text("words of an earlier one\n")
        port = taken.getsockname()[1]
        up = _ringleader(Path(folder), "up", "--detach", "--port", str(port))
        assert up.returncode == 1
        assert f"cannot listen on 127.0.0.1:{port}" in up.stderr
        assert "earlier" not in up.stderr
        wait_for("end of all processes", lambda: not processes_of(Path(folder)))
