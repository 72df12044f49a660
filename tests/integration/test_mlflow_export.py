"""Jobs in a real MLflow server: complete, nothing twice, and an outage that nobody else feels."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from control_plane import RESULT, URL, Stage, event, metric, outcome, stage, status
from fastapi.testclient import TestClient
from mlflow_server import MlflowServer, mlflow_server
from waiting import wait_for

from ringleader_api.tracking import Exporter, Mlflow
from ringleader_api.tracking.mlflow import MlflowPoint, TrackerDown, TrackerRefused

pytestmark = pytest.mark.timeout(300)
HANG_S = 60.0
STEPS = 1300  # three metrics a step: several log-batch calls


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MlflowServer]:
    with mlflow_server(tmp_path_factory.mktemp("mlflow")) as running:
        yield running


@pytest.fixture
def here(tmp_path: Path, server: MlflowServer) -> Iterator[Stage]:
    made = stage(tmp_path, mlflow_url=server.url)
    yield made
    made.control.close()


def exporter(here: Stage) -> Exporter:
    """A fresh one, as after a restart of the process."""
    return Exporter(here.control.store, Mlflow(here.control.settings.mlflow_url))


def copier(here: Stage) -> Exporter:
    """One that copies artifacts too."""
    mlflow = Mlflow(here.control.settings.mlflow_url)
    return Exporter(here.control.store, mlflow, home=here.home)


def train(here: Stage, job_id: str, steps: range) -> None:
    """Post some settled steps and one recovery."""
    seq = steps.start + 1
    points = [
        metric(seq + k, s, loss=1 / (s + 1), world_size=3, samples_per_s=9.5) for k, s in enumerate(steps)
    ]
    lost = event(2 * seq, "worker.lost", worker="w1", step=steps.start + 5)
    back = event(2 * seq + 1, "recovered", detect_s=0.01, total_s=0.05, steps_lost=0)
    here.post(job_id, status=status("running", step=steps.stop), records=[*points, lost, back])


def run_of(here: Stage, job_id: str) -> dict[str, Any]:
    run_id = here.job(job_id)["tracking"]["run_id"]
    answer = httpx.get(
        f"{here.control.settings.mlflow_url}/api/2.0/mlflow/runs/get",
        params={"run_id": run_id},
        trust_env=False,
        timeout=HANG_S,
    )
    return dict(answer.json()["run"])


def held(here: Stage, job_id: str, key: str) -> list[MlflowPoint]:
    run_id = here.job(job_id)["tracking"]["run_id"]
    return sorted(Mlflow(here.control.settings.mlflow_url).history(run_id, key), key=lambda p: p.step)


def assert_complete(here: Stage, job_id: str, steps: int) -> None:
    for key in ("loss", "world_size", "samples_per_s"):
        points = held(here, job_id, key)
        assert Counter(p.step for p in points) == Counter(range(steps)), f"{key}: each step once"
    assert [p.value for p in held(here, job_id, "loss")] == [1 / (s + 1) for s in range(steps)]


def test_a_job_is_one_run_with_params_metrics_recoveries_and_its_end(here: Stage) -> None:
    job_id = here.running(project="vision", env={"SECRET": "hush"})
    train(here, job_id, range(STEPS))
    exporter(here).round()
    run = run_of(here, job_id)
    assert run["info"]["status"] == "RUNNING"
    here.post(job_id, records=[outcome(1, "succeeded", result=RESULT)])
    here.tick()
    here.time.pass_s(5)
    copier = exporter(here)
    copier.round()
    copier.round()
    assert_complete(here, job_id, STEPS)
    run = run_of(here, job_id)
    params = {p["key"]: p["value"] for p in run["data"]["params"]}
    tags = {t["key"]: t["value"] for t in run["data"]["tags"]}
    assert params.items() >= {("params.lr", "0.1"), ("params.layers.hidden", "64"), ("workers.max", "3")}
    assert "hush" not in str(run)
    assert (run["info"]["run_name"], run["info"]["status"], tags["ringleader.job_id"]) == (
        "digits",
        "FINISHED",
        job_id,
    )
    assert tags["ringleader.weights_sha256"] == RESULT["weights_sha256"]
    assert [(p.step, p.value) for p in held(here, job_id, "recovery_total_s")] == [(5, 0.05)]
    assert [(p.step, p.value) for p in held(here, job_id, "final_accuracy")] == [(100, 0.97)]
    job = here.job(job_id)
    assert job["result"]["run_id"] == job["tracking"]["run_id"]
    assert job["tracking"]["url"].startswith(f"{URL}/mlflow/#/experiments/")


def test_artifacts_lie_beside_the_metrics_once_whatever_was_told(here: Stage) -> None:
    job_id = here.running()
    folder = here.home / "jobs" / job_id / "artifacts"
    folder.mkdir(parents=True)
    for file in ("net-00000002.txt", "net-00000004.txt"):
        (folder / file).write_text(file)
    (here.home / "secret.txt").write_text("hush")
    (folder / "link.txt").symlink_to(here.home / "secret.txt")
    told = [("net", "net-00000002.txt"), ("up", "../../../secret.txt"), ("..", "net-00000002.txt"), (1, None)]
    told += [("link", "link.txt"), ("gone", "gone.txt")]
    here.post(
        job_id,
        records=[event(k, "artifact.saved", name=n, file=f) for k, (n, f) in enumerate(told, start=1)],
    )
    copier(here).round()
    here.post(job_id, records=[event(9, "artifact.saved", name="net", file="net-00000004.txt")])
    for _ in range(2):  # each as after a crash
        copier(here).round()
    folder_url = f"{here.control.settings.mlflow_url}/api/2.0/mlflow/artifacts/list"
    query = {"run_id": here.job(job_id)["tracking"]["run_id"]}

    def held(**path: str) -> list[str]:
        answer = httpx.get(folder_url, params={**query, **path}, trust_env=False, timeout=HANG_S)
        return sorted(each["path"] for each in answer.json().get("files", []))

    assert held() == ["net"]
    assert held(path="net") == ["net/net-00000002.txt", "net/net-00000004.txt"]


@pytest.mark.parametrize(
    ("how", "code", "shown"), [("failed", "entrypoint_raised", "FAILED"), ("cancelled", "", "KILLED")]
)
def test_the_control_plane_says_how_the_run_ended(here: Stage, how: str, code: str, shown: str) -> None:
    job_id = here.running()
    here.post(job_id, records=[outcome(1, how, code)])
    here.tick()
    exporter(here).round()
    assert run_of(here, job_id)["info"]["status"] == shown


class Dying(Mlflow):
    """Loses its process after the given number of calls that changed something: before or after MLflow took it."""

    def __init__(self, url: str, calls: int, taken: bool) -> None:
        super().__init__(url)
        self.left = calls
        self.taken = taken

    def _call(self, method: str, path: str, body: dict[str, Any], *, absent_ok: bool = False) -> Any:
        if method == "GET" or path.endswith("search"):
            return super()._call(method, path, body, absent_ok=absent_ok)
        self.left -= 1
        if self.left < 0 and self.taken:
            super()._call(method, path, body, absent_ok=absent_ok)
        if self.left < 0:
            raise KeyboardInterrupt(path)
        return super()._call(method, path, body, absent_ok=absent_ok)


class DyingAt(Mlflow):
    """Loses its process at a call to this path: before or after MLflow took it."""

    def __init__(self, url: str, end: str, taken: bool) -> None:
        super().__init__(url)
        self.end = end
        self.taken = taken

    def _answer(
        self, method: str, path: str, asked: dict[str, Any], *, absent_ok: bool = False
    ) -> httpx.Response | None:
        if not path.endswith(self.end):
            return super()._answer(method, path, asked, absent_ok=absent_ok)
        if self.taken:
            super()._answer(method, path, asked, absent_ok=absent_ok)
        raise KeyboardInterrupt(path)


REGISTERING = (
    *("runs/log-batch", "runs/update"),
    *("registered-models/create", "/MLmodel", "/weights.safetensors", "model-versions/create"),
)
"""The calls that change something once a job has ended, in their order."""


def test_nothing_is_twice_whatever_call_the_exporter_dies_at(here: Stage) -> None:
    job_id = here.running(project="dying")
    train(here, job_id, range(700))
    here.post(job_id, records=[outcome(1, "succeeded", result=RESULT)])
    here.tick()
    deaths = 0
    for taken in (True, False):
        with pytest.raises(KeyboardInterrupt):
            Exporter(here.control.store, Dying(here.control.settings.mlflow_url, 1, taken)).round()
        deaths += 1
    while here.job(job_id)["tracking"]["run_id"] == "" or run_of(here, job_id)["info"]["status"] == "RUNNING":
        dying = Dying(here.control.settings.mlflow_url, deaths % 2, taken=True)
        try:
            Exporter(here.control.store, dying).round()
        except KeyboardInterrupt:
            deaths += 1
        assert deaths < 40
    exporter(here).round()
    assert deaths > 5
    assert_complete(here, job_id, 700)
    search = {"experiment_ids": [run_of(here, job_id)["info"]["experiment_id"]], "max_results": 10}
    url = f"{here.control.settings.mlflow_url}/api/2.0/mlflow/runs/search"
    answer = httpx.post(url, json=search, trust_env=False, timeout=HANG_S)
    assert len(answer.json()["runs"]) == 1, "one run a job"
    assert [p.step for p in held(here, job_id, "recovery_total_s")] == [5]


def left_weights(here: Stage, job_id: str, content: bytes) -> None:
    """The job has succeeded, and left these weights."""
    folder = here.home / "jobs" / job_id / "artifacts"
    folder.mkdir(parents=True)
    (folder / "weights.safetensors").write_bytes(content)
    here.post(job_id, records=[outcome(1, "succeeded", result=RESULT)])
    here.tick()


def registered(here: Stage, model: str) -> list[dict[str, Any]]:
    """The versions of a model, the newest first."""
    answer = httpx.get(
        f"{here.control.settings.mlflow_url}/api/2.0/mlflow/model-versions/search",
        params={"filter": f"name = '{model}'"},
        trust_env=False,
        timeout=HANG_S,
    )
    return list(answer.json().get("model_versions", []))


def tags_of(here: Stage, job_id: str) -> dict[str, str]:
    return {tag["key"]: tag["value"] for tag in run_of(here, job_id)["data"]["tags"]}


@pytest.mark.parametrize("taken", [True, False])
def test_final_weights_are_one_version_of_a_model_whatever_call_the_exporter_dies_at(
    here: Stage, taken: bool
) -> None:
    model = f"digits-{taken}"
    job_id = here.running(project="vision", register=model)
    content = bytes(range(256)) * 5000
    copier(here).round()
    left_weights(here, job_id, content)
    for path in REGISTERING:
        dying = DyingAt(here.control.settings.mlflow_url, path, taken)
        with pytest.raises(KeyboardInterrupt):
            Exporter(here.control.store, dying, home=here.home).round()
    copier(here).round()
    (version,) = registered(here, model)
    assert version["run_id"] == here.job(job_id)["tracking"]["run_id"]
    assert {tag["key"]: tag["value"] for tag in version["tags"]} == {
        "ringleader.job_id": job_id,
        "ringleader.project": "vision",
        "ringleader.weights_sha256": RESULT["weights_sha256"],
    }
    assert tags_of(here, job_id)["ringleader.registered"] == f"{model}/1"
    held = httpx.get(
        f"{here.control.settings.mlflow_url}/get-artifact",
        params={"run_id": version["run_id"], "path": "model/weights.safetensors"},
        trust_env=False,
        timeout=HANG_S,
    )
    assert held.content == content


def test_a_model_takes_no_version_of_another_project_and_none_of_a_job_without_weights(here: Stage) -> None:
    small = {"workers": {"min": 1, "max": 1}}
    first, other, without = (
        here.submit(project=project, register="shared-net", **small)
        for project in ("vision", "speech", "vision")
    )
    here.tick()
    left_weights(here, first, b"one")
    copier(here).round()
    left_weights(here, other, b"two")
    here.post(without, records=[outcome(1, "succeeded", result=RESULT)])
    here.tick()
    copier(here).round()
    assert [version["version"] for version in registered(here, "shared-net")] == ["1"]
    assert (
        tags_of(here, other)["ringleader.registered"] == "no: the model shared-net belongs to project vision"
    )
    assert tags_of(here, without)["ringleader.registered"] == "no: the job left no weights"


class RefusingVersions(Mlflow):
    """A registry that takes no version."""

    def create_version(self, name: str, source: str, run_id: str, tags: dict[str, str]) -> str:
        raise TrackerRefused("MLflow answered 403 to /model-versions/create: no")


def test_a_registry_that_refuses_keeps_no_run_going_and_is_asked_again(here: Stage) -> None:
    job_id = here.running(register="refused-net")
    left_weights(here, job_id, b"one")
    Exporter(here.control.store, RefusingVersions(here.control.settings.mlflow_url), home=here.home).round()
    assert run_of(here, job_id)["info"]["status"] == "FINISHED"
    assert tags_of(here, job_id)["ringleader.state"] == "succeeded"
    assert tags_of(here, job_id)["ringleader.registered"].startswith("not yet: MLflow answered 403")
    copier(here).round()
    assert tags_of(here, job_id)["ringleader.registered"] == "refused-net/1"
    assert len(registered(here, "refused-net")) == 1


def test_mlflows_page_is_reached_through_our_log_in_only(here: Stage) -> None:
    with here.client:
        page = here.client.get("/mlflow", follow_redirects=True)
        assert page.status_code == 200
        assert "<title>MLflow</title>" in page.text
        script = page.text.split('src="')[1].split('"')[0]
        assert here.client.get(f"/mlflow/{script}").status_code == 200
        body = {"name": "through-the-proxy"}
        made = here.client.post(
            "/mlflow/ajax-api/2.0/mlflow/experiments/create", json=body, headers={"Origin": URL}
        )
        assert made.status_code == 200, made.text
        found = here.client.get(
            "/mlflow/ajax-api/2.0/mlflow/experiments/get-by-name?experiment_name=through-the-proxy"
        )
        assert found.json()["experiment"]["name"] == "through-the-proxy"
        assert "content-security-policy" in found.headers
        stranger = TestClient(here.client.app, base_url=URL)
        assert stranger.get("/mlflow/").status_code == 401


def test_a_tracker_that_is_away_raises_that_and_nothing_else(here: Stage) -> None:
    job_id = here.running()
    train(here, job_id, range(3))
    away = Exporter(here.control.store, Mlflow("http://127.0.0.1:9/mlflow"))
    with pytest.raises(TrackerDown):
        away.round()
    assert here.job(job_id)["tracking"]["run_id"] == ""


def test_an_outage_of_mlflow_is_felt_by_nobody_and_made_up_for(tmp_path: Path, server: MlflowServer) -> None:
    here = stage(tmp_path / "home", mlflow_url=server.url, export_every_s=0.1, tick_s=0.05)
    with here.client:  # the threads run
        job_id = here.submit()
        wait_for("supervisor", lambda: here.cluster.alive.get((job_id, 1)))
        train(here, job_id, range(200))
        wait_for("run", lambda: here.job(job_id)["tracking"]["run_id"])
        server.stop()
        for start in range(200, 1000, 200):
            train(here, job_id, range(start, start + 200))
        here.post(job_id, records=[outcome(1, "succeeded", result=RESULT)])
        wait_for("end", lambda: here.state(job_id) == "succeeded")
        points = here.client.get(f"/api/v1/jobs/{job_id}/metrics?name=loss").json()["points"]
        assert len(points) == 1000, "what the tracker missed is stored"
        assert here.client.get("/readyz").status_code == 200
        assert here.client.get("/mlflow/").status_code == 502
        server.start()
        wait_for("finished run", lambda: run_of(here, job_id)["info"]["status"] == "FINISHED", HANG_S)
        assert_complete(here, job_id, 1000)
