"""What the OpenAPI document promises, held against requests that are drawn from it: right ones and wrong ones."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from contract import Contract, operations
from control_plane import Stage, stage

from ringleader.wire.views import JobView

CONTRACT = Path(__file__).parents[2] / "api" / "openapi.json"
OPERATIONS = operations(json.loads(CONTRACT.read_text(encoding="utf-8")))
LAST = "DELETE /api/v1/login"


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
