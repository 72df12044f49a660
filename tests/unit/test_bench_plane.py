"""The cluster of the kills benchmark: a supervisor that is asked for twice is one, and is told of."""

from pathlib import Path

import pytest

from ringleader.bench.control_plane.assault import started_twice
from ringleader.bench.control_plane.plane import FolderCluster, attempts_in
from ringleader.spec import JobSpec
from ringleader_api.backend import AttemptGone, Launch


def launch(home: Path, job_id: str, attempt: int = 1) -> Launch:
    spec = JobSpec.parse({"name": "x", "entrypoint": "a:b"})
    return Launch(job_id, attempt, spec, None, "http://x", "token", home)


def test_a_second_start_of_an_attempt_is_kept_for_whoever_counts_them(tmp_path: Path) -> None:
    cluster = FolderCluster(tmp_path, cpus=1)
    found = []
    for job_id in ("job_a", "job_b", "job_a"):
        cluster.start(launch(tmp_path, job_id))
        found.append(attempts_in(tmp_path / "again"))
    assert (found, cluster.supervisors()) == ([set(), set(), {("job_a", 1)}], {("job_a", 1), ("job_b", 1)})
    cluster.release("job_a", 1)
    with pytest.raises(AttemptGone):
        cluster.start(launch(tmp_path, "job_a"))


def test_what_was_started_twice_is_counted_however_it_came_about(tmp_path: Path) -> None:
    cluster = FolderCluster(tmp_path, cpus=1)
    for job_id in ("job_a", "job_b", "job_c"):
        cluster.start(launch(tmp_path, job_id))
    cluster.release("job_c", 1)
    assert started_twice(tmp_path, ["a", "b", "c"]) == 0
    cluster.start(launch(tmp_path, "job_a"))
    assert started_twice(tmp_path, ["a", "b", "c"]) == 1, "while it was there"
    cluster.release("job_a", 1)
    assert started_twice(tmp_path, ["a", "b", "c"]) == 1, "it stays known when it is gone"
    cluster.start(launch(tmp_path, "job_b", attempt=2))
    assert started_twice(tmp_path, ["a", "b", "c"]) == 2, "as the next attempt"
    assert started_twice(tmp_path, ["a", "b", "b"]) == 3, "as another job"
