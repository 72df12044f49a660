"""A job on the whole stack outlives what is killed around it, and ends with the bits of an undisturbed run."""

import json
import os
import signal
from pathlib import Path

import pytest
from waiting import wait_for
from whole_stack import Running

from ringleader.cli.demo.alone import undisturbed as run_alone
from ringleader.cli.main import main
from ringleader.client import Client, Job

DIGITS = Path(__file__).parents[2] / "jobs" / "ringleader_jobs" / "digits.yaml"
DEADLINE_S = 300


def digits(**changes: object) -> dict[str, object]:
    job = {
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


def at_step(job: Job, step: int) -> None:
    wait_for(f"step {step}", lambda: job.refresh().view.progress.step >= step, DEADLINE_S)


def every_step_once(job: Job) -> None:
    steps = [point.step for point in job.metrics("loss", max_points=10_000)]
    assert steps == list(range(1, len(steps) + 1))
    assert len(steps) == job.refresh().view.progress.total_steps


@pytest.mark.timeout(2 * DEADLINE_S)
def test_a_killed_worker_of_a_server_job_costs_no_bit(stack: Running, undisturbed: str) -> None:
    job = stack.client.submit(digits(sync="parameter_server", workers={"min": 1, "max": 2}, batch=SHARDED))
    at_step(job, 20)
    victim = next(w for w in job.workers() if w.role == "worker" and w.rank == 1)
    os.kill(victim.pid, signal.SIGKILL)
    result = job.wait(timeout=DEADLINE_S)
    assert result.weights_sha256 == undisturbed
    every_step_once(job)


@pytest.mark.timeout(2 * DEADLINE_S)
def test_a_server_and_the_supervisor_that_chaos_kills_cost_no_bit(
    stack: Running, undisturbed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    workers = {"min": 1, "max": 2, "cpus": 0.5}
    job = stack.client.submit(digits(sync=BACKED, workers=workers, batch=SHARDED))
    at_step(job, 10)
    words = ("--faults", "server,supervisor", "--acts", "2", "--every-s", "0.3", "--seed", str(BOTH))
    capsys.readouterr()
    assert main(["chaos", job.id, *words, "-o", "json"], connect=lambda: Client(stack.url, stack.token)) == 0
    *acts, toll = map(json.loads, capsys.readouterr().out.splitlines())
    assert [(act["fault"], act["done"]) for act in acts] == [("server", True), ("supervisor", True)]
    assert (toll["steps_lost"], toll["attempts"]) == (0, 0)
    result = job.wait(timeout=DEADLINE_S)
    assert result.weights_sha256 == undisturbed
    every_step_once(job)
    assert [e.data["worker"][0] for e in job.events() if e.type == "worker.lost"] == ["s"]
    assert [e.data["start"] for e in job.events() if e.type == "supervisor.returned"] == [2]


@pytest.mark.timeout(2 * DEADLINE_S)
def test_a_killed_control_plane_adopts_the_job_that_ran_on(stack: Running, undisturbed: str) -> None:
    job = stack.client.submit(digits())
    at_step(job, 20)
    before = {w.id: w.pid for w in job.workers()}
    os.kill(pid_of_api(stack), signal.SIGKILL)
    wait_for("the control plane's return", lambda: answers(stack), 120)
    at_step(job, 40)
    assert {w.id: w.pid for w in job.workers()} == before
    result = job.wait(timeout=DEADLINE_S)
    assert job.refresh().view.attempt == 1
    assert result.weights_sha256 == undisturbed
    every_step_once(job)


@pytest.mark.timeout(2 * DEADLINE_S)
def test_a_resize_down_and_up_while_training_costs_no_bit(stack: Running, undisturbed: str) -> None:
    job = stack.client.submit(digits())
    at_step(job, 15)
    job.resize(min=1, max=1)
    wait_for("a world of one", lambda: job.refresh().view.world_size == 1, DEADLINE_S)
    job.resize(min=1, max=3)
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


SHARDED = {"global_size": 64, "logical_shards": 3}
BACKED = {"inter_node": "parameter_server", "intra_node": "parameter_server", "server_backups": 1}
BOTH = 1
"""A seed that draws a server first, then the supervisor."""


def pid_of_api(stack: Running) -> int:
    """The service below the guard whose pid is recorded."""
    guard = json.loads((stack.home / "run" / "api.json").read_text())["pid"]
    return int(Path(f"/proc/{guard}/task/{guard}/children").read_text().split()[0])


def answers(stack: Running) -> bool:
    try:
        return bool(stack.client.version())
    except Exception:
        return False
