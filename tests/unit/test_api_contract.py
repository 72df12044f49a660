"""What the OpenAPI document promises, held against requests that are drawn from it: right ones and wrong ones."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from contract import Contract, operations
from control_plane import DATABASES, SPEC, Stage, stage, stage_over

from ringleader.wire.views import JobView

CONTRACT = Path(__file__).parents[2] / "api" / "openapi.json"
OPERATIONS = operations(json.loads(CONTRACT.read_text(encoding="utf-8")))


@pytest.fixture(scope="module")
def contract(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Contract]:
    """Over a control plane whose threads run, with a job at work, one that waits and one that was cancelled."""
    here = stage(tmp_path_factory.mktemp("contract"), tick_s=0.05)
    one = {"workers": {"min": 1, "max": 1}}
    ids = [here.running(**one), here.submit(workers={"min": 4, "max": 4}), here.submit(**one)]
    here.client.post(f"/api/v1/jobs/{ids[2]}/cancel")
    token = here.cluster.alive[ids[0], 1].ingest_token
    with here.client:
        yield Contract(here, ids, token)


@pytest.mark.parametrize("label", OPERATIONS)
def test_nothing_is_answered_but_what_the_document_says(contract: Contract, label: str) -> None:
    contract.hold(OPERATIONS[label], examples=2)


@pytest.mark.chaos
@pytest.mark.parametrize("label", OPERATIONS)
def test_nothing_is_answered_but_what_the_document_says_at_length(contract: Contract, label: str) -> None:
    contract.hold(OPERATIONS[label], examples=150)


NUL, HALF = "\0", "\ud800"
DEEP = json.loads("[" * 300 + "]" * 300)
"""JSON that is read and cannot be written by everybody."""
HOSTILE: list[tuple[int, str, str, Any, dict[str, str]]] = [
    (404, "GET", "/%00", None, {}),
    (404, "GET", "/assets/%00", None, {}),
    (404, "GET", "/" + "a" * 300, None, {}),
    (404, "GET", "/" + "a/" * 3000, None, {}),
    (404, "GET", "/api/v1/packages/%00", None, {}),
    (404, "GET", "/api/v1/jobs/%00", None, {}),
    (404, "DELETE", "/api/v1/jobs/%00" + "a" * 600, None, {}),
    (404, "DELETE", "/api/v1/secrets/default/%00", None, {}),
    (404, "GET", "/api/v1/jobs/{ended}/artifacts/%00", None, {}),
    (422, "HEAD", "/api/v1/packages/%00", None, {}),
    (405, "A" * 300, "/api/v1/jobs", None, {}),
    (422, "GET", "/api/v1/jobs?label=a%22b=x", None, {}),
    (422, "GET", "/api/v1/jobs?label=%00=x", None, {}),
    (200, "GET", "/api/v1/jobs?label=a=%00&name=%00&project=%00", None, {}),
    (422, "GET", "/api/v1/jobs?limit=" + "9" * 5000, None, {}),
    (422, "GET", "/api/v1/jobs?cursor=%00", None, {}),
    (200, "GET", "/api/v1/jobs/{ended}/logs?worker=%00&text=%00", None, {}),
    (422, "GET", "/api/v1/jobs/{ended}/events?after=" + "9" * 5000, None, {}),
    *[(200, "GET", "/api/v1/jobs/{ended}/events", None, {"Accept": "text/event-stream", "Last-Event-ID": number})
      for number in ("1" * 5000, "9" * 19, "-1", "x")],
    (422, "POST", "/api/v1/jobs", {"name": DEEP, "x": DEEP}, {}),
    (422, "POST", "/api/v1/jobs", {**SPEC, "params": {"x": DEEP}}, {}),
    (422, "POST", "/api/v1/jobs", {**SPEC, "labels": {"a": f"x{NUL}"}}, {}),
    (422, "POST", "/api/v1/jobs", {**SPEC, "labels": {"a": "x\ty"}}, {}),
    (422, "POST", "/api/v1/jobs", {**SPEC, "labels": {f"a{NUL}": "x"}}, {}),
    (422, "POST", "/api/v1/jobs", {**SPEC, "name": f"a{NUL}"}, {}),
    (201, "POST", "/api/v1/jobs", {**SPEC, "params": {f"x{NUL}": NUL}}, {}),
    (403, "POST", "/api/v1/jobs", SPEC, {"Origin": "http://[::1"}),
    (413, "POST", "/api/v1/jobs", SPEC, {"Content-Length": "9" * 5000}),
    (422, "PATCH", "/api/v1/jobs/{queued}", {"x": DEEP}, {}),
    (422, "PATCH", "/api/v1/jobs/{queued}", {"workers": {"min": DEEP, "x": DEEP}}, {}),
    (422, "PUT", "/api/v1/secrets/default/x", {"value": f"long enough {HALF}"}, {}),
    (422, "PUT", "/api/v1/secrets/default/x", {"value": DEEP}, {}),
    (422, "POST", "/api/v1/tokens", {"name": HALF}, {}),
    (422, "POST", "/api/v1/tokens", {"name": "x", "expires_in_s": True}, {}),
    (422, "POST", "/api/v1/tokens", {"name": "x", "expires_in_s": "60"}, {}),
    (422, "POST", "/api/v1/jobs/{queued}/cancel", {"grace_s": True}, {}),
    (422, "POST", "/api/v1/jobs/{queued}/faults", {"fault": "supervisor", "for_s": True}, {}),
    (422, "PATCH", "/api/v1/projects/default", {"weight": True}, {}),
    *[(422, "PATCH", "/api/v1/projects/default", {"quota": {what: True}}, {}) for what in ("workers", "cpus", "gpus")],
    (401, "POST", "/api/v1/login", {"token": HALF}, {}),
    (422, "POST", "/api/v1/login", "[" * 8_000, {}),
    (413, "POST", "/api/v1/login", "[" * 100_000, {}),
]  # fmt: skip


@pytest.fixture(scope="module", params=DATABASES)
def beset(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Stage, str, str]]:
    """A control plane over either database, a job that waits and one that was cancelled."""
    with stage_over(request, tmp_path_factory.mktemp("beset")) as here:
        queued, ended = (here.submit(labels={"a": "1"}) for _ in range(2))
        here.client.post(f"/api/v1/jobs/{ended}/cancel")
        yield here, queued, ended


@pytest.mark.parametrize(
    ("expected", "method", "path", "body", "headers"),
    HOSTILE,
    ids=[f"{n}-{method[:8]}-{path[:40]}" for n, (_, method, path, _, _) in enumerate(HOSTILE)],
)
def test_no_5xx(
    beset: tuple[Stage, str, str],
    *,
    expected: int,
    method: str,
    path: str,
    body: Any,
    headers: dict[str, str],
) -> None:
    """Nor does what somebody was let do keep others from reading what is there."""
    here, queued, ended = beset
    address = path.replace("{queued}", queued).replace("{ended}", ended)
    content = body if isinstance(body, str) or body is None else json.dumps(body)
    told = here.client.request(
        method, address, content=content, headers={"Content-Type": "application/json", **headers}
    )
    assert told.status_code == expected, told.text[:500]
    if expected >= 400 and method != "HEAD":
        assert told.headers["content-type"] == "application/problem+json"
        assert told.json()["status"] == expected
    assert here.client.get("/api/v1/audit").status_code == 200
    found = [item["id"] for item in here.client.get("/api/v1/jobs?label=a=1").json()["items"]]
    assert found == [ended, queued]


def test_a_submission_to_what_cannot_be_seen_is_answered_as_the_document_says(tmp_path: Path) -> None:
    ada = stage(tmp_path).user("ada", default="submitter")
    answer = ada.post("/api/v1/jobs", json={**SPEC, "project": "nowhere"})
    assert answer.status_code == 404
    assert "404" in OPERATIONS["POST /api/v1/jobs"].definition.raw["responses"]


def test_only_the_fields_that_are_asked_for_are_answered(tmp_path: Path) -> None:
    here = stage(tmp_path)
    job_id = here.submit()
    job = here.client.get(f"/api/v1/jobs/{job_id}?fields=id,progress")
    assert job.json() == {"id": job_id, "progress": {"step": 0, "total_steps": None, "epoch": 0}}
    assert job.headers["etag"] == here.client.get(f"/api/v1/jobs/{job_id}").headers["etag"]
    page = here.client.get("/api/v1/jobs?fields=state&limit=1")
    assert page.json() == {"items": [{"state": "queued"}], "next_cursor": None}
    for path in (f"/api/v1/jobs/{job_id}?fields=id,sate", "/api/v1/jobs?fields=sate", "/api/v1/jobs?fields="):
        wrong = here.client.get(path)
        assert (wrong.status_code, wrong.json()["code"]) == (422, "bad_fields")
        assert wrong.json()["errors"][0]["allowed"] == ", ".join(JobView.model_fields)


@pytest.mark.parametrize("verb", ["cancel", "pause", "resume"])
def test_what_somebody_else_changed_first_is_left_alone(tmp_path: Path, verb: str) -> None:
    here: Stage = stage(tmp_path)
    address = f"/api/v1/jobs/{here.submit()}"
    seen = here.client.get(address).headers["etag"]
    now = here.client.post(f"{address}/pause", headers={"If-Match": seen}).headers["etag"]
    late = here.client.post(f"{address}/{verb}", headers={"If-Match": seen})
    assert (late.status_code, late.json()["code"], now != seen) == (412, "precondition_failed", True)
    assert here.client.get(address).json()["state"] == "paused"
    informed = here.client.post(f"{address}/{verb}", headers={"If-Match": f'"0", {now}'})
    assert informed.status_code == 202
    assert informed.headers["etag"] == here.client.get(address).headers["etag"]


def test_a_delete_may_name_the_version_that_was_seen(tmp_path: Path) -> None:
    here = stage(tmp_path)
    address = f"/api/v1/jobs/{here.submit()}"
    seen = here.client.get(address).headers["etag"]
    now = here.client.post(f"{address}/cancel").headers["etag"]
    codes = [here.client.delete(address, headers={"If-Match": tag}).status_code for tag in (seen, now)]
    assert codes == [412, 204]
