"""Jobs under accounts of their own: the bits of any other job, and nothing of the stack within their reach."""

import json
import os
import pwd
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pace
import pytest
from e2e.test_survival import DEADLINE_S, at_step, digits, every_step_once, undisturbed
from readable_python import can_run_as_others, readable_python
from waiting import wait_for
from whole_stack import Running, whole_stack

from ringleader.client import Client, Job
from ringleader.errors import RingleaderError

pytestmark = [
    pytest.mark.skipif(not can_run_as_others(), reason="only root may give jobs accounts of their own"),
    pytest.mark.timeout(2 * DEADLINE_S),
]
__all__ = ["undisturbed"]
ADA, BO = "nobody", "daemon"
"""The accounts of two users."""


@pytest.fixture(scope="module")
def jobs() -> Iterator[Path]:
    """Where jobs write."""
    with tempfile.TemporaryDirectory(prefix="rl-jobs-") as folder:
        yield Path(folder)


@pytest.fixture(scope="module")
def stack(jobs: Path) -> Iterator[Running]:
    table = {"RINGLEADER_RUN_AS": f"admin={ADA}, bo={BO}", "RINGLEADER_RUN_AS_FOLDER": str(jobs)}
    with readable_python() as before, whole_stack(settings=table, before=before) as running:
        yield running


@pytest.fixture
def folder() -> Iterator[Path]:
    """The job's working directory, in which every account may read."""
    with tempfile.TemporaryDirectory(prefix="rl-job-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


def user_of(pid: int) -> int:
    return Path(f"/proc/{pid}").stat().st_uid


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def gone(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


def gated(client: Client, folder: Path, **changes: object) -> Job:
    """Its steps wait behind step 30 for `pace.open_gate`."""
    for file in (Path(__file__).parent / "gated" / "gated.py", Path(pace.__file__)):
        shutil.copy(file, folder)
    params = {"lr": 0.1, "epochs": 12, "gates": pace.gates(folder, 30)}
    spec = digits(entrypoint="gated:train", working_dir=".", params=params, **changes)
    return client.submit(spec, working_dir=folder)


def test_a_job_under_another_account_has_the_bits_of_any_other_through_kills_and_a_pause(
    stack: Running, undisturbed: str, folder: Path, jobs: Path
) -> None:
    job = gated(stack.client, folder, checkpoint={"every_steps": 10})
    wait_for("a world of 3", lambda: job.refresh().state.ended or job.view.world_size == 3, DEADLINE_S)
    assert not job.state.ended, job.view.reason
    at_step(job, 20)
    before = {w.id: w.pid for w in job.workers()}
    assert {user_of(pid) for pid in before.values()} == {pwd.getpwnam(ADA).pw_uid}
    actors = {worker: parent_of(pid) for worker, pid in before.items()}
    assert {user_of(pid) for pid in actors.values()} == {0}
    child, actor = before["w1"], actors["w2"]
    os.kill(child, signal.SIGKILL)
    wait_for("the actor's end", lambda: gone(actors["w1"]))
    wait_for(
        "how it ended",
        lambda: [e.data["cause"] for e in job.events() if e.type == "worker.lost"] == ["died (SIGKILL)"],
        DEADLINE_S,
    )
    wait_for(
        "the next worker", lambda: "w3" in {w.id for w in job.workers() if w.rank is not None}, DEADLINE_S
    )
    os.kill(actor, signal.SIGKILL)
    wait_for("the child's end", lambda: gone(before["w2"]))
    wait_for("another one", lambda: "w4" in {w.id for w in job.workers() if w.rank is not None}, DEADLINE_S)
    assert next(w.pid for w in job.workers() if w.id == "w0") == before["w0"]
    job.pause()
    wait_for("the pause", lambda: job.refresh().view.state == "paused", DEADLINE_S)
    kept = jobs / "checkpoints" / job.id
    assert {path.lstat().st_uid for path in (kept, *kept.rglob("*"))} == {pwd.getpwnam(ADA).pw_uid}
    job.resume()
    pace.open_gate({"gates": pace.gates(folder, 30)}, 30)
    result = job.wait(timeout=DEADLINE_S)
    assert result.weights_sha256 == undisturbed
    every_step_once(job)
    taken = stack.home / "jobs" / job.id / "artifacts" / "weights.safetensors"
    assert taken.stat().st_uid == 0
    assert not list((jobs / "scratch").iterdir())
    again = stack.client.submit(digits(name="again", init_from=job.id, params={"lr": 0.1, "epochs": 1}))
    again.wait(timeout=DEADLINE_S)
    with pytest.raises(RingleaderError, match="account"):
        stack.client.submit(digits(checkpoint={"uri": "s3://bucket/there"}))


def test_nothing_of_the_stack_is_within_a_jobs_reach(stack: Running, folder: Path, jobs: Path) -> None:
    stack.client.access.add_user("bo", {"*": "submitter"})
    made = stack.client.access.make_token("bo's", user="bo")
    first = stack.client.submit(digits(name="first", checkpoint={"every_steps": 10}))
    first.wait(timeout=DEADLINE_S)
    shutil.copy(Path(__file__).parent / "foreign" / "foreign.py", folder)
    home, ray = stack.home, said_of_ray(stack)
    closed = [Path(ray["temp_dir"]), home, home / "run", home / "jobs", jobs / "checkpoints"]
    closed += [jobs / name / first.id for name in ("checkpoints", "jobs")]
    params = {
        "files": [str(home / name) for name in ("token", "secrets.key", "ringleader.db", "ray_token")],
        "folders": [str(path) for path in closed],
        "socket": str(home / "run" / "mlflow.sock"),
        "ray": ray["address"],
    }
    spec = digits(
        name="foreign", entrypoint="foreign:train", working_dir=".", params=params, batch={"global_size": 4}
    )
    with Client(stack.url, made.token) as bo:
        job = bo.submit(spec | {"workers": {"min": 1, "max": 1}}, working_dir=folder)
        job.wait(timeout=DEADLINE_S)
        told = next(line.line for line in job.logs() if line.line.startswith("found "))
    said: dict[str, Any] = json.loads(told.removeprefix("found "))
    entry = pwd.getpwnam(BO)
    assert said.pop("user") == [entry.pw_uid, entry.pw_gid, []]
    assert (said.pop("of Ray"), said.pop("descriptors")) == ([], ["/dev/null"])
    assert (int(said.pop("capabilities"), 16), said.pop("no new privileges")) == (0, "1")
    assert said.pop("the memory that Ray shares") == "got []"
    assert said.pop("Ray's store").startswith("AuthenticationError: RPC error: InvalidAuthToken")
    assert set(said.values()) == {"PermissionError"}, said
    assert len(said) == len(params["files"]) + len(params["folders"]) + 6, "each was tried"


def test_who_has_no_account_submits_nothing(stack: Running) -> None:
    stack.client.access.add_user("dee", {"*": "submitter"})
    made = stack.client.access.make_token("dee's", user="dee")
    with (
        Client(stack.url, made.token) as dee,
        pytest.raises(RingleaderError, match="the user dee has no account"),
    ):
        dee.submit(digits())


def said_of_ray(stack: Running) -> dict[str, str]:
    """Where its control store and its folder are."""
    log = (stack.home / "log" / "ray.log").read_text()
    found: dict[str, str] = json.loads(next(line for line in log.splitlines() if '"address"' in line))
    return found
