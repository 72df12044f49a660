"""The audit log: who changed what, in the transaction of the change; who was refused; readable by admins alone."""

import re
from pathlib import Path

import pytest
from control_plane import SPEC, URL, Stage, stage
from sqlalchemy import text


@pytest.fixture
def here(tmp_path: Path) -> Stage:
    return stage(tmp_path)


def told(here: Stage, query: str = "") -> list[tuple[str, ...]]:
    """(who, method, path, target, outcome), oldest first."""
    items = here.client.get(f"/api/v1/audit?limit=1000{query}").json()["items"]
    return [tuple(e[k] for k in ("who", "method", "path", "target", "outcome")) for e in items[::-1]]


def test_every_change_leaves_one_row_that_names_who_and_what(here: Stage) -> None:
    ada = here.user("ada", vision="submitter")
    before = len(told(here))
    job_id = ada.post("/api/v1/jobs", json={**SPEC, "project": "vision"}).json()["id"]
    base = f"/api/v1/jobs/{job_id}"
    ada.patch(base, json={"workers": {"max": 2}})
    ada.get(base)
    ada.post(f"{base}/cancel")
    here.client.delete(base)
    assert told(here)[before:] == [
        ("ada", "POST", "/api/v1/jobs", job_id, "done"),
        ("ada", "PATCH", base, job_id, "done"),
        ("ada", "POST", f"{base}/cancel", job_id, "done"),
        ("admin", "DELETE", base, job_id, "done"),
    ]
    entry = here.client.get("/api/v1/audit?limit=1").json()["items"][0]
    assert (entry["project"], entry["token"][:4], entry["source"]) == ("vision", "tok_", "testclient")


def test_a_change_whose_row_cannot_be_stored_is_not_made(here: Stage) -> None:
    job_id = here.submit()
    with here.control.store.write() as session:
        session.execute(text("DROP TABLE audit"))
    assert here.client.post("/api/v1/jobs", json=SPEC).status_code == 500
    assert here.client.post(f"/api/v1/jobs/{job_id}/cancel").status_code == 500
    assert here.client.post("/api/v1/users", json={"name": "ada"}).status_code == 500
    assert [j["id"] for j in here.client.get("/api/v1/jobs").json()["items"]] == [job_id]
    assert here.state(job_id) == "queued"
    assert [u["name"] for u in here.client.get("/api/v1/users").json()["items"]] == ["admin"]


def test_a_change_that_fails_leaves_no_row_that_says_done(here: Stage) -> None:
    job_id = here.submit()
    before = len(told(here))
    here.client.delete(f"/api/v1/jobs/{job_id}")
    here.client.post("/api/v1/jobs", json={})
    assert [row[-1] for row in told(here)[before:]] == ["409", "422"]


def test_a_token_that_was_not_made_is_not_named(here: Stage) -> None:
    body = {"name": "laptop", "user": "nobody"}
    assert here.client.post("/api/v1/tokens", json=body).status_code == 404
    made = here.client.post("/api/v1/tokens", json={**body, "user": "admin"}).json()
    assert [row[3:] for row in told(here)[-2:]] == [("nobody", "404"), (f"admin {made['id']}", "done")]


def test_who_was_refused_is_told_and_strangers_and_supervisors_are_not(here: Stage) -> None:
    job_id = here.running(project="vision")
    eve = here.user("eve", vision="viewer")
    before = len(told(here))
    eve.post(f"/api/v1/jobs/{job_id}/cancel")
    here.holding("").post(f"/api/v1/jobs/{job_id}/cancel")
    here.post(job_id)
    assert told(here)[before:] == [("eve", "POST", f"/api/v1/jobs/{job_id}/cancel", job_id, "403")]


def test_a_change_asked_for_from_another_site_is_told_as_refused(here: Stage) -> None:
    stranger = here.holding("")
    logged_in = stranger.post("/api/v1/login", json={"token": here.token()})
    cookie = {"Cookie": logged_in.headers["set-cookie"].partition(";")[0]}
    before = len(told(here))
    site, host = {"Origin": "http://evil.example"}, {"Host": "evil.example"}
    for client, headers in ((here.client, site), (here.client, host), (here.holding(""), site | cookie)):
        refused = client.post("/api/v1/projects", json={"name": "x"}, headers=headers)
        assert refused.status_code == 403
    assert here.holding("").get("/api/v1/jobs", headers=host | cookie).status_code == 403
    assert told(here)[before:] == [("admin", "POST", "/api/v1/projects", "", "403")] * 3


def test_who_asks_too_often_fills_metrics_and_not_the_log(tmp_path: Path) -> None:
    here = stage(tmp_path, requests_per_s=0.5)
    evil = {"Origin": "http://evil.example"}
    for _ in range(20):
        here.client.post("/api/v1/projects", json={"name": "x"}, headers=evil)
    counted = r'_count\{method="POST",route="unmatched",status="429"\} (\S+)'
    many = int(float(re.findall(counted, here.control.telemetry.text().decode())[0]))
    with here.control.store.read() as session:
        rows = session.scalar(text("SELECT count(*) FROM audit"))
    assert (many > 0, rows) == (True, 20 - many)


def test_what_was_refused_in_a_project_is_told_to_its_admins(here: Stage) -> None:
    ada, eve = here.user("ada", vision="admin"), here.user("eve", vision="viewer")
    stranger = here.user("mal", default="operator")
    assert eve.post("/api/v1/jobs", json={**SPEC, "project": "vision"}).status_code == 403
    assert eve.put("/api/v1/secrets/vision/hub", json={"value": "hunter22"}).status_code == 403
    assert stranger.delete("/api/v1/secrets/vision/hub").status_code == 404
    seen = [(e["who"], e["path"], e["outcome"]) for e in ada.get("/api/v1/audit").json()["items"]]
    assert seen[:3] == [
        ("mal", "/api/v1/secrets/vision/hub", "404"),
        ("eve", "/api/v1/secrets/vision/hub", "403"),
        ("eve", "/api/v1/jobs", "403"),
    ]


def test_log_ins_are_told_with_the_user_that_they_turned_out_to_be(here: Stage) -> None:
    before = len(told(here))
    page = here.holding("")
    page.post("/api/v1/login", json={"token": "wrong"})
    page.post("/api/v1/login", json={"token": (here.home / "token").read_text()})
    page.delete("/api/v1/login", headers={"Origin": URL})
    assert [row[:3] for row in told(here)[before:]] == [
        ("admin", "POST", "/api/v1/login"),
        ("admin", "DELETE", "/api/v1/login"),
    ]


def test_what_left_everything_as_it_was_leaves_no_row(here: Stage) -> None:
    before = len(told(here))
    for _ in range(3):
        assert here.client.post("/api/v1/jobs?dry_run=true", json=SPEC).status_code == 200
        assert here.client.delete("/api/v1/login").status_code == 204
    assert told(here)[before:] == []
    assert here.client.post("/api/v1/jobs?dry_run=true", json={}).status_code == 422
    assert [row[-1] for row in told(here)[before:]] == ["422"]


def test_no_row_holds_a_secret(here: Stage) -> None:
    token = here.token(name="ci")
    here.submit(env={"PASSWORD": "hunter22"})
    here.holding("").post("/api/v1/login", json={"token": token})
    told = here.client.get("/api/v1/audit").text
    assert token not in told
    assert "hunter22" not in told


def test_the_log_is_read_page_by_page_by_admins_of_what_it_concerns(here: Stage) -> None:
    jobs = [here.submit(project=project) for project in ("vision", "speech", "vision")]
    ada = here.user("ada", vision="admin")
    assert [e["target"] for e in ada.get("/api/v1/audit").json()["items"]][-2:] == [jobs[2], jobs[0]]
    assert {e["project"] for e in ada.get("/api/v1/audit").json()["items"]} == {"vision"}
    assert here.user("eve", every="operator").get("/api/v1/audit").status_code == 403
    seen, before = [], ""
    while True:
        page = here.client.get(f"/api/v1/audit?limit=2&by=admin{before}").json()
        seen += [e["id"] for e in page["items"]]
        if page["next"] is None:
            break
        before = f"&before={page['next']}"
    assert len(seen) == len(set(seen)) == len(told(here, "&by=admin"))
    assert seen == sorted(seen, reverse=True)
