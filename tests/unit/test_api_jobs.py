"""/jobs: submitted once, checked key by key, listed, resized, cancelled, deleted."""

import io
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from control_plane import RESULT, SPEC, Stage, event, line, metric, outcome, place, saved, stage, status
from safetensors.torch import load
from sqlalchemy.event import listen, remove
from sqlalchemy.orm import Session

from ringleader.checkpoint.folder import Folder
from ringleader.checkpoint.manifest import CheckpointPosition, Manifest
from ringleader.checkpoint.parts import CheckpointPart
from ringleader.checkpoint.snapshot import Snapshot
from ringleader.wire import package
from ringleader.wire.views import JobView
from ringleader_api.services.jobs.checkpoints import AT_ONCE
from ringleader_api.store.tables import Job


@pytest.fixture
def here(tmp_path: Path) -> Stage:
    return stage(tmp_path)


def test_an_accepted_job_is_answered_with_its_address_and_waits(here: Stage) -> None:
    answer = here.client.post("/api/v1/jobs", json=SPEC)
    job = JobView.model_validate(answer.json())
    assert (answer.status_code, answer.headers["location"]) == (201, f"/api/v1/jobs/{job.id}")
    assert job.id.startswith("job_")
    assert len(job.id) == 30
    assert (job.state, job.attempt, job.owner) == ("queued", 0, "admin")
    assert job.urls.page.endswith(f"/jobs/{job.id}")
    assert here.events(job.id) == ["job.queued"]


def test_a_framework_that_was_chosen_is_told_with_its_reason(here: Stage) -> None:
    chosen = {"framework": "ray_train_hosted", "framework_why": "line 4: two backwards"}
    job = {"name": "a", "entrypoint": "train:main", **chosen}
    job_id = here.client.post("/api/v1/jobs", json=job).json()["id"]
    assert here.job(job_id)["spec"].items() >= chosen.items()
    (event,) = here.client.get(f"/api/v1/jobs/{job_id}/events").json()["items"]
    assert event["data"] == {"who": "admin", **chosen}
    named = here.client.post("/api/v1/jobs", json={**SPEC, "framework": "native"}).json()["id"]
    (event,) = here.client.get(f"/api/v1/jobs/{named}/events").json()["items"]
    assert event["data"] == {"who": "admin"}


def test_a_script_for_which_nobody_chose_a_framework_is_refused(here: Stage) -> None:
    answer = here.client.post("/api/v1/jobs", json={**SPEC, "framework": "auto", "entrypoint": "train.py"})
    assert answer.status_code == 422
    assert "framework: torchrun" in answer.json()["errors"][0]["message"]


def test_the_number_of_shards_is_fixed_when_the_job_is_accepted(here: Stage) -> None:
    job_id = here.submit()
    assert here.job(job_id)["spec"]["batch"]["logical_shards"] == 3
    answer = here.client.patch(f"/api/v1/jobs/{job_id}", json={"workers": {"max": 4}})
    assert answer.status_code == 422, "more workers than shards could own nothing"


def test_a_new_job_is_answered_as_it_is_read(here: Stage) -> None:
    made = here.client.post("/api/v1/jobs", json={**SPEC, "labels": {"team": "vision"}})
    read = here.client.get(f"/api/v1/jobs/{made.json()['id']}")
    assert (made.json(), made.headers["ETag"]) == (read.json(), read.headers["ETag"])


def test_the_same_key_is_the_same_job_and_another_body_a_conflict(here: Stage) -> None:
    key = {"Idempotency-Key": "k1"}
    first = here.client.post("/api/v1/jobs", json=SPEC, headers=key)
    again = here.client.post("/api/v1/jobs", json=dict(reversed(SPEC.items())), headers=key)
    other = here.client.post("/api/v1/jobs", json={**SPEC, "seed": 1}, headers=key)
    assert [r.status_code for r in (first, again, other)] == [201, 200, 409]
    assert first.json()["id"] == again.json()["id"]
    assert other.json()["code"] == "idempotency_key_reused"
    assert len(here.client.get("/api/v1/jobs").json()["items"]) == 1


@pytest.mark.parametrize("key", [{}, {"Idempotency-Key": "k1"}], ids=["no key", "a key"])
def test_a_commit_whose_answer_was_lost_stores_the_job_once(here: Stage, key: dict[str, str]) -> None:
    commits = []

    def lose_the_first(session: Session) -> None:
        if session.info:
            commits.append(session)
            if len(commits) == 1:
                raise OSError("the server closed the connection")

    here.client.get("/api/v1/me")  # notes the use of the token
    listen(Session, "after_commit", lose_the_first)
    try:
        answer = here.client.post("/api/v1/jobs", json=SPEC, headers=key)
    finally:
        remove(Session, "after_commit", lose_the_first)
    assert (answer.status_code, len(commits)) == (201, 2)
    assert [job["id"] for job in here.client.get("/api/v1/jobs").json()["items"]] == [answer.json()["id"]]
    told = here.client.get("/api/v1/audit").json()["items"]
    assert [row["target"] for row in told if row["path"] == "/api/v1/jobs"] == [answer.json()["id"]]


def test_a_dry_run_says_what_would_happen_and_stores_nothing(here: Stage) -> None:
    unknown = here.client.post("/api/v1/jobs?dry_run=true", json=SPEC).json()
    assert (unknown["starts_now"], unknown["pending_reason"]["code"]) == (False, "cluster_unreachable")
    here.tick()
    free = here.client.post("/api/v1/jobs?dry_run=true", json=SPEC)
    assert (free.status_code, free.json()["starts_now"], free.json()["logical_shards"]) == (200, True, 3)
    assert (free.json()["reproducible"], free.json()["reproducible_why"]) == (True, "")
    coded = here.client.post("/api/v1/jobs?dry_run=true", json={**SPEC, "sync": {"codec": "int8"}}).json()
    assert (coded["reproducible"], "codec" in coded["reproducible_why"]) == (False, True)
    here.submit(workers={"min": 3, "max": 3})
    full = here.client.post("/api/v1/jobs?dry_run=true", json=SPEC).json()
    assert full["pending_reason"]["code"] == "waiting_for_capacity"
    assert len(here.client.get("/api/v1/jobs").json()["items"]) == 1


def test_a_job_that_the_cluster_can_never_hold_is_refused(here: Stage) -> None:
    here.tick()
    for workers, key in (
        ({"min": 5, "max": 5}, "min"),
        ({"min": 1, "max": 1, "gpus": 1}, "gpus"),
        ({"min": 1, "max": 1, "memory_gb": 17}, "memory_gb"),
    ):
        answer = here.client.post("/api/v1/jobs", json={**SPEC, "workers": workers})
        assert (answer.status_code, answer.json()["code"]) == (422, "infeasible")
        assert answer.json()["errors"][0]["pointer"] == f"/workers/{key}"


def test_jobs_are_listed_newest_first_page_by_page_and_by_filter(here: Stage) -> None:
    ids = [here.submit(name=f"n{k % 2}", project=f"p{k % 3}", labels={"k": str(k)}) for k in range(7)]
    here.client.post(f"/api/v1/jobs/{ids[0]}/cancel")
    seen: list[str] = []
    cursor = ""
    while True:
        page = here.client.get(f"/api/v1/jobs?limit=3{cursor}").json()
        seen += [j["id"] for j in page["items"]]
        if page["next_cursor"] is None:
            break
        cursor = f"&cursor={page['next_cursor']}"
    assert seen == ids[::-1]

    def listed(query: str) -> list[str]:
        return [j["id"] for j in here.client.get(f"/api/v1/jobs?{query}").json()["items"]]

    assert listed("state=cancelled") == [ids[0]]
    assert listed("name=n1") == [ids[5], ids[3], ids[1]]
    assert listed("project=p2") == [ids[5], ids[2]]
    assert listed("label=k=4") == [ids[4]]
    assert listed("label=k=4&label=k=5") == []
    for bad in ("limit=201", "limit=0", "cursor=%21", "state=happy", "label=k"):
        assert here.client.get(f"/api/v1/jobs?{bad}").status_code == 422, bad


def test_an_unknown_id_is_not_found_everywhere(here: Stage) -> None:
    unknown = "/api/v1/jobs/job_" + "0" * 26
    for below in (
        "",
        "/events",
        "/logs",
        "/metrics",
        "/metrics?name=x",
        "/workers",
        "/checkpoints",
        "/artifacts",
        "/artifacts/x",
    ):
        answer = here.client.get(unknown + below)
        assert (answer.status_code, answer.json()["code"]) == (404, "not_found"), below
    assert here.client.get(unknown + "/events", headers={"Accept": "text/event-stream"}).status_code == 404
    for method, path in (("PATCH", ""), ("DELETE", ""), ("POST", "/cancel")):
        assert here.client.request(method, unknown + path, json={}).status_code == 404


def test_a_resize_reaches_the_supervisor_and_a_stale_one_is_refused(here: Stage) -> None:
    job_id = here.running(workers={"min": 2, "max": 3})
    read = here.client.get(f"/api/v1/jobs/{job_id}")
    tag = {"If-Match": read.headers["etag"]}
    here.post(job_id, status=status("running", step=7))
    merge = {"Content-Type": "application/merge-patch+json"}
    answer = here.client.patch(
        f"/api/v1/jobs/{job_id}", content='{"workers":{"max":2}}', headers={**tag, **merge}
    )
    assert answer.status_code == 200, "progress does not make a tag stale"
    assert answer.json()["spec"]["workers"]["max"] == 2
    assert here.client.patch(f"/api/v1/jobs/{job_id}", json={}, headers=tag).status_code == 412
    here.tick(2)
    assert here.cluster.told == [("resize", job_id, 1, 2, 2)]
    assert "workers.resized" in here.events(job_id)


def test_a_job_that_today_would_be_refused_is_resized(here: Stage) -> None:
    """An earlier version has accepted a variable that has no effect."""
    job_id = here.submit(workers={"min": 1, "max": 3})
    with here.control.store.write() as session:
        job = session.get(Job, job_id)
        assert job is not None
        job.spec = {**job.spec, "env": {"PYTHONHASHSEED": "1"}}
    assert here.client.post("/api/v1/jobs", json={**SPEC, "env": {"PYTHONHASHSEED": "1"}}).status_code == 422
    answer = here.client.patch(f"/api/v1/jobs/{job_id}", json={"workers": {"max": 2}})
    assert (answer.status_code, answer.json()["spec"]["workers"]["max"]) == (200, 2)


@pytest.mark.parametrize(
    ("patch", "pointer"),
    [
        ({"seed": 3}, "/seed"),
        ({"workers": {"cpus": 2}}, "/workers/cpus"),
        ({"workers": {"min": None}}, "/workers/min"),
        ({"workers": {"min": 4}}, "/workers/min"),
        ({"workers": {"min": "2"}}, "/workers/min"),
    ],
)
def test_a_patch_changes_bounds_and_nothing_else(here: Stage, patch: dict[str, Any], pointer: str) -> None:
    job_id = here.submit()
    answer = here.client.patch(f"/api/v1/jobs/{job_id}", json=patch)
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["pointer"] == pointer
    assert here.client.patch(f"/api/v1/jobs/{job_id}", json=[]).status_code == 422
    assert here.job(job_id)["spec"]["workers"]["min"] == 2


def test_a_queued_job_is_cancelled_at_once_and_an_ended_one_not_again(here: Stage) -> None:
    job_id = here.submit()
    answer = here.client.post(f"/api/v1/jobs/{job_id}/cancel")
    assert (answer.status_code, answer.json()["state"]) == (202, "cancelled")
    assert here.client.post(f"/api/v1/jobs/{job_id}/cancel").status_code == 409
    here.tick()
    assert here.cluster.starts == []


def test_only_an_ended_job_is_deleted_and_then_gone(here: Stage) -> None:
    job_id = here.running()
    here.post(job_id, records=[metric(1, 0, loss=1.0), line(1, "hello")])
    (here.home / "jobs" / job_id / "artifacts").mkdir(parents=True)
    (here.home / "checkpoints" / job_id / "step-1").mkdir(parents=True)
    assert here.client.delete(f"/api/v1/jobs/{job_id}").status_code == 409
    here.post(job_id, records=[outcome(1, "succeeded", result=RESULT)])
    here.tick()
    assert here.client.delete(f"/api/v1/jobs/{job_id}").status_code == 204
    assert here.client.get(f"/api/v1/jobs/{job_id}").status_code == 404
    assert here.client.get("/api/v1/jobs").json()["items"] == []
    here.tick()
    assert not (here.home / "jobs" / job_id).exists()
    assert not (here.home / "checkpoints" / job_id).exists()


def test_the_weights_of_a_checkpoint_are_exported_without_running_what_lies_beside_them(here: Stage) -> None:
    job_id = here.running()
    route = f"/api/v1/jobs/{job_id}/checkpoints"
    assert here.client.get(f"{route}/newest/weights").status_code == 404
    folder, weight = Folder(str(here.home / "checkpoints" / job_id)), torch.arange(3.0)
    position = CheckpointPosition(4, 4, attempt=1, generation=1)
    pieces = Snapshot({"models": [{"weight": weight}]}, CheckpointPart()).write(folder, position.name)
    pieces.append(folder.write(position.name, CheckpointPart().skeleton, b"no pickle at all"))
    folder.commit(position.name, Manifest(position, tuple(pieces[1:]), {}))
    told = {"step": 4, "uri": folder.place_of(position.name), "size_bytes": 12, "removed": []}
    here.post(job_id, records=[event(1, "checkpoint.saved", **told)])
    for name in ("newest", position.name):
        answer = here.client.get(f"{route}/{name}/weights")
        assert torch.equal(load(answer.content)["weight"], weight)
    assert here.client.get(f"{route}/step-5/weights").status_code == 404
    under_way = [here.control.exports.begin(job_id, "newest") for _ in range(AT_ONCE)]
    busy = here.client.get(f"{route}/newest/weights")
    assert (busy.status_code, busy.headers["retry-after"], busy.json()["hint"]) == (
        429,
        "10",
        "Try again in 10 s.",
    )
    for export in under_way:
        export.end()
    assert [here.client.get(f"{route}/newest/weights").status_code for _ in range(AT_ONCE + 1)] == [200] * 5
    (here.home / "checkpoints" / job_id / position.name / pieces[2].name).write_bytes(b"")
    torn = here.client.get(f"{route}/newest/weights")
    assert (torn.status_code, torn.json()["code"]) == (409, "checkpoint_unreadable")
    assert [here.client.get(f"{route}/newest/weights").status_code for _ in range(AT_ONCE + 1)] == [409] * 5


def test_checkpoints_are_listed_until_they_are_removed(here: Stage) -> None:
    job_id = here.running()

    here.post(job_id, records=[saved(job_id, 1, 5), saved(job_id, 2, 10), saved(job_id, 3, 15, "step-5")])
    items = here.client.get(f"/api/v1/jobs/{job_id}/checkpoints").json()["items"]
    assert [(item["step"], item["uri"], item["attempt"]) for item in items] == [
        (15, place(job_id, "step-15"), 1),
        (10, place(job_id, "step-10"), 1),
    ]


def zipped(entries: dict[str, bytes], mode: int = 0o100644) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name, data in entries.items():
            entry = zipfile.ZipInfo(name)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = mode << 16
            archive.writestr(entry, data)
    return buffer.getvalue()


def test_a_package_is_stored_under_its_hash_and_handed_to_the_attempt(here: Stage, tmp_path: Path) -> None:
    data = zipped({"train.py": b"def train(session): ..."})
    name = package.digest(data)
    assert here.client.head(f"/api/v1/packages/{name}").status_code == 404
    assert here.client.put(f"/api/v1/packages/{name}", content=data).status_code == 201
    assert here.client.put(f"/api/v1/packages/{name}", content=data).status_code == 200
    assert here.client.head(f"/api/v1/packages/{name.removeprefix('sha256:')}").status_code == 200
    job_id = here.started(working_dir=name)
    assert here.cluster.alive[job_id, 1].package == data


@pytest.mark.parametrize(
    ("pack", "entry"),
    [
        (lambda: zipped({"../evil.py": b""}), "../evil.py"),
        (lambda: zipped({"/etc/evil": b""}), "/etc/evil"),
        (lambda: zipped({"link": b"/etc/passwd"}, mode=0o120777), "link"),
        (lambda: zipped({"zeros": bytes(600 << 20)}), "zeros"),
        (lambda: b"not a zip", ""),
    ],
    ids=["dots", "absolute", "link", "bomb", "no zip"],
)
def test_a_package_with_anything_but_plain_files_is_refused_by_entry(
    here: Stage, pack: Callable[[], bytes], entry: str
) -> None:
    data = pack()
    answer = here.client.put(f"/api/v1/packages/{package.digest(data)}", content=data)
    assert (answer.status_code, answer.json()["code"]) == (422, "package_refused")
    assert entry in answer.json()["errors"][0]["value"]
    assert list((here.home / "packages").iterdir()) == [], "nothing of a refused upload stays"


def test_an_upload_with_another_hash_or_too_big_is_refused(tmp_path: Path) -> None:
    here = stage(tmp_path, max_package_bytes=1000)
    wrong = here.client.put("/api/v1/packages/" + "0" * 64, content=zipped({"a": b"b"}))
    assert (wrong.status_code, wrong.json()["code"]) == (422, "wrong_hash")
    big = here.client.put("/api/v1/packages/" + "0" * 64, content=(bytes(100) for _ in range(20)))
    assert big.status_code == 413
    assert here.client.put("/api/v1/packages/..%2Ftoken", content=b"").status_code in (404, 405, 422)
    assert list((here.home / "packages").iterdir()) == []


def test_artifacts_are_plain_files_below_the_jobs_folder(here: Stage) -> None:
    job_id = here.submit()
    folder = here.home / "jobs" / job_id / "artifacts"
    folder.mkdir(parents=True)
    (folder / "weights.safetensors").write_bytes(b"12345")
    (folder / "token").symlink_to(here.home / "token")
    base = f"/api/v1/jobs/{job_id}/artifacts"
    assert here.client.get(base).json()["items"] == [{"name": "weights.safetensors", "size_bytes": 5}]
    assert here.client.get(f"{base}/weights.safetensors").content == b"12345"
    assert here.client.get(f"{base}/weights").content == b"12345"
    for name in ("token", "..%2F..%2F..%2Ftoken", "ledger.parquet"):
        assert here.client.get(f"{base}/{name}").status_code == 404, name


def test_cluster_version_health_and_counters_are_told(here: Stage) -> None:
    assert here.client.get("/readyz").status_code == 503, "the cluster has not been contacted"
    here.running()
    assert here.client.get("/readyz").json() == {"ok": True, "trouble": []}
    cluster = here.client.get("/api/v1/cluster").json()
    assert (cluster["reachable"], cluster["cpus"], cluster["nodes"][0]["id"]) == (True, 4, "n1")
    assert here.client.get("/api/v1/version").json()["api"] == "v1"
    text = here.client.get("/metrics").text
    for wanted in (
        'ringleader_jobs{state="running"} 1.0',
        "ringleader_submissions_total 1.0",
        "ringleader_scheduling_seconds_count 1.0",
        "ringleader_cluster_up 1.0",
        'route="/api/v1/jobs/{job_id}/ingest"',
    ):
        assert wanted in text, wanted
    here.cluster.down = True
    here.tick()
    assert "the cluster cannot be reached" in here.client.get("/readyz").json()["trouble"][0]


def test_the_page_is_served_or_says_that_it_was_not_built(here: Stage) -> None:
    for path in ("/", "/submit", "/jobs/job_x"):
        answer = here.client.get(path)
        assert (answer.status_code, answer.headers["content-type"]) == (200, "text/html; charset=utf-8")
    for path in ("/../token", "/..%2F..%2Fapp.py", "/assets/none.js", "/%2e%2e/app.py"):
        assert here.client.get(path).status_code == 404, path


def test_more_label_filters_than_anybody_needs_are_refused(here: Stage) -> None:
    for count, expected in ((20, 200), (21, 422), (2000, 422)):
        query = "&".join(f"label=k{n}=v" for n in range(count))
        answer = here.client.get(f"/api/v1/jobs?{query}")
        assert answer.status_code == expected, answer.text[:200]
