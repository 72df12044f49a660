"""What is told to MLflow: names that it takes, and one job's trouble that is no other's."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from control_plane import SPEC, Stage, event, metric, outcome, stage
from mlflow.utils.validation import _validate_metric_name, _validate_param_name, _validate_tag_name
from sqlalchemy import update

from ringleader import local_session
from ringleader.errors import SpecInvalid
from ringleader.wire.states import State
from ringleader_api.store.tables import Event, ExportCursor, Job
from ringleader_api.tracking import Exporter, Mlflow, records
from ringleader_api.tracking.mlflow import MlflowPoint, TrackerRefused
from ringleader_api.tracking.system import MOST_TOLD

NAMES = [
    *("", ".", "..", "...", "..x", "/", "//", "/x", "x/", "a//b", "a/./b", "a/../b", "../../x", "a@b/../c"),
    *("loss", "val/loss", "acc@1", "a.b", "täst", "x\n", "a\\udcff", "x" * 300, "/" * 300),
    *("a/" * 150, "x" * 198 + "/..y", "x" * 198 + "/.y"),
]


@pytest.mark.parametrize("name", NAMES, ids=[repr(n)[:20] for n in NAMES])
def test_mlflow_takes_every_name_the_same_each_time(name: str) -> None:
    job = Job(id="job_a", owner="o", submitted={"params": {name: 1}, name: 2}, labels={name: "x"})
    for key, _ in records.params(job):
        _validate_param_name(key)
        assert len(key) <= 250
    for key in records.tags(job):
        _validate_tag_name(key)
    for key in (
        records.mlflow_key(name),
        f"final_{records.mlflow_key(name)}",
        f"recovery_{records.mlflow_key(name)}",
    ):
        _validate_metric_name(key)
    assert records.params(job) == records.params(job)


@pytest.mark.parametrize("name", ["loss", "val/loss", "a.b", "lr:0", "x y", "x/..y"])
def test_a_name_that_mlflow_takes_stays_as_it_is(name: str) -> None:
    assert records.mlflow_key(name) == name


def test_params_that_are_cleaned_alike_are_all_kept() -> None:
    submitted = {"a@b": 1, "a#b": 2, "a_b": 3, "p.q": 4, "p": {"q": 5}}
    found = records.params(Job(submitted=submitted))
    assert found == [("a_b", "1"), ("a_b_2", "2"), ("a_b_3", "3"), ("p.q", "4"), ("p.q_2", "5")]


def test_params_hold_no_credential_and_no_address_of_an_alert() -> None:
    submitted = {
        "env": {"KEY": "secret"},
        "alerts": [{"channels": [{"webhook": "https://hooks.example/secret"}]}],
        "checkpoint": {"uri": "s3://user:secret@store/a?signed=secret"},
    }
    found = records.params(Job(submitted=submitted))
    assert found == [("checkpoint.uri", "s3://(left out)@store/a?(left out)")]


def test_metrics_that_are_cleaned_alike_are_told_apart_also_by_the_process_after(tmp_path: Path) -> None:
    here: Stage = stage(tmp_path)
    job_id = here.running()
    mlflow = Keeping(broken="")
    told = [{"a@b": 0.1}, {"a#b": 0.2, "a_b": 0.3}, {"a_b_2": 0.4}, {"a#b": 0.5}, {"a_b": 0.6, "a@b": 0.7}]
    for seq, values in enumerate(told, start=1):
        here.post(job_id, records=[metric(seq, seq, **values)])
        Exporter(here.control.store, mlflow).round()  # each time a new process
    keys = ["a_b", "a_b_2", "a_b_3", "a_b_2_2", "a_b_2", "a_b_3", "a_b"]
    assert sorted(mlflow.metrics[job_id]) == sorted(keys)
    exporter = Exporter(here.control.store, again := Keeping(broken=""))
    with here.control.store.write() as session:
        session.execute(update(ExportCursor).values(metric_id=0))
    exporter.round()
    assert sorted(again.metrics[job_id]) == sorted(keys), "one that tells all of it uses the same names"
    here.control.close()


def test_scores_that_are_cleaned_alike_are_told_apart() -> None:
    job = Job(result={"steps": 3, "scores": {"f@1": 0.1, "f#1": 0.2}}, finished_at=datetime.now(UTC))
    assert [(p.key, p.value) for p in records.score_points(job)] == [("final_f_1", 0.2), ("final_f_1_2", 0.1)]


class Keeping(Mlflow):
    """Keeps in memory what it is told; an answer about a run of `broken` is none."""

    def __init__(self, broken: str) -> None:
        super().__init__("http://127.0.0.1:9")
        self.broken = broken
        self.metrics: dict[str, list[str]] = {}

    def _call(self, method: str, path: str, body: dict[str, Any], *, absent_ok: bool = False) -> Any:
        return {"experiment": {"experiment_id": "1"}, "runs": [], "metrics": []}

    def create_run(self, experiment_id: str, name: str, start_ms: int, tags: dict[str, str]) -> str:
        return tags[records.JOB_TAG]

    def log_metrics(self, run_id: str, points: Sequence[MlflowPoint]) -> None:
        if run_id == self.broken:
            raise ValueError("Expecting value: line 1 column 1 (char 0)")
        self.metrics.setdefault(run_id, []).extend(p.key for p in points)


class Held(Keeping):
    """Keeps points, and gives them back; an answer that is `lost` is an error of its own."""

    def __init__(self) -> None:
        super().__init__(broken="")
        self.points: list[MlflowPoint] = []
        self.lost = False

    def log_metrics(self, run_id: str, points: Sequence[MlflowPoint]) -> None:
        self.points += points
        if self.lost:
            raise ValueError("the answer was lost")

    def history(self, run_id: str, key: str) -> Iterator[MlflowPoint]:
        yield from (point for point in self.points if point.key == key)


def test_a_sample_of_system_metrics_is_told_once_and_of_many_workers_of_some(tmp_path: Path) -> None:
    here: Stage = stage(tmp_path)
    job_id = here.running()
    began = datetime.fromisoformat(here.client.get(f"/api/v1/jobs/{job_id}").json()["started_at"])

    def samples(*numbers: int, workers: int = 1) -> list[dict[str, Any]]:
        uses = [
            {"kind": "worker", "id": f"w{n}", "node": "n1", "figures": {"cpu_percent": 9.0}}
            for n in range(workers)
        ]
        uses.append(
            {"kind": "node", "id": "n1", "node": "n1", "figures": {"cpu_percent": 5.0, "memory_bytes": 1.0}}
        )
        times = (began + timedelta(seconds=5 * n) for n in numbers)
        return [{"at": at.isoformat(), "span_s": 5.0, "uses": uses} for at in times]

    mlflow = Held()
    for some in (samples(1, 2), samples(1, 2, 3), []):
        here.post(job_id, system=some)
        Exporter(here.control.store, mlflow).round()  # each time a new process
    told = ["system/n1/cpu_percent", "system/n1/memory_bytes", "system/w0/cpu_percent"]
    assert sorted((p.key, p.step) for p in mlflow.points) == sorted(
        (key, 5 * n) for key in told for n in (1, 2, 3)
    )
    mlflow.lost = True
    here.post(job_id, system=samples(4, 5))
    exporter = Exporter(here.control.store, mlflow)
    exporter.round()
    assert exporter.trouble == ""
    mlflow.lost = False
    Exporter(here.control.store, mlflow).round()
    assert len(mlflow.points) == len(set(mlflow.points)) == len(told) * 5, (
        "an answer that was lost repeats nothing"
    )
    here.post(job_id, system=samples(6, workers=100))
    Exporter(here.control.store, mlflow).round()
    assert len(mlflow.points) == len(told) * 5 + 2 + MOST_TOLD - 1
    here.post(job_id, system=samples(7), records=[outcome(1, "failed", "no_step")])
    here.tick(2)
    Exporter(here.control.store, mlflow, system=False).round()
    assert max(p.step for p in mlflow.points) == 30, "switched off"
    here.control.close()


def test_a_node_is_called_by_its_address_and_keeps_its_name_whoever_comes_later(tmp_path: Path) -> None:
    here: Stage = stage(tmp_path)
    job_id = here.running()
    first, second, silent = ("a1" * 28, "b2" * 28, "c3" * 28)

    def sample(at: str, *nodes: str) -> list[dict[str, Any]]:
        uses = [{"kind": "node", "id": node, "node": node, "figures": {"cpu_percent": 5.0}} for node in nodes]
        return [{"at": at, "span_s": 5.0, "uses": uses}]

    def joined(seq: int, node: Any, address: Any) -> dict[str, Any]:
        return event(seq, "worker.joined", worker=f"w{seq}", node=node, address=address)

    mlflow = Held()
    told = [joined(1, first, "10.0.0.1"), joined(2, ["odd"], "10.0.0.9"), joined(3, silent, None)]
    here.post(job_id, records=told, system=sample("2030-01-01T00:00:01Z", first, silent))
    exporter = Exporter(here.control.store, mlflow)
    exporter.round()
    here.post(job_id, records=[joined(4, second, "10.0.0.1"), joined(5, first, "10.0.0.2")])
    here.post(job_id, system=sample("2030-01-01T00:00:06Z", first, second))
    exporter.round()
    figure = "cpu_percent"
    names = ["10.0.0.1", "c3c3c3c3c3", "10.0.0.1", "10.0.0.1 b2b2b2b2b2"]
    assert [p.key for p in mlflow.points] == [f"system/{name}/{figure}" for name in names]
    here.control.close()


def test_an_error_for_one_job_does_not_keep_later_ones_out(tmp_path: Path) -> None:
    here: Stage = stage(tmp_path)
    first, second = here.running(), here.submit(workers={"min": 1, "max": 1})
    here.tick()
    for job_id in (first, second):
        here.post(job_id, records=[metric(1, 1, loss=0.5)])
    mlflow = Keeping(broken=min(first, second))
    exporter = Exporter(here.control.store, mlflow)
    exporter.round()
    assert mlflow.metrics == {max(first, second): ["loss"]}
    mlflow.broken = ""
    exporter.round()
    exporter.round()
    assert mlflow.metrics == {first: ["loss"], second: ["loss"]}, "the other one is tried again"
    here.control.close()


class RefusingRuns(Keeping):
    """Makes no run for `broken`, so that nothing is noted of it."""

    def create_run(self, experiment_id: str, name: str, start_ms: int, tags: dict[str, str]) -> str:
        if tags[records.JOB_TAG] == self.broken:
            raise ValueError("no")
        return super().create_run(experiment_id, name, start_ms, tags)


def test_an_end_that_was_refused_is_copied_hours_later_and_what_is_complete_is_not_looked_at_again(
    tmp_path: Path,
) -> None:
    here: Stage = stage(tmp_path)
    refused, taken = here.running(), here.submit(workers={"min": 1, "max": 1})
    here.tick()
    mlflow = RefusingRuns(broken=refused)
    exporter = Exporter(here.control.store, mlflow, now=here.time)
    for job_id in (refused, taken):
        here.post(job_id, records=[metric(1, 1, loss=0.5), outcome(1, "failed", "no_step")])
    here.tick(2)
    assert {here.state(refused), here.state(taken)} == {"failed"}
    for _ in range(2):
        exporter.round()
        assert exporter._unfinished() == [refused]
        here.time.pass_s(10 * 3600)
    mlflow.broken = ""
    for _ in range(3):
        exporter.round()
    assert mlflow.metrics == {refused: ["loss"], taken: ["loss"]}
    assert exporter._unfinished() == []
    here.control.close()


class Reset(Keeping):
    """Does not know the run `gone` any more."""

    gone = ""

    def log_metrics(self, run_id: str, points: Sequence[MlflowPoint]) -> None:
        if run_id == self.gone:
            raise TrackerRefused("RESOURCE_DOES_NOT_EXIST")
        super().log_metrics(run_id, points)


def test_a_run_that_mlflow_refuses_keeps_no_deleted_job(tmp_path: Path) -> None:
    here: Stage = stage(tmp_path, mlflow_url="http://127.0.0.1:9/mlflow")
    kept, deleted = here.running(), here.submit(workers={"min": 1, "max": 1})
    here.tick()
    exporter = Exporter(here.control.store, mlflow := Reset(broken=""), now=here.time)
    mlflow.gone = deleted
    for job_id in (kept, deleted):
        here.post(job_id, records=[metric(1, 1, loss=0.5), outcome(1, "failed", "no_step")])
    here.tick(2)
    exporter.round()
    assert exporter._unfinished() == [deleted], "a job that is there waits until its run is taken"
    here.client.delete(f"/api/v1/jobs/{deleted}")
    here.tick()
    assert here.cluster.forgotten == [], "it may be taken yet"
    for _ in range(2):  # it sits one round out
        exporter.round()
    here.tick()
    assert here.cluster.forgotten == [deleted]
    assert (exporter._unfinished(), exporter._refused) == ([], {})
    assert (mlflow.metrics, here.state(kept)) == ({kept: ["loss"]}, "failed")
    here.control.close()


def test_a_job_that_starts_and_ends_between_two_rounds_is_copied(tmp_path: Path) -> None:
    here: Stage = stage(tmp_path)
    mlflow = Keeping(broken="")
    exporter = Exporter(here.control.store, mlflow, now=here.time)
    exporter.round()
    here.time.pass_s(10 * 3600)
    job_id = here.running()
    here.post(job_id, records=[metric(1, 1, loss=0.5), outcome(1, "failed", "no_step")])
    here.tick(2)
    exporter.round()
    assert mlflow.metrics == {job_id: ["loss"]}
    here.control.close()


def test_a_deleted_job_that_mlflow_has_not_seen_yet_stays_until_it_has(tmp_path: Path) -> None:
    here: Stage = stage(tmp_path, mlflow_url="http://127.0.0.1:9/mlflow")
    seen, never_begun = here.running(), here.submit()
    here.client.post(f"/api/v1/jobs/{never_begun}/cancel")
    here.post(seen, records=[metric(1, 1, loss=0.5), outcome(1, "failed", "no_step")])
    here.tick(2)
    for job_id in (seen, never_begun):
        assert here.client.delete(f"/api/v1/jobs/{job_id}").status_code == 204
    here.tick()
    assert here.cluster.forgotten == [never_begun], "the other one has a run to get"
    Exporter(here.control.store, mlflow := Keeping(broken=""), now=here.time).round()
    here.tick()
    assert (here.cluster.forgotten, mlflow.metrics) == ([never_begun, seen], {seen: ["loss"]})
    here.control.close()


class NoRuns(Keeping):
    """Takes none."""

    def create_run(self, experiment_id: str, name: str, start_ms: int, tags: dict[str, str]) -> str:
        raise TrackerRefused("INVALID_PARAMETER_VALUE")


def test_a_deleted_job_that_mlflow_makes_no_run_for_goes_without(tmp_path: Path) -> None:
    here: Stage = stage(tmp_path, mlflow_url="http://127.0.0.1:9/mlflow")
    job_id = here.running()
    here.post(job_id, records=[outcome(1, "failed", "no_step")])
    here.tick(2)
    here.client.delete(f"/api/v1/jobs/{job_id}")
    Exporter(here.control.store, NoRuns(broken=""), now=here.time).round()
    here.tick()
    assert here.cluster.forgotten == [job_id]
    here.control.close()


@pytest.mark.parametrize("step", ["soon", None, True, 1.5, -1, 1 << 63, [3], {"at": 3}])
def test_a_recovery_whose_step_is_none_takes_that_of_the_loss_before_it(step: Any) -> None:
    def told(seq: int, kind: str, **data: Any) -> Event:
        return Event(seq=seq, type=kind, at=datetime(2026, 11, 20, tzinfo=UTC), data=data)

    events = [told(1, "worker.lost", step=7), told(2, "recovered", step=step, total_s=0.5)]
    found = records.recovery_points(events, 0)
    assert [(p.key, p.value, p.step) for p in found] == [("recovery_total_s", 0.5, 7)]


def test_a_run_is_told_what_its_job_has_cost_over_all_attempts() -> None:
    spent = {"wall_s": 10.0, "recovery_s": 0.25}
    job = Job(state=State.FAILED, attempt=3, generation=1, generations_before=4, recoveries=2, steps_lost=9)
    job.spent_before, job.spending, job.reason, job.result = spent, spent, None, None
    told = records.end_tags(job)
    names = ("attempts", "generations", "recoveries", "steps_lost", "wall_s", "recovery_s")
    assert [told[f"ringleader.{name}"] for name in names] == ["3", "5", "2", "9", "20.0", "0.5"]


def test_a_model_is_registered_only_where_there_is_a_registry(tmp_path: Path) -> None:
    here: Stage = stage(tmp_path)
    asked = {**SPEC, "register": "net"}
    refused = here.client.post("/api/v1/jobs", json=asked)
    assert (refused.status_code, refused.json()["errors"][0]["pointer"]) == (422, "/register")
    hosted = here.client.post(
        "/api/v1/jobs", json={**asked, "entrypoint": "train.py", "framework": "torchrun"}
    )
    assert "register" in hosted.json()["detail"]
    tracked: Stage = stage(tmp_path / "tracked", mlflow_url="http://127.0.0.1:9")
    assert tracked.client.post("/api/v1/jobs", json=asked).json()["spec"]["register"] == "net"
    with pytest.raises(SpecInvalid, match="a local session registers no model"), local_session(asked):
        pytest.fail("the session has begun")
