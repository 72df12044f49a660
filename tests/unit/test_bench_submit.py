"""The peers of the submit benchmark: what a Ray job's time is counted from and to, and that each peer has its line."""

import shlex
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ringleader.bench.broken import PeerFailed
from ringleader.bench.elasticity.commits import Commits
from ringleader.bench.elasticity.submit import PEERS, figures
from ringleader.bench.peers.first_step import take
from ringleader.bench.peers.ray_jobs import FIRST_STEP, first_steps
from ringleader.bench.processes.children import peer_answers


class Jobs:
    """Ray Jobs without Ray: a job has run when it was submitted, and tells its end when it is asked again."""

    def __init__(self, run: Callable[[Path], None]) -> None:
        self._run = run
        self._asked: dict[str, int] = {}

    def submit_job(self, *, entrypoint: str) -> str:
        python, dash, module, folder = shlex.split(entrypoint)
        assert (python, dash, module) == (sys.executable, "-m", FIRST_STEP)
        self._run(Path(folder))
        return folder

    def get_job_status(self, job_id: str) -> str:
        self._asked[job_id] = self._asked.get(job_id, 0) + 1
        return "SUCCEEDED" if self._asked[job_id] > 1 else "RUNNING"


def test_a_ray_job_commits_one_step_and_the_job_that_warms_the_cluster_is_not_counted(tmp_path: Path) -> None:
    took = list(first_steps(Jobs(take), tmp_path, runs=2))
    assert len(took) == 2
    assert all(seconds > 0 for seconds in took)
    for number in range(3):
        assert [commit.step for commit in Commits.read(tmp_path / f"commits{number}").all] == [0]


def test_a_ray_job_that_takes_no_step_is_no_measurement(tmp_path: Path) -> None:
    with pytest.raises(PeerFailed, match="a first step did not happen"):
        list(first_steps(Jobs(lambda folder: None), tmp_path, runs=1))


def test_a_peer_that_fails_is_told_of_with_its_last_line_and_the_figure_stays_alone(
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert peer_answers("ringleader.bench.peers.nobody", [], 60.0) == []
    assert "nobody failed: " in capfd.readouterr().err
    alone = [f.line(bench="", machine="", command="") for f in figures([0.5], {name: [] for name in PEERS})]
    assert [(line.ringleader, line.peer_name, line.ratio, line.met) for line in alone] == [
        (0.5, None, None, True)
    ] * 2


def test_each_peer_has_its_line_beside_the_same_runs_of_ours() -> None:
    told = [
        figure.line(bench="submit", machine="", command="")
        for figure in figures([0.5, 0.7], {name: [6.0] for name in PEERS})
    ]
    assert [(line.case, line.ringleader, line.peer_name, line.ratio) for line in told] == [
        ("warm", 0.6, "ray_train", 10.0),
        ("warm", 0.6, "ray_jobs", 10.0),
    ]
