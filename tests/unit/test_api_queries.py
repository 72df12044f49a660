"""Query parameters that a route does not have are refused: whoever asks for something gets it, or hears of it."""

import re
from pathlib import Path

import pytest
from control_plane import SPEC, Stage, stage
from test_api_guard import stranger

from ringleader.errors import FINDINGS_TOLD


@pytest.fixture
def here(tmp_path: Path) -> Stage:
    return stage(tmp_path)


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("dryrun=true", "query: dryrun: no such parameter; allowed: dry_run"),
        ("dry_run=true&dry_run=false", "query: dry_run: given 2 times, and takes one value"),
    ],
    ids=["another name", "twice"],
)
def test_a_dry_run_that_is_asked_for_otherwise_starts_no_job(here: Stage, query: str, says: str) -> None:
    refused = here.client.post(f"/api/v1/jobs?{query}", json=SPEC)
    assert (refused.status_code, refused.json()["code"]) == (422, "bad_query")
    assert says in refused.json()["detail"]
    assert not here.client.get("/api/v1/jobs").json()["items"]


def test_a_filter_that_no_list_has_does_not_return_all(here: Stage) -> None:
    here.submit()
    refused = here.client.get("/api/v1/jobs?stat=running&limit=1&limit=2")
    assert refused.status_code == 422
    assert [found["pointer"] for found in refused.json()["errors"]] == ["query: stat", "query: limit"]
    assert "state, project, name, owner, label" in refused.json()["errors"][0]["allowed"]


def test_what_a_list_may_be_asked_by_again_and_again_it_may(here: Stage) -> None:
    job_id = here.submit(labels={"a": "1", "b": "2"}, params={"x": 1, "y": 2})
    here.submit(labels={"a": "1"})
    found = here.client.get("/api/v1/jobs?label=a=1&label=b=2&param=x=1&param=y=2").json()["items"]
    assert [job["id"] for job in found] == [job_id]


def addresses(here: Stage) -> list[tuple[str, str]]:
    """Every operation of the REST API; those of jobs are asked about one that is there."""
    job_id = here.submit()
    document = here.client.get("/api/v1/openapi.json").json()["paths"]
    return [
        (method, re.sub(r"\{[^}]*\}", "x", path.replace("{job_id}", job_id)))
        for path, operations in document.items()
        for method in operations
        if path.startswith("/api/v1/")
    ]


def test_no_route_takes_a_query_that_it_does_not_have(here: Stage) -> None:
    asked = addresses(here)
    assert len(asked) > 50
    took = []
    for method, path in asked:
        body = {} if method in ("post", "put", "patch") else None
        answer = here.client.request(method, f"{path}?nosuch=1", json=body)
        code = answer.json()["code"] if answer.content else ""
        if (answer.status_code, code) not in ((422, "bad_query"), (422, ""), (403, "forbidden")):
            took.append((method, path, answer.status_code, code))
    assert not took


def test_a_stranger_hears_nothing_of_what_a_route_takes(here: Stage) -> None:
    answer = stranger(here).get("/api/v1/jobs?stat=running")
    assert (answer.status_code, "allowed" in answer.text) == (401, False)


def test_of_many_wrong_parameters_the_first_are_told(here: Stage) -> None:
    query = "&".join(f"k{n}=1" for n in range(5000))
    refused = here.client.get(f"/api/v1/jobs?{query}&{'x' * 9000}=1")
    assert len(refused.json()["errors"]) == FINDINGS_TOLD
    assert f"… and {5001 - FINDINGS_TOLD:,} more" in refused.json()["detail"]
    assert len(refused.content) < 32_000
