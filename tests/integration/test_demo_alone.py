"""The run that the demonstration compares with: a process beside it, which never outlives it."""

import signal
from pathlib import Path

import pytest

from ringleader.cli.demo.alone import UndisturbedRunFailed, undisturbed


def test_a_run_that_fails_is_an_error_and_no_digest(tmp_path: Path) -> None:
    with undisturbed(tmp_path / "absent.yaml", tmp_path) as run, pytest.raises(UndisturbedRunFailed):
        run.sha256()


def test_a_run_that_nobody_waits_for_is_killed_at_the_end_of_the_block(tmp_path: Path) -> None:
    with undisturbed(tmp_path / "absent.yaml", tmp_path) as run:
        pass
    assert run.process.returncode == -signal.SIGKILL
