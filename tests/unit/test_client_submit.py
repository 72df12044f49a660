"""Submitting through the SDK: what is checked, packed, uploaded and sent."""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from fake_api import TOKEN, URL, FakeApi, problem

import ringleader
from ringleader.client import Client
from ringleader.errors import ApiProblem, ApiUnreachable, SpecInvalid
from ringleader.spec import JobSpec
from ringleader.wire import package

SPEC: dict[str, Any] = {"name": "digits", "entrypoint": "train:main", "sync": "ring"}


@pytest.fixture
def api() -> FakeApi:
    return FakeApi()


@pytest.fixture
def client(api: FakeApi) -> Client:
    return Client(URL, TOKEN, transport=api)


def _body(api: FakeApi) -> dict[str, Any]:
    return dict(json.loads(api.calls("POST", "/jobs")[-1].content))


def test_a_mapping_a_job_spec_and_a_file_send_the_same_body(
    client: Client, api: FakeApi, tmp_path: Path
) -> None:
    path = tmp_path / "job.yaml"
    path.write_text("name: digits\nentrypoint: train:main\nsync: ring\n")
    bodies = []
    for source in (SPEC, JobSpec.parse(SPEC), path, str(path)):
        client.submit(source)
        bodies.append(_body(api))
    assert bodies[0] == SPEC | {"sync": {"intra_node": "ring", "inter_node": "ring"}}
    assert all(body == bodies[0] for body in bodies)


def test_a_wrong_job_file_is_refused_before_anything_is_sent(client: Client, api: FakeApi) -> None:
    with pytest.raises(SpecInvalid, match="wrokers"):
        client.submit({**SPEC, "wrokers": 3})
    assert api.seen == []


def test_the_framework_that_auto_stands_for_is_chosen_before_anything_is_sent(
    client: Client, api: FakeApi, tmp_path: Path
) -> None:
    text = "import ray.train\nimport torch\ndef main(config):\n    torch.distributed.barrier()\n"
    (tmp_path / "train.py").write_text(text)
    job = {"name": "a", "entrypoint": "train:main", "framework": "auto"}
    client.submit(job, working_dir=tmp_path)
    body = _body(api)
    assert body["framework"] == "ray_train_hosted"
    assert "line 4: torch.distributed.barrier: collectives of its own" in body["framework_why"]
    assert {key: body[key] for key in ("name", "entrypoint")} == {"name": "a", "entrypoint": "train:main"}


def test_a_working_dir_is_relative_to_its_job_file_packed_and_uploaded_once(
    client: Client, api: FakeApi, tmp_path: Path
) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text("def main(session): ...\n")
    path = tmp_path / "job.yaml"
    path.write_text(json.dumps({**SPEC, "working_dir": "code"}))
    client.submit(path)
    client.submit(path)
    name = _body(api)["working_dir"]
    assert package.digest(api.packages[name]) == name
    assert len(api.calls("PUT", f"/packages/{name}")) == 1
    assert len(api.calls("HEAD", f"/packages/{name}")) == 2


def test_an_upload_that_broke_off_is_sent_from_there(client: Client, api: FakeApi, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("def main(session): ...\n")
    packed = package.pack(tmp_path)
    name = package.digest(packed)
    api.begun[name] = packed[:20]
    client.submit(SPEC, working_dir=tmp_path)
    assert api.packages[name] == packed
    assert [put.content for put in api.calls("PUT", f"/packages/{name}")] == [packed[20:]]


def test_an_upload_that_breaks_off_while_it_is_sent_goes_on_where_it_was(
    client: Client, api: FakeApi, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text("def main(session): ...\n")
    packed = package.pack(tmp_path)
    name = package.digest(packed)
    api.faults = [problem(404, "not_found", "there is no such package"), httpx.ReadError("broke off")]
    api.begun[name] = packed[:20]
    client.submit(SPEC, working_dir=tmp_path)
    assert api.packages[name] == packed
    assert len(api.calls("PUT", f"/packages/{name}")) == 3, "broke off, refused, and the rest"


def test_an_upload_that_another_process_of_the_user_makes_is_waited_for(
    client: Client, api: FakeApi, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text("def main(session): ...\n")
    packed = package.pack(tmp_path)
    name = package.digest(packed)
    under_way = problem(409, "upload_under_way", "you are uploading this package already")
    absent = problem(404, "not_found", "there is no such package")
    api.faults = [absent, under_way, absent, under_way]
    api.packages[name] = packed  # the other one has come to its end
    client.submit(SPEC, working_dir=tmp_path)
    sent = [(request.method, len(request.content)) for request in api.seen]
    assert sent[:-1] == [("HEAD", 0), ("PUT", len(packed))] * 2 + [("HEAD", 0)]


def test_an_upload_of_another_process_that_does_not_go_on_is_told(api: FakeApi, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("def main(session): ...\n")
    under_way = problem(
        409, "upload_under_way", "you are uploading this package already", hint="Wait for it."
    )
    api.faults = [problem(404, "not_found", "there is no such package"), under_way] * 50
    with (
        pytest.raises(ApiProblem, match="Wait for it"),
        Client(URL, TOKEN, transport=api, patience_s=0.01) as hasty,
    ):
        hasty.submit(SPEC, working_dir=tmp_path)
    assert api.jobs == []


def test_the_working_dir_argument_wins_and_a_digest_is_left_alone(
    client: Client, api: FakeApi, tmp_path: Path
) -> None:
    digest = "sha256:" + "0" * 64
    client.submit({**SPEC, "working_dir": digest})
    assert _body(api)["working_dir"] == digest
    client.submit({**SPEC, "working_dir": digest}, working_dir=tmp_path)
    assert _body(api)["working_dir"] == package.digest(package.pack(tmp_path))


def test_a_submit_repeated_after_an_outage_carries_the_same_idempotency_key(
    client: Client, api: FakeApi
) -> None:
    api.faults = [httpx.ConnectError("refused"), httpx.ReadError("reset"), httpx.Response(503)]
    client.submit(SPEC)
    keys = {request.headers["idempotency-key"] for request in api.calls("POST", "/jobs")}
    assert len(api.calls("POST", "/jobs")) == 4
    assert len(keys) == 1
    client.submit(SPEC)
    assert api.calls("POST", "/jobs")[-1].headers["idempotency-key"] not in keys


def test_a_preview_submits_nothing(client: Client, api: FakeApi) -> None:
    assert client.preview(SPEC)["starts_now"] is False
    assert api.jobs == []


def test_a_refusal_arrives_with_code_hint_and_findings(client: Client, api: FakeApi) -> None:
    finding = {"pointer": "/workers/min", "value": 99, "allowed": "<= 4", "message": "too many"}
    api.faults = [problem(422, "infeasible", "above the cluster", hint="Ask for less.", errors=[finding])]
    with pytest.raises(ApiProblem) as refused:
        client.submit(SPEC)
    assert (refused.value.status, refused.value.code, refused.value.hint) == (
        422,
        "infeasible",
        "Ask for less.",
    )
    assert refused.value.errors == [finding]
    assert len(api.seen) == 1


def test_what_may_not_be_repeated_is_sent_once(client: Client, api: FakeApi) -> None:
    job = client.submit(SPEC)
    api.faults = [httpx.ReadError("reset")]
    with pytest.raises(ApiUnreachable, match=URL):
        job.delete()
    assert len(api.calls("DELETE", f"/jobs/{job.id}")) == 1


def test_an_answer_that_is_no_problem_document_still_names_its_status(client: Client, api: FakeApi) -> None:
    api.faults = [httpx.Response(418, text="<html>")]
    with pytest.raises(ApiProblem, match="418") as refused:
        client.cluster()
    assert refused.value.code == "http_418"


def test_jobs_reads_every_page(client: Client, api: FakeApi) -> None:
    ids = [client.submit({**SPEC, "name": f"n{i}"}).id for i in range(5)]
    assert [job.id for job in client.jobs()] == ids
    assert [job.view.name for job in client.jobs(name="n3")] == ["n3"]
    assert client.job(ids[2]).id == ids[2]


def test_groups_are_asked_for_in_the_words_of_the_api_and_filtered_as_a_list_is(
    client: Client, api: FakeApi
) -> None:
    of_loss = {"last": 0.25, "min": 0.125, "max": 2.0, "jobs": 2}
    group = {"value": "vision", "filter": "team=vision", "jobs": 3, "metrics": {"val/loss": of_loss}}
    lacking = {"value": None, "filter": "!team", "jobs": 1, "metrics": {}}
    api.groups = {"groups": [group, lacking], "more": True}
    found = client.job_groups("label:team", metrics=["val/loss", "x"], label="a=b", param=("lr=0.1", "!c"))
    assert found.more
    assert [(one.value, one.filter, one.jobs) for one in found.groups] == [
        ("vision", "team=vision", 3),
        (None, "!team", 1),
    ]
    assert found.groups[0].metrics["val/loss"].min == 0.125
    assert list(api.calls("GET", "/jobs/groups")[0].url.params.multi_items()) == [
        ("label", "a=b"), ("param", "lr=0.1"), ("param", "!c"), ("by", "label:team"), ("metrics", "val/loss,x"),
    ]  # fmt: skip


def test_occupancy_says_who_takes_what_and_who_waits(client: Client) -> None:
    seen = client.occupancy()
    first, second = seen.nodes
    assert [(one.name, one.places, one.cpus) for one in first.jobs] == [("digits-1", 2, 2.0), (None, 1, 1.0)]
    assert (first.others.cpus, second.jobs, seen.growing) == (0.5, [], None)
    head, behind = seen.queue
    assert head.why is not None
    assert (head.name, head.why.code, behind.job, seen.waiting) == ("cifar", "waiting_for_capacity", None, 5)
    assert (seen.projects[0].quota.workers, seen.projects[0].held.workers) == (9, 2)


def test_the_public_name_is_this_client() -> None:
    assert ringleader.Client is Client
