"""Ray Jobs: `submissions` prints how many a second are accepted from several clients at once, `submit` the seconds from
a submission to its job's first step.

Prints one JSON line a run. Settings: a local cluster of its own with its dashboard, no runtime environment; for
`submissions` an entrypoint that does nothing and a `JobSubmissionClient` for each client; for `submit` an entrypoint
that trains by itself, on a cluster that has run it before.
"""

import argparse
import json
import os
import shlex
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from ringleader.bench.control_plane.crowd import at_once
from ringleader.bench.elasticity.commits import Commits, wait_for
from ringleader.bench.processes.children import die_with_parent

FIRST_STEP = "ringleader.bench.peers.first_step"
DEADLINE_S = 60.0
ENDED = {"SUCCEEDED", "FAILED", "STOPPED"}


class Submitter(Protocol):
    """The part of `ray.job_submission.JobSubmissionClient` that is used here."""

    def submit_job(self, *, entrypoint: str) -> str: ...

    def get_job_status(self, job_id: str) -> Any: ...


def main() -> None:
    asked = _arguments()
    os.environ["OMP_NUM_THREADS"] = "1"
    import ray
    from ray.job_submission import JobSubmissionClient

    # Without its extra `default` Ray starts all the same, and its dashboard, which takes jobs, does not.
    if find_spec("aiohttp_cors") is None:
        sys.exit(
            f"Ray's dashboard, which takes its jobs, is not here: pip install 'ray[default]=={ray.__version__}'"
        )

    with tempfile.TemporaryDirectory(prefix="rj", ignore_cleanup_errors=True) as folder:
        told = ray.init(
            address="local",
            num_cpus=4,
            include_dashboard=True,
            object_store_memory=150_000_000,
            _temp_dir=f"{folder}/ray",
            log_to_driver=False,
        )
        try:
            address = f"http://{told.address_info['webui_url']}"
            clients = [JobSubmissionClient(address) for _ in range(asked.clients)]
            if asked.what == "submit":
                found = ({"seconds": took} for took in first_steps(clients[0], Path(folder), asked.runs))
            else:
                found = ({"per_s": rate} for rate in _rates(clients, asked.each, asked.runs))
            for answer in found:
                print(json.dumps(answer), flush=True)
        finally:
            ray.shutdown()


def first_steps(client: Submitter, folder: Path, runs: int) -> Iterator[float]:
    """Seconds from `submit_job` to the first committed step of each run, one after the other has ended; the first job
    warms the cluster and is not counted.

    Raises:
        PeerFailed: a job committed nothing, or did not end.
    """
    for number in range(runs + 1):
        commits = folder / f"commits{number}"
        commits.mkdir()
        entrypoint = shlex.join([sys.executable, "-m", FIRST_STEP, str(commits)])
        started = time.monotonic()
        job_id = client.submit_job(entrypoint=entrypoint)
        wait_for("the job's end", partial(_ended, client, job_id), DEADLINE_S, lambda: None)
        # Read once the job has ended: reading in between would take a core from it.
        first = wait_for("a first step", partial(_first, commits), 0, lambda: None)
        if number:
            yield first - started


def _ended(client: Submitter, job_id: str) -> bool | None:
    return str(client.get_job_status(job_id)) in ENDED or None


def _first(commits: Path) -> float | None:
    found = Commits.read(commits).all
    return found[0].at if found else None


def _rates(clients: list[Any], each: int, runs: int) -> Iterator[float]:
    """Submissions a second of all clients at once, each of which sends one after the other."""
    # Not counted, as our own server's first job is not.
    clients[0].submit_job(entrypoint="true")

    def submit(number: int) -> None:
        for _ in range(each):
            clients[number].submit_job(entrypoint="true")

    for _ in range(runs):
        yield len(clients) * each / at_once(len(clients), submit)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=("submissions", "submit"))
    parser.add_argument("--clients", type=int, default=1)
    parser.add_argument("--each", type=int, default=1)
    parser.add_argument("--runs", type=int, required=True)
    return parser.parse_args()


if __name__ == "__main__":
    die_with_parent()
    main()
