"""Sweeps through the API and the reconciler: made, carried out once, paused, cancelled, and seen by who may."""

import itertools
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from control_plane import SPEC, FakeCluster, Stage, metric, outcome, stage, status
from test_api_kills import Killed, MortalStore

from ringleader_api.reconciling import Sweeping
from ringleader_api.scheduling.snapshot import SchedulerRules
from ringleader_api.store import Fenced

SWEEP: dict[str, Any] = {
    "name": "lr",
    "template": {"entrypoint": SPEC["entrypoint"], "workers": {"min": 1, "max": 1}},
    "space": {"params.lr": {"values": [0.1, 0.2, 0.3]}},
    "method": "grid",
    "metric": {"name": "loss"},
    "parallel": 2,
}
ASHA = {"asha": {"rungs": [10], "reduction": 3}}
SETTLED_S = SchedulerRules().settle_s + 1


@pytest.fixture
def here(tmp_path: Path) -> Stage:
    return stage(tmp_path)


class Trials:
    """What the supervisors of a sweep's trials post, each record under a number of its own."""

    def __init__(self, here: Stage, sweep_id: str) -> None:
        self.here, self.sweep_id = here, sweep_id
        self._seq = itertools.count(1)

    def all(self) -> list[dict[str, Any]]:
        return list(self.here.client.get(f"/api/v1/sweeps/{self.sweep_id}/trials").json()["items"])

    def states(self) -> list[str]:
        return [one["state"] for one in self.all()]

    def sweep(self) -> dict[str, Any]:
        return dict(self.here.client.get(f"/api/v1/sweeps/{self.sweep_id}").json())

    def reach(self, number: int, step: int, loss: float, world_size: int = 3) -> None:
        job_id = self.all()[number]["job"]
        self._post(
            job_id,
            status=status("running", step, world_size),
            records=[metric(next(self._seq), step, loss=loss)],
        )

    def end(self, number: int, how: str) -> None:
        self._post(self.all()[number]["job"], records=[outcome(next(self._seq), how)])
        self.here.tick(2)

    def _post(self, job_id: str, **body: Any) -> None:
        attempt = max(attempt for owner, attempt in self.here.cluster.alive if owner == job_id)
        self.here.post(job_id, attempt, **body)


def make(here: Stage, **changes: Any) -> Trials:
    answer = here.client.post("/api/v1/sweeps", json={**SWEEP, **changes})
    assert answer.status_code == 201, answer.text
    return Trials(here, answer.json()["id"])


def test_trials_are_ordinary_jobs_with_labels_and_no_more_are_at_work_than_allowed(here: Stage) -> None:
    trials = make(here)
    here.tick()
    assert trials.states() == ["working", "working", "waiting"]
    listed = here.client.get("/api/v1/jobs?label=sweep=lr&sort=name").json()["items"]
    assert [(job["name"], job["labels"]["trial"]) for job in listed] == [("lr-0", "0"), ("lr-1", "1")]
    assert [job["spec"]["params"]["lr"] for job in listed] == [0.1, 0.2]
    trials.reach(0, 5, 0.5)
    trials.end(0, "succeeded")
    here.tick()
    assert trials.states() == ["succeeded", "working", "working"]
    for number in (1, 2):
        trials.reach(number, 5, 0.4 - number / 10)
        trials.end(number, "succeeded")
    sweep = trials.sweep()
    assert (sweep["state"], sweep["best"], sweep["best_score"]) == ("succeeded", 2, pytest.approx(0.2))
    assert [point["trial"] for point in sweep["improvements"]] == [0, 1, 2]


def test_trials_of_two_sweeps_of_one_name_are_told_apart_by_a_label(here: Stage) -> None:
    sweeps = [make(here), make(here)]
    here.tick()

    def listed(label: str) -> list[str]:
        return sorted(job["id"] for job in here.client.get(f"/api/v1/jobs?label={label}").json()["items"])

    jobs = [sorted(one["job"] for one in trials.all() if one["job"]) for trials in sweeps]
    assert [len(ids) for ids in jobs] == [2, 2]
    assert [listed(f"sweep_id={trials.sweep_id}") for trials in sweeps] == jobs
    assert listed("sweep=lr") == sorted(jobs[0] + jobs[1])


def test_a_trial_is_paused_at_its_rung_and_the_best_goes_on_from_there(here: Stage) -> None:
    trials = make(here, promotion=ASHA)
    here.tick()
    trials.reach(0, 9, 0.1)
    here.tick()
    assert trials.states()[0] == "working", "the rung is not reached yet"
    for number, loss in enumerate([0.5, 0.3, 0.4]):
        trials.reach(number, 12, loss)
        here.tick()
        job = here.job(trials.all()[number]["job"])
        assert (job["state"], job["reason"]["code"]) == ("stopping", "at_rung")
        trials.end(number, "paused")
    here.tick(2)
    assert trials.states() == ["paused", "working", "paused"]
    assert here.cluster.starts[-1] == (trials.all()[1]["job"], 2)
    assert [one["rung"] for one in trials.all()] == [0, 1, 0]
    trials.reach(1, 20, 0.2)
    trials.end(1, "succeeded")
    here.tick(2)
    sweep = trials.sweep()
    assert (sweep["state"], sweep["best"], sweep["rungs"]) == ("succeeded", 1, [10])
    assert trials.states() == ["cancelled", "succeeded", "cancelled"]
    assert trials.all()[1]["scores"] == [0.3, 0.2], (
        "the score at the rung is the first one there or behind it"
    )
    assert here.job(trials.all()[0]["job"])["reason"]["code"] == "sweep_ended"


def test_the_workers_of_paused_trials_go_to_those_that_wait_and_then_as_surplus_to_those_left(
    here: Stage,
) -> None:
    trials = make(here, promotion=ASHA, template={**SWEEP["template"], "workers": {"min": 1, "max": 4}})
    here.tick()

    def job(number: int) -> str:
        return str(trials.all()[number]["job"])

    def gives_up_its_workers(number: int, loss: float) -> None:
        here.time.pass_s(SETTLED_S)
        trials.reach(number, 10, loss, world_size=2)
        here.tick(2)
        assert here.cluster.told.pop()[:2] == ("pause", job(number))
        assert here.cluster.told == [], "nobody grows before they have left"
        trials.end(number, "paused")

    for number in range(2):
        trials.reach(number, 5, 0.5, world_size=2)
        assert here.cluster.alive[job(number), 1].spec.workers.max == 2
    gives_up_its_workers(0, loss=0.5)
    assert trials.states() == ["paused", "working", "working"]
    assert here.cluster.alive[job(2), 1].spec.workers.max == 2, "all that the first has left"
    assert ("release", job(0), 1) == here.cluster.told.pop()
    trials.reach(2, 5, 0.5, world_size=2)
    gives_up_its_workers(1, loss=0.4)
    assert here.cluster.told == [("release", job(1), 1), ("resize", job(2), 1, 1, 4)]
    trials.reach(2, 10, 0.3, world_size=4)
    here.tick(2)
    assert here.cluster.told[2:] == [], "the promoted one goes on with all of them"
    assert [(one["state"], one["rung"]) for one in trials.all()] == [
        ("paused", 0), ("paused", 0), ("working", 1),
    ]  # fmt: skip


def test_a_sweep_is_paused_resumed_and_cancelled_with_its_jobs(here: Stage) -> None:
    trials = make(here)
    here.tick()

    def ask(how: str) -> int:
        code = here.client.post(f"/api/v1/sweeps/{trials.sweep_id}/{how}").status_code
        here.tick(2)
        return code

    trials.reach(0, 5, 0.5)
    trials.reach(1, 5, 0.5)
    assert ask("pause") == 202
    assert trials.states() == ["stopping", "stopping", "waiting"]
    trials.end(0, "paused")
    trials.end(1, "paused")
    assert (trials.states(), trials.sweep()["state"]) == (["paused", "paused", "waiting"], "paused")
    assert ask("resume") == 202
    assert (trials.states(), trials.sweep()["reason"]) == (["working", "working", "waiting"], None)
    assert ask("cancel") == ask("cancel") == 202
    trials.end(0, "cancelled")
    trials.end(1, "cancelled")
    assert trials.states() == ["cancelled", "cancelled", "waiting"]
    refused = here.client.post(f"/api/v1/sweeps/{trials.sweep_id}/resume")
    assert (refused.status_code, refused.json()["code"]) == (409, "sweep_ended")


def test_what_a_user_pauses_stays_paused(here: Stage) -> None:
    trials = make(here)
    here.tick()
    trials.reach(0, 5, 0.5)
    here.client.post(f"/api/v1/jobs/{trials.all()[0]['job']}/pause")
    here.tick()
    trials.end(0, "paused")
    here.tick(3)
    assert trials.states() == ["paused", "working", "waiting"]


def test_a_sweep_without_a_value_of_its_metric_fails_and_says_so(here: Stage) -> None:
    trials = make(here, metric={"name": "accuracy", "goal": "maximize"})
    here.tick()
    for number in range(3):
        trials.reach(number, 5, 0.5)
        trials.end(number, "succeeded")
    sweep = trials.sweep()
    assert (sweep["state"], sweep["reason"]["code"], sweep["best"]) == ("failed", "no_winner", None)
    assert "'accuracy'" in sweep["reason"]["message"]


@pytest.mark.parametrize(
    ("changes", "pointer"),
    [
        ({"template": {"entrypoint": "nothing"}}, "/entrypoint"),
        ({"template": {**SWEEP["template"], "workers": {"min": 9, "max": 9}}}, "/workers/min"),
        ({"space": {"batch.global_size": {"values": [8, 0]}}}, "/batch/global_size"),
        ({"space": {"params.lr": {"uniform": [0, 1]}}}, "/space/params.lr"),
    ],
)
def test_a_wrong_sweep_is_refused_before_anything_is_submitted(
    here: Stage, changes: dict[str, Any], pointer: str
) -> None:
    here.tick()
    refused = here.client.post("/api/v1/sweeps", json={**SWEEP, **changes})
    assert refused.status_code == 422, refused.text
    assert pointer in [found["pointer"] for found in refused.json()["errors"]]
    assert (
        here.client.get("/api/v1/sweeps").json()["items"]
        == here.client.get("/api/v1/jobs").json()["items"]
        == []
    )


def test_a_dry_run_shows_the_first_trials_and_stores_nothing(here: Stage) -> None:
    here.tick()
    told = here.client.post("/api/v1/sweeps?dry_run=true", json=SWEEP).json()
    assert (told["trials"], told["starts_now"], told["job"]["params"]) == (3, True, {"lr": 0.1})
    assert told["points"] == [{"params.lr": lr} for lr in (0.1, 0.2, 0.3)]
    assert here.client.get("/api/v1/sweeps").json()["items"] == []


def test_a_repeated_request_makes_one_sweep(here: Stage) -> None:
    answers = [
        here.client.post("/api/v1/sweeps", json=SWEEP, headers={"Idempotency-Key": "k"}) for _ in range(2)
    ]
    assert [answer.status_code for answer in answers] == [201, 200]
    assert answers[0].json()["id"] == answers[1].json()["id"]
    other = here.client.post("/api/v1/sweeps", json={**SWEEP, "seed": 1}, headers={"Idempotency-Key": "k"})
    assert (other.status_code, other.json()["code"]) == (409, "idempotency_key_reused")


@pytest.mark.skipif(find_spec("optuna") is not None, reason="optuna is installed")
def test_a_method_whose_library_is_missing_is_refused_by_name(here: Stage) -> None:
    refused = here.client.post("/api/v1/sweeps", json={**SWEEP, "method": "optuna", "trials": 3})
    assert (refused.status_code, refused.json()["code"]) == (422, "optuna_missing")
    assert "ringleader[optuna]" in refused.json()["hint"]


def test_optuna_draws_a_point_once_its_trial_is_due(here: Stage) -> None:
    pytest.importorskip("optuna")
    space = {"params.lr": {"log_uniform": [1e-3, 1]}, "params.kind": {"choice": [[1], [2]]}}
    trials = make(here, method="optuna", trials=3, space=space)
    here.tick()
    points = [one["point"] for one in trials.all()]
    assert [point is not None for point in points] == [True, True, False]
    assert all(1e-3 <= point["params.lr"] <= 1 for point in points[:2])


def test_who_may_not_read_a_project_does_not_learn_of_its_sweeps(here: Stage) -> None:
    trials = make(here, project="vision")
    ada, bob = here.user("ada", speech="admin"), here.user("bob", vision="viewer")
    for method, path in [("GET", ""), ("GET", "/trials"), ("POST", "/cancel"), ("POST", "/pause")]:
        assert ada.request(method, f"/api/v1/sweeps/{trials.sweep_id}{path}").status_code == 404
    assert ada.get("/api/v1/sweeps").json()["items"] == []
    assert len(bob.get("/api/v1/sweeps").json()["items"]) == 1
    assert bob.post(f"/api/v1/sweeps/{trials.sweep_id}/cancel").status_code == 403
    assert bob.post("/api/v1/sweeps", json={**SWEEP, "project": "vision"}).status_code == 403


def test_trials_are_submitted_with_the_rights_that_the_owner_has_then(here: Stage) -> None:
    ada = here.user("ada", vision="submitter")
    made = ada.post("/api/v1/sweeps", json={**SWEEP, "project": "vision", "parallel": 1})
    assert made.status_code == 201, made.text
    trials = Trials(here, made.json()["id"])
    here.tick()
    assert here.job(trials.all()[0]["job"])["owner"] == "ada"
    here.client.delete("/api/v1/users/ada/roles/vision")
    trials.reach(0, 5, 0.5)
    trials.end(0, "succeeded")
    here.tick(2)
    refused = trials.all()[1]
    assert (refused["state"], refused["job"], refused["reason"]["code"]) == ("failed", None, "not_found")


def test_a_sweep_is_in_the_audit_log(here: Stage) -> None:
    trials = make(here)
    row = here.client.get("/api/v1/audit").json()["items"][0]
    assert (row["path"], row["target"], row["outcome"]) == ("/api/v1/sweeps", trials.sweep_id, "done")


def test_whatever_statement_the_process_dies_at_each_trial_is_submitted_and_promoted_once(
    here: Stage,
) -> None:
    """Dies at the first, second, … boundary of what submits, and of what pauses and promotes; a new process goes on."""
    store: Any = here.control.store
    store.__class__, store.cut = MortalStore, lambda where: None
    halving = {"asha": {"rungs": [10], "reduction": 2}}
    for last in itertools.count():
        trials = make(here, space={"params.lr": {"values": [0.1, 0.2]}}, promotion=halving)
        survived = _dies_at(here, last)
        here.tick()
        jobs = [one["job"] for one in trials.all()]
        assert here.cluster.calls == {(job, 1): 1 for job in jobs}, f"died at boundary {last}"
        assert len(jobs) == 2
        for number in range(2):
            trials.reach(number, 10, 0.3 - number / 10)
        survived = _dies_at(here, last) and survived
        here.tick()
        told = [(one["state"], one["rung"], one["scores"]) for one in trials.all()]
        assert told == [("stopping", 0, [0.3]), ("working", 1, [pytest.approx(0.2)])], (
            f"died at boundary {last}"
        )
        if survived:
            break
        here.client.post(f"/api/v1/sweeps/{trials.sweep_id}/cancel")
        here.tick()
        for number in range(2):
            trials.end(number, "cancelled")
        here.cluster.calls.clear()
    assert last >= 12, "the process must have died at the boundaries"


def test_whatever_statement_the_process_dies_at_no_job_outlives_a_sweep_that_is_cancelled_then(
    here: Stage,
) -> None:
    store: Any = here.control.store
    store.__class__, store.cut = MortalStore, lambda where: None
    survived, number = False, 0
    while not survived:
        trials = make(here, space={"params.lr": {"values": [0.1, 0.2]}})
        survived = _dies_at(here, number)
        here.client.post(f"/api/v1/sweeps/{trials.sweep_id}/cancel")
        assert _dies_at(here, 1000)
        jobs = here.client.get("/api/v1/jobs?limit=200").json()["items"]
        assert {job["state"] for job in jobs} <= {"cancelled"}, f"died at boundary {number}"
        number += 1
    assert number > 6, "the process must have died at the boundaries"


def _dies_at(here: Stage, boundary: int) -> bool:
    """The sweeps' part of a round that dies there; whether there was no such boundary."""
    passed = itertools.count()

    def cut(where: str) -> None:
        if next(passed) == boundary:
            raise Killed(where)

    store: Any = here.control.store
    lease = here.control.leases[0]
    assert lease.hold()
    store.cut = cut
    with suppress(Killed):
        Sweeping(Fenced(store, lease), here.control.submissions, here.time).advance()
    store.cut = lambda where: None
    return next(passed) <= boundary


def test_a_cluster_out_of_reach_moves_no_sweep(tmp_path: Path) -> None:
    cluster = FakeCluster()
    here = stage(tmp_path, cluster)
    trials = make(here)
    cluster.down = True
    here.tick()
    assert trials.states() == ["waiting"] * 3


def test_why_a_trials_job_failed_is_told_with_the_trial_and_with_a_sweep_that_has_no_winner(
    here: Stage,
) -> None:
    trials = make(here, space={"params.lr": {"values": [0.1]}})
    here.tick()
    job_id = trials.all()[0]["job"]
    attempt = max(attempt for owner, attempt in here.cluster.alive if owner == job_id)
    here.post(job_id, attempt, records=[outcome(1, "failed", "odd")])
    here.tick(2)
    assert trials.all()[0]["reason"]["message"] == "because of odd"
    assert trials.sweep()["reason"]["message"].endswith("; trial 0 failed: because of odd")


def test_the_reason_of_a_sweep_without_a_winner_is_one_line(here: Stage) -> None:
    trials = make(here, space={"params.lr": {"values": [0.1]}})
    here.tick()
    job_id = trials.all()[0]["job"]
    attempt = max(attempt for owner, attempt in here.cluster.alive if owner == job_id)
    record = outcome(1, "failed", "odd")
    record["reason"]["message"] = "'toy' cannot be imported:\nTraceback:\n  File ...\nKeyError: 'x'\n"
    here.post(job_id, attempt, records=[record])
    here.tick(2)
    assert trials.sweep()["reason"]["message"].endswith("; trial 0 failed: KeyError: 'x'")
