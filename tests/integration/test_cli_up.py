"""`ringleader up` with the real Ray, MLflow and API."""

import json
import os
import signal
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
