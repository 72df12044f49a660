"""Bodies that are no job: what is wrong is named, with its value, and can be said whatever it held."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from control_plane import SPEC, Stage, stage

from ringleader.wire.views import Problem


@pytest.fixture
def here(tmp_path: Path) -> Stage:
    return stage(tmp_path)


WRONG: list[tuple[dict[str, Any], str, Any]] = [
    ({"worker": {"min": 1}}, "/worker", {"min": 1}),
    ({"workers": {"min": 3, "max": 2}}, "/workers/min", 3),
    ({"workers": {"min": "two"}}, "/workers/min", "two"),
    ({"workers": {"mini": 1}}, "/workers/mini", 1),
    ({"entrypoint": "no_colon"}, "/entrypoint", "no_colon"),
    ({"sync": "gossip"}, "/sync/intra_node", "gossip"),
    (
        {"sync": {"intra_node": "parameter_server", "inter_node": "parameter_server", "algorithm": "ring"}},
        "/sync/algorithm",
        "ring",
    ),
    ({"sync": {"algorithm": "native", "reproducible": True}}, "/sync/reproducible", True),
    ({"batch": {"global_size": 0}}, "/batch/global_size", 0),
    ({"batch": {"logical_shards": 1}}, "/batch/logical_shards", 1),
    ({"seed": -1}, "/seed", -1),
    ({"max_failures": 1.5}, "/max_failures", 1.5),
    ({"max_runtime_s": 0}, "/max_runtime_s", 0),
    ({"name": "no spaces"}, "/name", "no spaces"),
    ({"labels": {"a": 1}}, "/labels/a", 1),
    ({"env": {"1A": "x"}}, "/env/1A", "1A"),
    ({"working_dir": "./here"}, "/working_dir", "./here"),
    ({"working_dir": "sha256:" + "0" * 64}, "/working_dir", "sha256:" + "0" * 64),
]


@pytest.mark.parametrize(("change", "pointer", "value"), WRONG, ids=[str(w[0])[:50] for w in WRONG])
def test_a_wrong_key_is_named_with_its_value_and_what_is_allowed(
    here: Stage, change: dict[str, Any], pointer: str, value: Any
) -> None:
    for query in ("", "?dry_run=true"):
        answer = here.client.post(f"/api/v1/jobs{query}", json={**SPEC, **change})
        problem = Problem.model_validate(answer.json())
        assert (answer.status_code, problem.code) == (422, "spec_invalid")
        found = {f.pointer: f for f in problem.errors}
        assert pointer in found, problem.errors
        assert found[pointer].value == value
        assert found[pointer].allowed
    assert here.client.get("/api/v1/jobs").json()["items"] == []


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'"x"', b"null", b"[" * 100_000])
def test_a_body_that_is_no_job_file_is_a_problem(here: Stage, body: bytes) -> None:
    answer = here.client.post("/api/v1/jobs", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code in (400, 422), answer.text
    assert answer.headers["content-type"] == "application/problem+json"


def test_there_is_no_depth_of_a_body_at_which_we_fail(here: Stage) -> None:
    as_json = {"Content-Type": "application/json"}
    told = set()
    # Just below what Python reads: a frame more or less decides who of several readers fails.
    for deep in range(990, 920, -1):
        body = '{"name": ' + "[" * deep + "]" * deep + "}"
        told.add(here.client.post("/api/v1/tokens", content=body.encode(), headers=as_json).status_code)
    assert told == {400, 422}, "some are too deep, and some are no name"


TWICE = [
    ('{"name": "a", "entrypoint": "m:f", "name": "b"}', "/name", "b"),
    ('{"name": "a", "workers": {"min": 1, "max": 2, "min": 2}}', "/workers/min", 2),
    ('{"params": {"a": [{"b/c": 1}, {"b/c": 1, "b/c": null}]}}', "/params/a/1/b~1c", None),
    ('{"sync": "ring", "sync": {}}', "/sync", None),
]


@pytest.mark.parametrize(("body", "pointer", "value"), TWICE, ids=[w[1] for w in TWICE])
def test_a_key_that_a_body_names_twice_is_refused_by_name(
    here: Stage, body: str, pointer: str, value: Any
) -> None:
    as_json = {"Content-Type": "application/json"}
    for method, path in [("POST", "jobs"), ("POST", "jobs?dry_run=true"), ("PATCH", f"jobs/{here.submit()}")]:
        answer = here.client.request(method, f"/api/v1/{path}", content=body, headers=as_json)
        problem = Problem.model_validate(answer.json())
        assert (answer.status_code, problem.code) == (422, "key_twice")
        assert [(f.pointer, f.value) for f in problem.errors] == [(pointer, value)]
    assert len(here.client.get("/api/v1/jobs").json()["items"]) == 1


UNSENDABLE = [
    (r'{"params": {"a": "\ud800"}}', "/params/a", "\\ud800"),
    (r'{"params": {"a": [{"b\udcff": 1}]}}', "/params/a/0/b\\udcff", "b\\udcff"),
    (r'{"labels": {"a": "x\udcff"}}', "/labels/a", "x\\udcff"),
    (r'{"env": {"A": "x\udcff"}}', "/env/A", "x\\udcff"),
    (r'{"\ud800": 1}', "/\\ud800", "\\ud800"),
    (r'{"name": "\ud800"}', "/name", "\\ud800"),
]


@pytest.mark.parametrize(("change", "pointer", "value"), UNSENDABLE, ids=[w[0] for w in UNSENDABLE])
def test_text_that_utf8_cannot_carry_is_refused_and_the_list_still_answers(
    here: Stage, change: str, pointer: str, value: str
) -> None:
    body = json.dumps({**SPEC, **json.loads(change)})
    answer = here.client.post("/api/v1/jobs", content=body, headers={"Content-Type": "application/json"})
    problem = Problem.model_validate(answer.json())
    assert (answer.status_code, problem.code) == (422, "spec_invalid")
    assert [(f.pointer, f.value) for f in problem.errors] == [(pointer, value)]
    assert here.client.get("/api/v1/jobs").json()["items"] == []


def test_a_refusal_can_be_sent_whatever_the_request_held(here: Stage) -> None:
    job_id = here.submit()
    as_json = {"Content-Type": "application/json"}
    for method, path, body in [
        ("POST", "/api/v1/jobs", json.dumps({**SPEC, "seed": math.nan})),
        ("POST", "/api/v1/jobs", json.dumps({**SPEC, "batch": {"extra": [math.inf]}})),
        ("POST", f"/api/v1/jobs/{job_id}/cancel", r'{"\ud800": "\udcff"}'),
        ("PATCH", f"/api/v1/jobs/{job_id}", r'{"workers": {"max": "\ud800"}}'),
        ("PATCH", f"/api/v1/jobs/{job_id}", r'{"\ud800": 1}'),
    ]:
        answer = here.client.request(method, path, content=body, headers=as_json)
        assert (answer.status_code, bool(Problem.model_validate(answer.json()).errors)) == (422, True), body


FORM = {"Content-Type": "application/x-www-form-urlencoded"}


@pytest.mark.parametrize("headers", [{}, FORM, {"Content-Type": "text/json"}], ids=["none", "form", "text"])
def test_a_body_that_is_not_declared_as_json_is_answered_with_the_header_to_send(
    here: Stage, headers: dict[str, str]
) -> None:
    job_id = here.submit()
    for method, path, body in [
        ("POST", "/api/v1/jobs", SPEC),
        ("POST", "/api/v1/jobs?dry_run=true", SPEC),
        ("PATCH", f"/api/v1/jobs/{job_id}", {"workers": {"max": 2}}),
    ]:
        answer = here.client.request(method, path, content=json.dumps(body), headers=headers)
        problem = Problem.model_validate(answer.json())
        assert (answer.status_code, problem.code) == (415, "unsupported_media_type")
        assert "Content-Type: application/json" in problem.hint
    assert [job["id"] for job in here.client.get("/api/v1/jobs").json()["items"]] == [job_id]
