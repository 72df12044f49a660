"""Shares, quotas and priorities in the control plane: surplus is given back, jobs make room and go on, over REST."""

import random
import sqlite3
from pathlib import Path

import pytest
from control_plane import SPEC, FakeCluster, Stage, outcome, stage, status
from fastapi.testclient import TestClient

from ringleader_api.scheduling import NodeShape


@pytest.fixture
def here(tmp_path: Path) -> Stage:
    return stage(tmp_path)


def fixed(workers: int) -> dict[str, int]:
    return {"min": workers, "max": workers}


def test_a_running_job_gives_surplus_back_to_one_that_waits_and_gets_it_again(here: Stage) -> None:
    first = here.running(workers={"min": 1, "max": 4})
    here.post(first, status=status("running", world_size=4))
    second = here.submit(name="second", workers=fixed(2))
    here.tick()
    reason = here.job(second)["pending_reason"]
    assert (reason["code"], f"taking workers back from {first}" in reason["message"]) == (
        "waiting_for_capacity",
        True,
    )
    here.tick(2)
    assert here.cluster.told == [("resize", first, 1, 1, 2)]
    assert here.cluster.starts == [(first, 1)], "not before they have left"
    here.post(first, status=status("running", world_size=2))
    here.tick()
    assert here.cluster.starts == [(first, 1), (second, 1)]
    assert here.job(first)["spec"]["workers"]["max"] == 4
    here.post(second, status=status("running", world_size=2), records=[outcome(1, "failed", "no_step")])
    here.time.pass_s(31)
    here.tick(3)
    assert here.cluster.told[-1] == ("resize", first, 1, 1, 4)
    assert here.events(first).count("workers.granted") == 2


def test_a_job_starts_with_what_there_is_beside_others(here: Stage) -> None:
    first = here.running(workers=fixed(2))
    here.post(first, status=status("running", world_size=2))
    second = here.started(name="second", workers={"min": 1, "max": 4})
    assert here.cluster.alive[second, 1].spec.workers.max == 2
    assert here.cluster.alive[second, 1].spec.batch.logical_shards == 4


def test_a_job_of_a_higher_priority_has_a_lower_one_saved_and_queued_again(here: Stage) -> None:
    low = here.running(workers=fixed(4))
    here.post(low, status=status("running", world_size=4))
    urgent = here.submit(name="urgent", workers=fixed(4), priority=5)
    here.tick()
    assert here.state(low) == "running", "an attempt that has just begun is left alone"
    here.time.pass_s(301)
    here.tick()
    assert (here.state(low), here.job(low)["reason"]["code"]) == ("stopping", "preempted")
    here.tick()
    assert [deed[0] for deed in here.cluster.told] == ["pause"]
    here.post(low, records=[outcome(1, "paused")])
    here.tick(2)
    assert here.cluster.starts == [(low, 1), (urgent, 1)]
    job = here.job(low)
    assert (job["state"], job["failures"]["spent"]) == ("queued", 0)
    assert here.events(low)[-2:] == ["job.paused", "job.queued"]
    here.post(urgent, records=[outcome(1, "failed", "no_step")])
    here.tick(3)
    assert here.cluster.starts[-1] == (low, 2)


def test_what_a_job_waits_for_or_makes_room_for_tells_nothing_of_another_projects_jobs(here: Stage) -> None:
    low = here.running(project="a", workers=fixed(4))
    here.post(low, status=status("running", world_size=4))
    urgent = here.submit(project="b", name="urgent", workers=fixed(3), priority=5)
    behind = here.submit(project="a", name="behind", workers=fixed(2), priority=-1)
    near = here.submit(project="b", name="near", workers=fixed(2), priority=-1)
    told = []
    for _ in range(2):
        here.tick()
        told += [here.job(job_id)["pending_reason"]["message"] for job_id in (urgent, behind, near)]
        here.time.pass_s(301)
    needs = "needs 3 workers of 1 CPU"
    first = f"waits behind {urgent}, which is ahead in the queue and {needs}"
    others = "waits behind a job of another project, which is ahead in the queue"
    assert told == [
        f"{needs}; 0 fit now, and the rest of the cluster is in use by jobs of other projects",
        *(others, first),
        f"{needs}; the scheduler makes room by preempting jobs of other projects",
        *(others, first),
    ]
    why = "made room for a job of another project, which has a higher priority"
    assert (here.state(low), here.job(low)["reason"]["message"]) == ("stopping", why)
    seen = [here.client.get(f"/api/v1/jobs/{job_id}/events").text for job_id in (low, behind)]
    assert [urgent in text or near in text for text in seen] == [False, False]


def test_a_job_that_its_user_pauses_while_it_is_preempted_stays_paused(here: Stage) -> None:
    low = here.running(workers=fixed(4))
    here.submit(name="urgent", workers=fixed(4), priority=5)
    here.time.pass_s(301)
    here.tick()
    assert here.client.post(f"/api/v1/jobs/{low}/pause").status_code == 202
    here.tick()
    here.post(low, records=[outcome(1, "paused")])
    here.tick(2)
    job = here.job(low)
    assert (job["state"], job["reason"]["message"]) == ("paused", "paused by admin")
    assert "ringleader resume" in job["reason"]["hint"], "it does not go on by itself any more"
    items = here.client.get(f"/api/v1/jobs/{low}/events").json()["items"]
    told = [(e["data"]["who"], e["data"]["reason"]["code"]) for e in items if e["type"] == "job.stopping"]
    assert told == [("scheduler", "preempted"), ("admin", "paused")]


def test_quotas_hold_back_one_project_and_the_dry_run_says_so(here: Stage) -> None:
    here.client.post("/api/v1/projects", json={"name": "a"})
    changed = here.client.patch("/api/v1/projects/a", json={"weight": 2, "quota": {"workers": 2}})
    assert (changed.status_code, changed.json()["weight"], changed.json()["quota"]["workers"]) == (
        200,
        2.0,
        2,
    )
    first = here.started(project="a", workers={"min": 1, "max": 3})
    assert here.cluster.alive[first, 1].spec.workers.max == 2
    waits = here.client.post(
        "/api/v1/jobs?dry_run=true",
        json={"name": "x", "entrypoint": "a:b", "project": "a", "workers": fixed(2)},
    ).json()
    assert (waits["starts_now"], waits["pending_reason"]["code"]) == (False, "quota_used_up")
    second = here.submit(name="second", project="a", workers=fixed(2))
    other = here.submit(name="other", workers=fixed(1))
    here.tick()
    assert here.cluster.starts == [(first, 1), (other, 1)]
    assert here.job(second)["pending_reason"]["code"] == "quota_used_up"
    lifted = here.client.patch("/api/v1/projects/a", json={"quota": {"workers": None}}).json()
    assert (lifted["weight"], lifted["quota"]["workers"]) == (2.0, None)


def test_the_floor_of_a_job_at_work_is_not_raised_beyond_the_quota(tmp_path: Path) -> None:
    here = stage(tmp_path, FakeCluster(cpus=16))
    here.client.patch("/api/v1/projects/default", json={"quota": {"workers": 4}})
    asks = {"workers": {"min": 1, "max": 2}, "batch": {"global_size": 64, "logical_shards": 8}}
    first, other = (here.started(name=name, **asks) for name in ("first", "other"))

    def resize(**bounds: int) -> tuple[int, str]:
        answer = here.client.patch(f"/api/v1/jobs/{first}", json={"workers": bounds})
        return answer.status_code, answer.json().get("code", "")

    assert resize(max=8) == (200, ""), "surplus is what the quota leaves"
    assert resize(min=3) == (409, "quota_used_up")
    assert resize(min=2) == (200, "")
    here.client.post(f"/api/v1/jobs/{other}/cancel")
    here.tick()
    here.post(other, records=[outcome(1, "cancelled")])
    here.tick(3)
    assert [resize(min=5, max=5), resize(min=4, max=4)] == [(409, "quota_used_up"), (200, "")]
    here.tick(3)
    assert here.cluster.told[-1] == ("resize", first, 1, 4, 4)


def test_a_raised_maximum_takes_no_worker_beyond_the_quota(tmp_path: Path) -> None:
    here = stage(tmp_path, FakeCluster(cpus=16))
    here.client.patch("/api/v1/projects/default", json={"quota": {"workers": 5}})
    asks = {"workers": {"min": 1, "max": 2}, "batch": {"global_size": 64, "logical_shards": 8}}
    first, other = (here.started(name=name, **asks) for name in ("first", "other"))
    here.client.patch(f"/api/v1/jobs/{first}", json={"workers": {"max": 8}})
    here.tick(3)
    assert here.cluster.told == [("resize", first, 1, 1, 3)]
    here.client.post(f"/api/v1/jobs/{other}/cancel")
    here.tick()
    here.post(other, records=[outcome(1, "cancelled")])
    here.time.pass_s(31)
    here.tick(3)
    assert here.cluster.told[-1] == ("resize", first, 1, 1, 5)


def test_only_who_may_steer_asks_for_a_priority_and_only_an_admin_of_all_sets_quotas(here: Stage) -> None:
    ann = here.user("ann", default="submitter")
    body = {"name": "x", "entrypoint": "a:b"}
    assert ann.post("/api/v1/jobs", json={**body, "priority": 1}).status_code == 403
    assert ann.post("/api/v1/jobs", json={**body, "priority": -1}).status_code == 201
    assert ann.patch("/api/v1/projects/default", json={"weight": 9}).status_code in (403, 404)
    assert here.client.patch("/api/v1/projects/none", json={"weight": 9}).status_code == 404
    for wrong in ({"weight": 0}, {"quota": {"workers": -1}}, {"quota": {"disks": 1}}):
        assert here.client.patch("/api/v1/projects/default", json=wrong).status_code == 422


def test_servers_belong_to_the_gang(here: Stage) -> None:
    here.tick()
    sync = {"intra_node": "parameter_server", "inter_node": "parameter_server", "servers": 2}
    body = {"name": "x", "entrypoint": "a:b", "sync": sync, "workers": fixed(3)}
    answer = here.client.post("/api/v1/jobs", json=body)
    assert (answer.status_code, answer.json()["code"]) == (422, "infeasible")
    here.submit(sync=sync, workers=fixed(2))


def test_a_process_that_dies_after_granting_leaves_it_to_the_next_one(tmp_path: Path) -> None:
    cluster = FakeCluster()
    here = stage(tmp_path, cluster)
    first = here.running(workers={"min": 1, "max": 4})
    here.post(first, status=status("running", world_size=4))
    here.submit(name="second", workers=fixed(2))
    here.tick()
    here.control.close()
    with sqlite3.connect(tmp_path / "ringleader.db") as database:
        assert database.execute("SELECT granted FROM jobs WHERE id = ?", (first,)).fetchall() == [(2,)]
    again = stage(tmp_path, cluster)
    again.tick()
    assert cluster.told == [("resize", first, 1, 1, 2)]


def test_a_changed_priority_decides_who_is_served_and_takes_an_operator_to_raise(here: Stage) -> None:
    ann = here.user("ann", default="submitter")
    hog = here.running(workers=fixed(4))
    waiting = [here.submit(name=f"w{n}", workers=fixed(4)) for n in range(2)]
    mine = ann.post("/api/v1/jobs", json={"name": "x", "entrypoint": "a:b", "workers": fixed(4)}).json()["id"]

    def put(priority: object, job_id: str, who: TestClient = here.client) -> int:
        merge = {"Content-Type": "application/merge-patch+json"}
        body = {"priority": priority}
        return who.patch(f"/api/v1/jobs/{job_id}", json=body, headers=merge).status_code

    assert [put(1, mine, ann), put(-3, mine, ann), put(0, mine, ann)] == [403, 200, 200]
    assert [put(wrong, mine) for wrong in (None, "high", 1.5, 10_000)] == [422] * 4
    assert put(7, waiting[1]) == 200
    assert here.job(waiting[1])["spec"]["priority"] == 7
    changes = here.client.get(f"/api/v1/jobs/{waiting[1]}/events").json()["items"]
    assert [e["data"] for e in changes if e["type"] == "priority.changed"] == [
        {"who": "admin", "from": 0, "priority": 7}
    ]
    here.post(hog, records=[outcome(1, "failed", "no_step")])
    here.tick(3)
    assert here.cluster.starts == [(hog, 1), (waiting[1], 1)]


def test_a_project_shows_what_its_jobs_hold_of_its_quota_and_how_many_wait(here: Stage) -> None:
    here.client.patch("/api/v1/projects/default", json={"quota": {"workers": 3}})
    here.running(workers={"min": 2, "max": 8})
    here.submit(workers=fixed(1))
    here.tick()
    found = here.client.get("/api/v1/projects").json()["items"][0]
    assert found["held"] == {"workers": 3, "cpus": 3.0, "gpus": 0.0, "jobs": 1, "waiting": 1}
    assert found["quota"]["workers"] == 3


def test_an_attempt_that_finds_no_room_is_queued_again_and_spends_no_failure(here: Stage) -> None:
    here.cluster.places = {}
    first = here.started(workers=fixed(2))
    placed = here.submit(name="placed", workers=fixed(2))
    here.time.pass_s(2)
    here.tick()
    here.cluster.places[placed, 1] = [("n1", 2)]
    here.rounds(55)
    assert here.state(first) == "starting"
    here.rounds(10)
    assert here.cluster.told == [("release", first, 1)]
    here.tick()
    assert here.cluster.starts == [(first, 1), (placed, 1), (first, 2)]
    job = here.job(first)
    assert (job["state"], job["attempt"], job["failures"]["spent"]) == ("starting", 2, 0)
    assert here.state(placed) == "starting"


@pytest.mark.parametrize("seed", range(2))
def test_the_dry_run_says_what_the_queue_then_does(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    cluster = FakeCluster()
    cluster.nodes = [NodeShape("n1", 4, 0, 16), NodeShape("n2", 3, 0, 16)]
    here = stage(tmp_path, cluster, autoscale_cpus=draw.choice([0, 10]))
    for name in ("a", "b"):
        here.client.post("/api/v1/projects", json={"name": name})
    here.client.patch("/api/v1/projects/a", json={"quota": {"workers": 6}})
    here.tick()
    said: list[tuple[bool, str]] = []
    for _ in range(14):
        low = draw.randint(1, 5)
        change = {
            "workers": {"min": low, "max": low + draw.choice([0, 3]), "cpus": draw.choice([1, 1, 2])},
            "project": draw.choice(["a", "b"]),
            "priority": draw.choice([0, 0, 0, 3]),
            "max_runtime_s": draw.choice([60, 1000, 9000]),
        }
        dry = here.client.post("/api/v1/jobs?dry_run=true", json={**SPEC, **change})
        answer = here.client.post("/api/v1/jobs", json={**SPEC, **change})
        assert (dry.status_code, answer.status_code) in ((200, 201), (422, 422))
        if answer.status_code == 422:
            continue
        here.tick()
        job, foretold = here.job(answer.json()["id"]), dry.json()
        reason = (job["pending_reason"] or {}).get("code", "")
        assert foretold["starts_now"] == (job["state"] == "starting")
        assert (foretold["pending_reason"] or {}).get("code", "") == reason
        said.append((foretold["starts_now"], reason))
        if job["state"] == "starting":
            here.post(job["id"], status=status("running", world_size=low))
        here.tick()
    assert len(set(said)) > 2, "something else each time, or this proves little"


def test_the_dry_run_knows_that_a_short_job_goes_before_the_head(here: Stage) -> None:
    here.running(workers=fixed(2), max_runtime_s=9000)
    here.submit(name="head", workers=fixed(4))
    body = {"name": "x", "entrypoint": "a:b", "workers": fixed(1)}
    starts = [
        here.client.post("/api/v1/jobs?dry_run=true", json={**body, "max_runtime_s": limit_s}).json()[
            "starts_now"
        ]
        for limit_s in (60, 9000, None)
    ]
    assert starts == [True, False, False]


@pytest.mark.parametrize("limit_s", [1e12, 1e300])
def test_a_limit_of_running_time_beyond_all_dates_keeps_nobody_from_anything(
    here: Stage, limit_s: float
) -> None:
    endless = here.running(workers=fixed(1), max_runtime_s=limit_s)
    other = here.started(workers=fixed(1))
    here.time.pass_s(60)
    here.client.post(f"/api/v1/jobs/{endless}/cancel")
    here.tick()
    assert [act[:2] for act in here.cluster.told] == [("cancel", endless)]
    assert [here.state(endless), here.state(other)] == ["stopping", "starting"]
