"""The cluster of the kills benchmark: a supervisor that is asked for twice is one, and is told of."""

from pathlib import Path

import pytest

from ringleader.bench.plane import FolderCluster, attempts_in
from ringleader.spec import JobSpec
from ringleader_api.backend import AttemptGone, Launch


def test_a_second_start_of_an_attempt_is_kept_for_whoever_counts_them(tmp_path: Path) -> None:
    cluster = FolderCluster(tmp_path, cpus=1)
    spec = JobSpec.parse({"name": "x", "entrypoint": "a:b"})
    found = []
    for job_id in ("job_a", "job_b", "job_a"):
        cluster.start(Launch(job_id, 1, spec, None, "http://x", "token", tmp_path))
        found.append(attempts_in(tmp_path / "again"))
    assert (found, cluster.supervisors()) == ([set(), set(), {("job_a", 1)}], {("job_a", 1), ("job_b", 1)})
    cluster.release("job_a", 1)
    with pytest.raises(AttemptGone):
        cluster.start(Launch("job_a", 1, spec, None, "http://x", "token", tmp_path))
