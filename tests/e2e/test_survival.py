"""A job on the whole stack outlives what is killed around it, and ends with the bits of an undisturbed run."""

import json
import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pace
import pytest
from processes import below, children
from waiting import wait_for
from whole_stack import Running

from ringleader.cli.demo.alone import undisturbed as run_alone
from ringleader.cli.main import main
from ringleader.cli.stack.home import read_json
from ringleader.cli.stack.process import PidIdentity
from ringleader.client import Client, Job
from ringleader_api.tracking import Mlflow
from ringleader_api.tracking.mlflow import JOB_TAG, TrackerDown

DIGITS = Path(__file__).parents[2] / "jobs" / "ringleader_jobs" / "digits.yaml"
DEADLINE_S = 300


def digits(**changes: object) -> dict[str, Any]:
    job: dict[str, Any] = {
        "name": "survivor",
        "entrypoint": "ringleader_jobs.digits:train",
        "params": {"lr": 0.1, "epochs": 12},
        "workers": {"min": 1, "max": 3},
        "batch": {"global_size": 64},
    }
    return job | changes


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("alone")
    (folder / "job.yaml").write_text(json.dumps(digits()))
    with run_alone(folder / "job.yaml", folder) as alone:
        return alone.sha256()


def gated(stack: Running, folder: Path, **changes: object) -> Job:
    """The same, once all its workers are there; it takes its time behind step 30 until `let_go`."""
    for file in (Path(__file__).parent / "gated" / "gated.py", Path(pace.__file__)):
        shutil.copy(file, folder)
    params = {"lr": 0.1, "epochs": 12, "gates": pace.gates(folder, 30)}
    spec = digits(entrypoint="gated:train", working_dir=".", params=params, **changes)
    job, most = stack.client.submit(spec, working_dir=folder), spec["workers"]["max"]
    wait_for(f"a world of {most}", lambda: job.refresh().view.world_size == most, DEADLINE_S)
    return job


def let_go(folder: Path) -> None:
    pace.open_gate({"gates": pace.gates(folder, 30)}, 30)


def at_step(job: Job, step: int) -> None:
    wait_for(f"step {step}", lambda: job.refresh().view.progress.step >= step, DEADLINE_S)


def every_step_once(job: Job) -> None:
    steps = [point.step for point in job.metrics("loss", max_points=10_000)]
    assert steps == list(range(1, len(steps) + 1))
    assert len(steps) == job.refresh().view.progress.total_steps


@pytest.mark.timeout(2 * DEADLINE_S)
def test_a_killed_worker_of_a_server_job_costs_no_bit(
    stack: Running, undisturbed: str, tmp_path: Path
) -> None:
    job = gated(stack, tmp_path, sync="parameter_server", workers={"min": 1, "max": 2}, batch=SHARDED)
    at_step(job, 20)
    victim = next(w for w in job.workers() if w.role == "worker" and w.rank == 1)
    os.kill(victim.pid, signal.SIGKILL)
    let_go(tmp_path)
    result = job.wait(timeout=DEADLINE_S)
    assert result.weights_sha256 == undisturbed
    every_step_once(job)


@pytest.mark.timeout(2 * DEADLINE_S)
def test_a_server_and_the_supervisor_that_chaos_kills_cost_no_bit(
    stack: Running, undisturbed: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    workers = {"min": 1, "max": 2, "cpus": 0.5}
    job = gated(stack, tmp_path, sync=BACKED, workers=workers, batch=SHARDED)
    at_step(job, 10)
    words = ("--faults", "server,supervisor", "--acts", "2", "--every-s", "0.3", "--seed", str(BOTH))
    capsys.readouterr()
    assert main(["chaos", job.id, *words, "-o", "json"], connect=lambda: Client(stack.url, stack.token)) == 0
    *acts, toll = map(json.loads, capsys.readouterr().out.splitlines())
    assert [(act["fault"], act["done"]) for act in acts] == [("server", True), ("supervisor", True)]
    assert (toll["steps_lost"], toll["attempts"]) == (0, 0)
    let_go(tmp_path)
    result = job.wait(timeout=DEADLINE_S)
    assert result.weights_sha256 == undisturbed
    every_step_once(job)
    assert [e.data["worker"][0] for e in job.events() if e.type == "worker.lost"] == ["s"]
    assert [e.data["start"] for e in job.events() if e.type == "supervisor.returned"] == [2]


@pytest.mark.timeout(2 * DEADLINE_S)
def test_a_killed_control_plane_adopts_the_job_that_ran_on(
    stack: Running, undisturbed: str, tmp_path: Path
) -> None:
    job = gated(stack, tmp_path)
    at_step(job, 20)
    before = {w.id: w.pid for w in job.workers()}
    os.kill(service(stack, "api"), signal.SIGKILL)
    wait_for("the control plane's return", lambda: answers(stack), 120)
    at_step(job, 40)
    assert {w.id: w.pid for w in job.workers()} == before
    let_go(tmp_path)
    result = job.wait(timeout=DEADLINE_S)
    assert job.refresh().view.attempt == 1
    assert result.weights_sha256 == undisturbed
    every_step_once(job)


@pytest.mark.timeout(2 * DEADLINE_S)
def test_a_killed_mlflow_holds_no_job_up_and_in_the_end_every_step_once(
    stack: Running, undisturbed: str, tmp_path: Path
) -> None:
    job = gated(stack, tmp_path, workers={"min": 1, "max": 1}, batch=SHARDED)  # alone it takes longest
    mlflow = Mlflow(read_json(stack.home / "run" / "up.json")["mlflow"])
    run_id = wait_for("a run", lambda: job.refresh().view.tracking.run_id, DEADLINE_S)
    wait_for("its first points", lambda: held(mlflow, run_id, "loss"), 120)
    guard = guard_of(stack, "mlflow")
    with nobody_restarts(stack):
        os.kill(service(stack, "mlflow"), signal.SIGKILL)
        wait_for("end of MLflow", lambda: not guard.alive)
        at_step(job, job.refresh().view.progress.step + 5)
        with pytest.raises(TrackerDown):
            held(mlflow, run_id, "loss")
    wait_for("MLflow's return", lambda: runs(stack, job), 120)
    assert not job.refresh().state.ended
    let_go(tmp_path)
    result = job.wait(timeout=DEADLINE_S)
    assert result.weights_sha256 == undisturbed
    every_step_once(job)
    wait_for("its end", lambda: [run["info"]["status"] for run in runs(stack, job)] == ["FINISHED"], 120)
    (run,) = runs(stack, job)
    assert run["info"]["run_id"] == job.refresh().view.tracking.run_id == result.run_id == run_id
    for name in job.metric_names():
        points = job.metrics(name, max_points=10_000)
        assert held(mlflow, run_id, name) == [(point.step, point.value) for point in points], name
    assert held(mlflow, run_id, "loss")[-1] == (result.steps, result.loss)
    assert held(mlflow, run_id, "final_accuracy") == [(result.steps, result.scores["accuracy"])]


@pytest.mark.timeout(2 * DEADLINE_S)
def test_a_resize_down_and_up_while_training_costs_no_bit(
    stack: Running, undisturbed: str, tmp_path: Path
) -> None:
    job = gated(stack, tmp_path)
    at_step(job, 15)
    job.resize(min=1, max=1)
    wait_for("a world of one", lambda: job.refresh().view.world_size == 1, DEADLINE_S)
    job.resize(min=1, max=3)
    wait_for("a world of three", lambda: job.refresh().view.world_size == 3, DEADLINE_S)
    let_go(tmp_path)
    result = job.wait(timeout=DEADLINE_S)
    assert result.weights_sha256 == undisturbed
    every_step_once(job)
    assert "worker.lost" not in [event.type for event in job.events()]


@pytest.mark.timeout(2 * DEADLINE_S)
def test_the_librarys_own_collective_trains_as_well(stack: Running) -> None:
    sync = {"intra_node": "ring", "inter_node": "ring", "algorithm": "native"}
    job = stack.client.submit(digits(sync=sync, workers={"min": 2, "max": 2}))
    result = job.wait(timeout=DEADLINE_S)
    assert result.scores["accuracy"] > 0.9
    assert not result.reproducible
    every_step_once(job)


@pytest.mark.timeout(2 * DEADLINE_S)
def test_a_ray_that_is_lost_is_told_of_and_comes_back_and_the_job_goes_on_as_its_next_attempt(
    stack: Running, undisturbed: str, tmp_path: Path
) -> None:
    job = gated(stack, tmp_path, checkpoint={"every_steps": 10})
    wait_for("a checkpoint", lambda: "checkpoint.saved" in kinds(job), DEADLINE_S)
    guard, head = guard_of(stack, "ray"), service(stack, "ray")
    ray = [identity for pid in below(guard.pid) - {head} if (identity := PidIdentity.of(pid))]
    workers = {worker.pid for worker in job.workers()}
    assert len(workers) == 3
    assert workers < {identity.pid for identity in ray}

    with nobody_restarts(stack):
        for identity in ray:
            identity.send(signal.SIGKILL)
        wait_for(
            "word of it", lambda: any("the cluster cannot be reached" in t for t in troubles(stack)), 120
        )
        waiting = stack.client.submit(digits(name="waiting", params={"epochs": 1}, workers={"max": 1}))
        wait_for("why it waits", lambda: reason(waiting) == "cluster_unreachable", 120)
        wait_for("end of the head", lambda: not guard.alive, 120)
        assert not [identity.pid for identity in ray if identity.alive]
        assert job.refresh().state in {"running", "recovering"}
        assert job.view.attempt == 1
        newest = max(int(file.parent.name.split("-")[1]) for file in manifests(stack, job))

    let_go(tmp_path)
    result = job.wait(timeout=DEADLINE_S)
    assert result.weights_sha256 == undisturbed
    assert (job.view.attempt, job.view.failures.spent) == (2, 0)
    every_step_once(job)
    began = [e.data["step"] for e in job.events() if e.type == "checkpoint.restored"]
    assert began == [newest]
    _, again = (e.time for e in job.events() if e.type == "job.starting")
    reached = max(point.step for point in job.metrics("loss") if point.time < again)
    assert result.attempts == 2
    assert result.steps_lost >= reached - newest, "what was trained behind the checkpoint was trained twice"
    assert result.wall_s >= result.compute_s > 0
    assert kinds(job).count("job.starting") == 2
    assert waiting.wait(timeout=DEADLINE_S).steps == 23
    assert waiting.view.attempt == 1
    assert troubles(stack) == []


SHARDED = {"global_size": 64, "logical_shards": 3}
BACKED = {"inter_node": "parameter_server", "intra_node": "parameter_server", "server_backups": 1}
BOTH = 1
"""A seed that draws a server first, then the supervisor."""


def guard_of(stack: Running, name: str) -> PidIdentity:
    """Of a service, as recorded."""
    guard = PidIdentity.read(read_json(stack.home / "run" / f"{name}.json"))
    assert guard is not None
    return guard


def service(stack: Running, name: str) -> int:
    """The process that the guard has started; what orphans it has adopted came later."""
    return children(guard_of(stack, name).pid)[0]


@contextmanager
def nobody_restarts(stack: Running) -> Iterator[None]:
    """`up` stands still while the block runs, so that there is time to look."""
    up = PidIdentity.read(read_json(stack.home / "run" / "up.json"))
    assert up is not None
    up.send(signal.SIGSTOP)
    try:
        yield
    finally:
        up.send(signal.SIGCONT)


def troubles(stack: Running) -> list[str]:
    headers = {"Authorization": f"Bearer {stack.token}"}
    answer = httpx.get(f"{stack.url}/readyz", headers=headers, timeout=20, trust_env=False).json()
    return [str(told) for told in answer["trouble"]]


def held(mlflow: Mlflow, run_id: str, key: str) -> list[tuple[int, float]]:
    """Each point of one metric in a run: step, value."""
    return sorted((point.step, point.value) for point in mlflow.history(run_id, key))


def runs(stack: Running, job: Job) -> list[dict[str, Any]]:
    """Of a job, as found through our log-in; none while MLflow is away."""
    experiment = job.view.tracking.url.split("/")[-3]
    answer = httpx.post(
        f"{stack.url}/mlflow/api/2.0/mlflow/runs/search",
        json={"experiment_ids": [experiment], "filter": f"tags.`{JOB_TAG}` = '{job.id}'"},
        headers={"Authorization": f"Bearer {stack.token}"},
        timeout=20,
        trust_env=False,
    )
    return list(answer.json().get("runs", [])) if answer.is_success else []


def reason(job: Job) -> str:
    why = job.refresh().view.pending_reason
    return why.code if why else ""


def kinds(job: Job) -> list[str]:
    return [event.type for event in job.events()]


def manifests(stack: Running, job: Job) -> list[Path]:
    """Of its checkpoints that are complete."""
    return list((stack.home / "checkpoints" / job.id).glob("*/manifest.json"))


def answers(stack: Running) -> bool:
    try:
        return bool(stack.client.version())
    except Exception:
        return False
