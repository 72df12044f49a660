"""The full stack for a benchmark: `ringleader up` in a temporary home, and a job that writes down its commits."""

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ringleader.bench.broken import BrokenPromise
from ringleader.bench.elasticity.commits import Commits
from ringleader.bench.elasticity.trained import ADOPTED, ENTRYPOINT
from ringleader.bench.processes.children import Child
from ringleader.bench.training.workloads import PAUSE_S
from ringleader.cli.stack.home import Home
from ringleader.cli.stack.recipes import REAL
from ringleader.cli.stack.service import Recipe
from ringleader.cli.stack.stack import ForeignCluster, running
from ringleader.client import Client, Job

WORKERS = 3
CPUS = 4
BATCH = 96
WARM_DEADLINE_S = 150.0
GONE_DEADLINE_S = 120.0


@dataclass(frozen=True, slots=True)
class BenchStack:
    """A control plane that is up, its Ray cluster, and a folder for what its jobs write."""

    client: Client
    folder: Path
    home: Home
    ray_address: str

    def await_warm(self) -> None:
        """Wait until the idle workers that a job takes stand ready again, as they do for a user."""
        self._wait("warm", str(WORKERS), deadline_s=WARM_DEADLINE_S)

    def left_of(self, job_id: str) -> dict[str, Any]:
        """An ended job's remains on the cluster, by kind; waits until there is nothing, for a minute."""
        left: dict[str, Any] = self._wait("gone", job_id, deadline_s=GONE_DEADLINE_S)["left"]
        return left

    def _wait(self, *asked: str, deadline_s: float) -> dict[str, Any]:
        token = {"RAY_AUTH_TOKEN_PATH": str(self.home.ray_token)}
        module = "ringleader.bench.processes.cluster_waits"
        with Child(module, [self.ray_address, *asked], token) as child:
            return child.answers(deadline_s)[0]

    def submit(
        self,
        name: str,
        *,
        workload: str,
        epochs: int,
        sync: Mapping[str, object] | None = None,
        workers: Mapping[str, int] | None = None,
        pause_s: float = PAUSE_S,
        loader_workers: int = 0,
        lines_s: float = 0.0,
        adopted: bool = False,
    ) -> "BenchJob":
        """Submit a job, by default on three workers and at least two; `sync` and `workers` as in the job file. A step
        sleeps `pause_s`, lines behind a loop `lines_s`. An adopted one is a function of Ray Train."""
        commits = self.folder / name
        commits.mkdir()
        spec = {
            "name": name,
            "entrypoint": ADOPTED if adopted else ENTRYPOINT,
            "framework": "ray_train" if adopted else "native",
            "params": {
                "workload": workload,
                "commits": str(commits),
                "epochs": epochs,
                "pause_s": pause_s,
                "loader_workers": loader_workers,
                "lines_s": lines_s,
                "batch_size": BATCH,
            },
            "workers": dict(workers or {"min": 2, "max": WORKERS}),
            "batch": {"global_size": BATCH},
            # Kills come quicker than committed steps give failures back.
            "max_failures": 1000,
            # The check beside a job would compute in the middle of the measurement.
            "debug": {"check": False},
            **({"sync": dict(sync)} if sync else {}),
        }
        return BenchJob(self.client.submit(spec), commits)


@dataclass(frozen=True, slots=True)
class BenchJob:
    """A submitted job and where its workers write their commits."""

    job: Job
    folder: Path

    @property
    def commits(self) -> Commits:
        return Commits.read(self.folder)

    def check(self) -> None:
        """Raise BrokenPromise when the job has ended."""
        if self.job.refresh().state.ended:
            last = "; ".join(f"{e.time:%H:%M:%S} {e.type} {e.data}" for e in list(self.job.events())[-8:])
            raise BrokenPromise(f"the job ended as {self.job.state}: {self.job.view.reason}. Last: {last}")


@contextmanager
def up(
    num_cpus: int = CPUS, *, cluster: ForeignCluster | None = None, settings: Mapping[str, str] | None = None
) -> Iterator[BenchStack]:
    """The stack with everything embedded, in a temporary home; stopped when the block is left.

    Args:
        cluster: a Ray cluster to use instead of one of its own.
        settings: variables of the API's process.
    """

    def api(home: Home, port: int, ray_address: str, mlflow_url: str) -> Recipe:
        usual = REAL.api(home, port, ray_address, mlflow_url)
        return replace(usual, environ={**usual.environ, **(settings or {})})

    # Short: paths of Unix sockets have 107 bytes at most, and MLflow's is below this folder.
    with tempfile.TemporaryDirectory(prefix="rl", ignore_cleanup_errors=True) as folder:
        home = Home(Path(folder) / "home")
        with running(
            home,
            num_cpus=num_cpus,
            say=lambda text: None,
            recipes=replace(REAL, api=api),
            cluster=cluster,
        ) as started:
            own = started.profile
            address = cluster.address if cluster else str(started.services["ray"].said["address"])
            with Client(own.url, own.token) as client:
                yield BenchStack(client, Path(folder), home, address)
