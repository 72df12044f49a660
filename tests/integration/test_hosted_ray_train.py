"""Hosted Ray Train jobs on a real Ray cluster: a real `TorchTrainer` under our supervisor."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from integration.hosted import linear_path
from integration.runtime_job import Run, start
from waiting import wait_for

from ringleader.wire.package import pack

JOB = {
    "framework": "ray_train_hosted",
    "entrypoint": "linear:train_func",
    "batch": {},
    "workers": {"min": 2, "max": 2},
}


@pytest.fixture
def package(tmp_path: Path) -> bytes:
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "linear.py").write_text(linear_path().read_text())
    return pack(folder)


def lines(run: Run) -> list[str]:
    return [record["line"] for record in run.ingest.stream("logs", run.launch.attempt)]


def starts(run: Run) -> list[str]:
    return [line for line in lines(run) if line.startswith("of 2 from epoch")]


def until(run: Run, what: str, condition: Callable[[], object]) -> None:
    try:
        wait_for(f"{what} or the end", lambda: condition() or run.ingest.outcome(), 240)
    except AssertionError:
        print(run.ingest.status, run.ingest.records)
        raise
    assert run.ingest.outcome() is None, run.ingest.outcome()


def rays_workers() -> list[int]:
    """Processes of Ray Train's workers."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and b"ray::RayTrainWorker" in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def test_a_trainer_of_ray_s_starts_anew_from_its_checkpoint_when_a_worker_is_killed(
    cluster: Any, home: Path, ingest: Any, package: bytes, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    params = {"epochs": 4, "gate": str(gate)}
    run = start(cluster, home, ingest, package, "trainer", params=params, **JOB)
    until(run, "the gate", lambda: "at the gate" in lines(run))
    # Ray takes a report a moment after the function has gone on.
    wait_for(
        "a checkpoint", (home / "checkpoints/trainer/hosted/run/checkpoint_manager_snapshot.json").exists
    )
    os.kill(run.pids()["w1"], signal.SIGKILL)
    until(run, "the restart", lambda: len(starts(run)) == 2)
    assert starts(run)[0] == "of 2 from epoch 0"
    assert ingest.events("worker.lost")[0]["worker"] == "w1"
    assert starts(run)[1] in ("of 2 from epoch 1", "of 2 from epoch 2")
    gate.touch()
    outcome = run.outcome()
    assert outcome["outcome"] == "succeeded", outcome
    assert {"rank 1: of 2 from epoch 0", "done", "rank 1: done"} <= set(lines(run))
    assert [e["cause"] for e in ingest.events("generation.formed")] == ["start", "lost"]
    assert outcome["result"]["reproducible"] is False
    wait_for("the end of Ray's workers", lambda: not rays_workers(), 30)
    run.leave_nothing()


def test_a_resize_starts_the_trainer_anew_in_the_new_world_from_its_checkpoint(
    cluster: Any, home: Path, ingest: Any, package: bytes, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    run = start(
        cluster,
        home,
        ingest,
        package,
        "resized-trainer",
        params={"epochs": 4, "gate": str(gate)},
        max_failures=0,
        **JOB,
    )
    until(run, "the gate", lambda: "at the gate" in lines(run))
    wait_for(
        "a checkpoint",
        (home / "checkpoints/resized-trainer/hosted/run/checkpoint_manager_snapshot.json").exists,
    )
    cluster.resize("resized-trainer", 1, 1, 1)
    until(run, "the new world", lambda: any(line.startswith("of 1 from epoch") for line in lines(run)))
    gate.touch()
    outcome = run.outcome()
    assert outcome["outcome"] == "succeeded", outcome
    assert next(line for line in lines(run) if line.startswith("of 1")) in (
        "of 1 from epoch 1",
        "of 1 from epoch 2",
    )
    assert [e["cause"] for e in ingest.events("generation.formed")] == ["start", "resize"]
    assert ingest.events("worker.lost") == ingest.events("program.failed") == []
    wait_for("the end of Ray's workers", lambda: not rays_workers(), 30)
    run.leave_nothing()


def test_a_function_that_raises_ends_the_job_with_its_traceback(
    cluster: Any, home: Path, ingest: Any, package: bytes
) -> None:
    given = {"params": {"epochs": 4, "fail_at": 1}, "env": {"TOLD": "a variable"}, "max_failures": 0}
    run = start(cluster, home, ingest, package, "raising", **JOB, **given)
    reason = run.outcome()["reason"]
    assert reason["code"] == "entrypoint_raised"
    assert "ZeroDivisionError: on purpose, with a variable" in reason["message"]
    wait_for("the end of Ray's workers", lambda: not rays_workers(), 30)
    run.leave_nothing()


def test_a_trainer_of_ray_s_is_paused_goes_on_from_its_checkpoint_and_is_cancelled(
    cluster: Any, home: Path, ingest: Any, package: bytes, tmp_path: Path
) -> None:
    params = {"epochs": 4, "gate": str(tmp_path / "gate")}
    run = start(cluster, home, ingest, package, "halted", params=params, **JOB)
    until(run, "the gate", lambda: "at the gate" in lines(run))
    wait_for("a checkpoint", (home / "checkpoints/halted/hosted/run/checkpoint_manager_snapshot.json").exists)
    cluster.pause("halted", 1, 60.0)
    assert run.outcome()["outcome"] == "paused"
    wait_for("the end of Ray's workers", lambda: not rays_workers(), 30)
    run.leave_nothing()
    run = start(cluster, home, ingest, package, "halted", params=params, attempt=2, **JOB)
    wait_for("the gate", lambda: "at the gate" in lines(run), 240)
    assert starts(run)[0] in ("of 2 from epoch 1", "of 2 from epoch 2")
    cluster.cancel("halted", 2, 20.0)
    assert run.outcome()["outcome"] == "cancelled"
    wait_for("the end of Ray's workers", lambda: not rays_workers(), 30)
    run.leave_nothing()
    assert ingest.events("program.failed") == []


def test_a_function_of_ray_s_own_examples_runs_out_of_its_wheel(
    cluster: Any, home: Path, ingest: Any, tmp_path: Path
) -> None:
    from ray.train.examples.pytorch import torch_linear_example

    folder = tmp_path / "example"
    folder.mkdir()
    (folder / "linear_example.py").write_text(Path(torch_linear_example.__file__).read_text())
    given = JOB | {"entrypoint": "linear_example:train_func"}
    params = {"lr": 1e-2, "hidden_size": 1, "batch_size": 4, "epochs": 3}
    run = start(cluster, home, ingest, pack(folder), "example", params=params, max_failures=0, **given)
    outcome = run.outcome()
    assert outcome["outcome"] == "succeeded", outcome
    wait_for("the end of Ray's workers", lambda: not rays_workers(), 30)
    run.leave_nothing()
