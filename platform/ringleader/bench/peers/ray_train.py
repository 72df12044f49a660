"""Ray Train: `recovery` kills workers of an elastic (2, 3) run over and over, `submit` starts one run after the other,
`join` lets a third worker join a run of two.

Prints one JSON line a kill or a run. Settings: health checks every 0.1 s instead of 2 s, its metrics and reconciliation
off, checkpoints every 50 steps, as many restarts as it takes, a cluster of its own that is up and warm.
"""

import argparse
import json
import os
import random
import signal
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from ringleader.bench.elasticity.commits import Commits, MeasuredRecovery, await_recovery, wait_for
from ringleader.bench.elasticity.join import CASE, DENSE, LOADS, QUIET_S, Join
from ringleader.bench.processes.children import Child, die_with_parent
from ringleader.bench.training.workloads import PAUSE_S

SETTINGS = {
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.1",
    "RAY_TRAIN_METRICS_ENABLED": "0",
    "RAY_TRAIN_ENABLE_STATE_ACTOR_RECONCILIATION": "0",
    "RAY_DEDUP_LOGS": "0",
    "OMP_NUM_THREADS": "1",
}
WORKERS = (2, 3)
FOREVER = 1_000_000
DEADLINE_S = 120.0
RESIZE_S = 1.0
"""Seconds between Ray Train's looks for free places."""
# Any free ports: Ray's fixed ones are taken by the first node of the same address.
NODE = (
    "--num-cpus=1",
    "--object-store-memory=100000000",
    *("--min-worker-port=0", "--max-worker-port=0", "--dashboard-agent-listen-port=0"),
    "--disable-usage-stats",
)


def main() -> None:
    asked = _arguments()
    # Before the import: some of them are read there.
    os.environ.update(SETTINGS)
    import ray

    with tempfile.TemporaryDirectory(prefix="rt", ignore_cleanup_errors=True) as folder:
        ray.init(
            address="local",
            # `join` begins without a third place: a node brings it.
            num_cpus=WORKERS[0] if asked.what in LOADS else WORKERS[1] + 1,
            include_dashboard=False,
            object_store_memory=150_000_000,
            _temp_dir=f"{folder}/ray",
            log_to_driver=False,
        )
        try:
            MEASURES[asked.what](Path(folder), asked.runs, asked.seed)
        finally:
            ray.shutdown()


def submit(folder: Path, runs: int, seed: int) -> None:
    """Seconds from `fit()` to the first committed step; the first run warms the cluster and is not counted."""
    del seed
    for number in range(runs + 1):
        commits = folder / f"commits{number}"
        commits.mkdir()
        started = time.monotonic()
        _trainer(folder, commits, "noise", steps=5, workers=WORKERS[1]).fit()
        if number:
            first = Commits.read(commits).all[0].at
            print(json.dumps({"seconds": first - started}), flush=True)


def recovery(folder: Path, kills: int, seed: int) -> None:
    """Run `fit()` until enough workers were killed, then end the process without waiting for it."""
    commits = folder / "commits"
    commits.mkdir()

    _beside(lambda: _kill_often(commits, kills, random.Random(seed)))  # noqa: S311
    _trainer(folder, commits, "digits", steps=FOREVER, workers=WORKERS).fit()


def join(case: str, folder: Path, joins: int, seed: int) -> None:
    """Add a node with one place to a cluster with two, and remove it again, over and over: Ray Train goes by what all
    nodes have, not by what is free."""
    import ray

    del seed
    commits = folder / "commits"
    commits.mkdir()
    head = ray.get_runtime_context().gcs_address

    def come_and_go() -> None:
        for _ in range(joins):
            _await_members(commits, WORKERS[0])
            quiet_at = time.monotonic()
            time.sleep(QUIET_S)
            asked_at = time.monotonic()
            with Child("ray.scripts.scripts", ["start", "--block", f"--address={head}", *NODE]):
                _await_members(commits, WORKERS[1])
                times = [commit.at for commit in Commits.read(commits).since(quiet_at).all]
                print(json.dumps(asdict(Join.of(times, asked_at))), flush=True)

    _beside(come_and_go)
    load = LOADS[case]
    _trainer(folder, commits, load.workload, steps=FOREVER, workers=WORKERS, pause_s=load.pause_s).fit()


def _beside(measure: Callable[[], None]) -> None:
    """Measure in a thread while `fit()` runs, then end the process without waiting for it."""

    def measure_and_leave() -> None:
        status = 1
        try:
            measure()
            status = 0
        except Exception:
            traceback.print_exc()
        finally:
            import ray

            ray.shutdown()
            # The main thread is in `fit()`, which goes on for FOREVER steps.
            os._exit(status)

    threading.Thread(target=measure_and_leave, daemon=True).start()


def _kill_often(folder: Path, kills: int, draw: random.Random) -> None:
    for _ in range(kills):
        members = _await_members(folder, WORKERS[1])
        time.sleep(draw.uniform(0, 4 * PAUSE_S))
        victim = draw.choice(sorted(members))
        killed_at = time.monotonic()
        os.kill(victim, signal.SIGKILL)
        found = _await_recovery(folder, killed_at, victim)
        print(json.dumps({"seconds": found.seconds, "steps_lost": found.steps_lost}), flush=True)


def _await_members(folder: Path, count: int) -> set[int]:
    """The members of the newest group, once there are so many and they are steady."""
    since = time.monotonic()

    def look() -> set[int] | None:
        commits = Commits.read(folder).since(since)
        newest = commits.newest()
        members = commits.members(newest) if newest is not None else set()
        return members if len(members) == count else None

    return wait_for(f"a steady group of {count}", look, DEADLINE_S, lambda: None)


def _await_recovery(folder: Path, killed_at: float, victim: int) -> MeasuredRecovery:
    return await_recovery(lambda: Commits.read(folder), killed_at, victim, DEADLINE_S, lambda: None)


def _trainer(
    folder: Path,
    commits: Path,
    workload: str,
    *,
    steps: int,
    workers: int | tuple[int, int],
    pause_s: float = PAUSE_S,
) -> Any:
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer

    from ringleader.bench.peers.ray_loop import loop

    return TorchTrainer(
        loop,
        train_loop_config={"workload": workload, "commits": str(commits), "steps": steps, "pause_s": pause_s},
        scaling_config=ScalingConfig(
            num_workers=workers, resources_per_worker={"CPU": 1}, elastic_resize_monitor_interval_s=RESIZE_S
        ),
        run_config=RunConfig(
            name=commits.name,
            storage_path=str(folder / "storage"),
            failure_config=FailureConfig(max_failures=-1),
        ),
        torch_config=TorchConfig(backend="gloo"),
    )


MEASURES: dict[str, Callable[[Path, int, int], None]] = {
    "recovery": recovery,
    "submit": submit,
    CASE: partial(join, CASE),
    DENSE: partial(join, DENSE),
}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=sorted(MEASURES))
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


if __name__ == "__main__":
    die_with_parent()
    main()
