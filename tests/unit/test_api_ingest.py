"""What supervisors post: stored once, from the living attempt only, and read back as feeds and curves."""

import json
import socket
from pathlib import Path
from typing import Any

import pytest
from control_plane import AT, RESULT, Stage, event, line, metric, outcome, place, stage, status
from httpx import Response

from ringleader.wire.ingest import MANY
from ringleader_api.edge.body_limit import INGEST_BYTES
from ringleader_api.services.users.access import load
from ringleader_api.store import record


@pytest.fixture
def here(tmp_path: Path) -> Stage:
    return stage(tmp_path)


def test_a_record_sent_twice_is_stored_once(here: Stage) -> None:
    job_id = here.running()
    first = [metric(1, 0, loss=3.0), metric(2, 1, loss=2.0), event(1, "worker.lost", step=1), line(1, "a")]
    assert here.post(job_id, records=first) == {"acked": {"metrics": 2, "events": 1, "logs": 1}}
    again = [*first, metric(3, 2, loss=1.0), line(1, "a"), line(2, "b")]
    assert here.post(job_id, records=again)["acked"] == {"metrics": 3, "events": 1, "logs": 2}
    base = f"/api/v1/jobs/{job_id}"
    curve = here.client.get(f"{base}/metrics?name=loss").json()
    assert [(p["step"], p["value"]) for p in curve["points"]] == [(0, 3.0), (1, 2.0), (2, 1.0)]
    assert here.events(job_id).count("worker.lost") == 1
    assert [item["line"] for item in here.client.get(f"{base}/logs").json()["items"]] == ["a", "b"]


def test_a_post_is_stored_whole_or_not_at_all(here: Stage) -> None:
    job_id = here.running()
    here.post(job_id, records=[metric(1, 0, loss=1.0), {"stream": "metrics", "seq": 2}], expect=422)
    assert here.client.get(f"/api/v1/jobs/{job_id}/metrics").json() == {"names": []}


def test_a_supervisor_of_an_earlier_attempt_is_refused(here: Stage) -> None:
    job_id = here.running()
    earlier = here.cluster.alive[job_id, 1].ingest_token
    here.post(job_id, records=[outcome(1, "failed", "min_workers_lost")])
    here.post(job_id, token=earlier, expect=409, records=[metric(1, 0, loss=1.0)])
    here.tick(2)
    assert here.cluster.starts == [(job_id, 1), (job_id, 2)]
    refused = here.post(job_id, token=earlier, expect=409, records=[metric(1, 0, loss=1.0)])
    assert refused["code"] == "stale_attempt"
    here.post(job_id, attempt=2, token=earlier, expect=409)
    here.post(job_id, attempt=2, status=status("running"))
    assert here.client.get(f"/api/v1/jobs/{job_id}/metrics").json() == {"names": []}


def test_status_drives_the_state_and_shows_the_job_live(here: Stage) -> None:
    job_id = here.started()
    worker = {"id": "w0", "role": "worker", "rank": 0, "pid": 7, "node": "n1", "address": "10.0.0.1"}
    worker |= {"state": "up", "generation": 1, "shards": [0, 3]}
    worker |= {"cpu_percent": 98.5, "memory_bytes": 1 << 20, "gpu_memory_bytes": None}
    here.post(job_id, status=status("recovering"))
    here.post(job_id, status=status("running", step=12, failures_spent=1, workers=[worker]))
    job = here.job(job_id)
    assert (job["state"], job["progress"]["step"], job["world_size"], job["generation"]) == (
        "running",
        12,
        3,
        1,
    )
    assert job["failures"] == {"spent": 1, "max": 3}
    assert here.client.get(f"/api/v1/jobs/{job_id}/workers").json()["items"] == [worker]
    moves = [e for e in here.events(job_id) if e.startswith("job.")]
    assert moves == ["job.queued", "job.starting", "job.running", "job.recovering", "job.running"]


def test_what_a_node_has_found_auto_to_be_is_in_the_job_file_as_a_choice_of_submit_is(here: Stage) -> None:
    job_id = here.running(framework="auto")
    why = "the module imports nothing of ray.train: loop.py on the node"
    for seq, chosen in enumerate(("native", "ray_train"), start=1):
        told = event(seq, "framework.chosen", framework=chosen, framework_why=why)
        here.post(job_id, records=[told])
    # The first choice stands: an attempt that goes on must not become another program.
    spec = here.job(job_id)["spec"]
    assert (spec["framework"], spec["framework_why"]) == ("native", why)


@pytest.mark.parametrize(
    ("framework", "told"),
    [
        ("native", {"framework": "ray_train", "framework_why": "told of a job that names its own"}),
        ("auto", {"framework": "torchrun", "framework_why": "no node can find that"}),
        ("auto", {"framework": "native"}),
        ("auto", {"framework": ["native"], "framework_why": "of another form"}),
    ],
)
def test_a_choice_that_no_node_can_have_made_changes_no_job_file(
    here: Stage, framework: str, told: dict[str, Any]
) -> None:
    job_id = here.running(framework=framework)
    here.post(job_id, records=[event(1, "framework.chosen", **told)])
    spec = here.job(job_id)["spec"]
    assert (spec["framework"], spec["framework_why"]) == (framework, None)


def test_a_supervisor_cannot_tell_states(here: Stage) -> None:
    job_id = here.running()
    here.post(job_id, records=[event(1, "job.succeeded")])
    assert "job.succeeded" not in here.events(job_id)
    assert here.state(job_id) == "running"


def test_only_the_newest_log_lines_are_kept_and_the_rest_counted(tmp_path: Path) -> None:
    here = stage(tmp_path, logs_kept=10)
    job_id = here.running()
    here.post(job_id, records=[line(n, f"line {n}") for n in range(1, 26)])
    page = here.client.get(f"/api/v1/jobs/{job_id}/logs").json()
    assert [item["seq"] for item in page["items"]] == list(range(16, 26))
    assert page["dropped"] == 15


def test_no_more_bytes_of_log_lines_are_kept_than_may_be_and_the_newest_line_always(tmp_path: Path) -> None:
    here = stage(tmp_path, logs_kept_bytes=50)
    job_id = here.running()

    def kept(first: int, *texts: str) -> tuple[list[int], int]:
        here.post(job_id, records=[line(first + n, text) for n, text in enumerate(texts)])
        page = here.client.get(f"/api/v1/jobs/{job_id}/logs").json()
        return [item["seq"] for item in page["items"]], page["dropped"]

    assert kept(1, "é" * 10, "é" * 10) == ([1, 2], 0)
    assert kept(3, "é" * 10, "x" * 10) == ([2, 3, 4], 1)
    assert kept(5, "x" * 60) == ([5], 4)
    assert kept(6, "x") == ([6], 5)
    assert kept(7, "x" * 49) == ([6, 7], 5)


HUGE = 10**30
STATUS = {"state": "running", "generation": 1, "world_size": 0, "progress": {"step": 1}, "workers": []}


BEYOND = ("0001-01-01T00:00:00+01:00", "9999-12-31T23:59:59-01:00")
"""Dates that there are, but not in UTC."""


@pytest.mark.parametrize(
    "wrong",
    [
        *[{"records": [{**line(1, "x"), "seq": value}]} for value in (True, "1", HUGE)],
        *[{"records": [{**line(1, "x"), "at": value}]} for value in (0, "0", "2026-11-20", AT[:-1])],
        *[{"records": [{**line(1, "x"), "at": value}]} for value in BEYOND],
        *[{"records": [{**event(1, "a.b"), "generation": value}]} for value in (True, HUGE)],
        *[{"records": [metric(1, value, loss=1.0)]} for value in (True, HUGE)],
        {"records": [{**metric(1, 1), "values": {"loss": True}}]},
        *[{"status": {**STATUS, "world_size": value}} for value in (True, "1", HUGE)],
        *[{"status": {**STATUS, "progress": {"step": value}}} for value in (True, "1", HUGE)],
    ],
    ids=str,
)
def test_what_is_of_another_kind_than_the_document_says_is_refused_whole(
    here: Stage, wrong: dict[str, Any]
) -> None:
    job_id = here.running()
    before = here.events(job_id)
    here.post(job_id, expect=422, **wrong)
    assert here.events(job_id) == before


def test_feeds_are_read_page_by_page(here: Stage) -> None:
    job_id = here.running()
    here.post(job_id, records=[line(n, f"line {n}") for n in range(1, 6)])
    base = f"/api/v1/jobs/{job_id}/logs"
    page = here.client.get(f"{base}?limit=2").json()
    assert (page["next"], len(page["items"])) == (2, 2)
    page = here.client.get(f"{base}?limit=3&after=2").json()
    assert [item["seq"] for item in page["items"]] == [3, 4, 5]
    assert here.client.get(f"{base}?after=5").json() == {"items": [], "next": None, "dropped": 0}


def test_a_thinned_curve_keeps_its_ends_its_peak_and_its_dip(here: Stage) -> None:
    job_id = here.running()
    values = dict.fromkeys(range(3000), 1.0) | {1234: 99.0, 2345: -99.0, 0: 5.0, 2999: 6.0}
    here.post(job_id, records=[metric(s + 1, s, loss=v, world_size=3) for s, v in values.items()])
    curve = here.client.get(f"/api/v1/jobs/{job_id}/metrics?name=loss&max_points=50").json()
    points = {p["step"]: p["value"] for p in curve["points"]}
    assert 22 <= len(curve["points"]) <= 50
    assert points.items() >= {(1234, 99.0), (2345, -99.0), (0, 5.0), (2999, 6.0)}
    assert list(points) == sorted(points)
    assert here.client.get(f"/api/v1/jobs/{job_id}/metrics").json() == {"names": ["loss", "world_size"]}
    assert (
        len(here.client.get(f"/api/v1/jobs/{job_id}/metrics?name=loss&max_points=3000").json()["points"])
        == 3000
    )


def test_a_value_that_is_no_number_is_left_out(here: Stage) -> None:
    job_id = here.running()
    here.post(job_id, records=[metric(1, 0, loss=None, accuracy=0.5)])
    nan = json.dumps({"attempt": 1, "records": [metric(2, 1, loss=float("nan"), accuracy=0.5, big=1e999)]})
    assert posted(here, job_id, nan).status_code == 200
    assert here.client.get(f"/api/v1/jobs/{job_id}/metrics").json() == {"names": ["accuracy"]}


def test_a_later_attempt_that_computes_a_step_again_adds_nothing(here: Stage) -> None:
    job_id = here.running()
    here.post(job_id, records=[metric(1, 0, loss=1.0), outcome(1, "failed", "platform_error")])
    here.tick(2)
    here.post(
        job_id, attempt=2, status=status("running"), records=[metric(1, 0, loss=9.0), metric(2, 1, loss=0.5)]
    )
    curve = here.client.get(f"/api/v1/jobs/{job_id}/metrics?name=loss").json()
    assert [p["value"] for p in curve["points"]] == [1.0, 0.5]


def streamed(here: Stage, path: str, **headers: str) -> list[tuple[int, str]]:
    """(id, type) of a stream that is read to its end."""
    answer = here.client.get(path, headers={"Accept": "text/event-stream", **headers})
    assert answer.headers["content-type"].startswith("text/event-stream")
    found = []
    for block in answer.text.split("\n\n"):
        fields = dict(
            row.split(": ", 1) for row in block.splitlines() if ": " in row and not row.startswith(":")
        )
        if "data" in fields:
            item = json.loads(fields["data"])
            assert item["seq"] == int(fields["id"])
            found.append((int(fields["id"]), item["type"]))
    return found


def test_a_stream_of_an_ended_job_tells_all_ends_and_resumes(here: Stage) -> None:
    job_id = here.running()
    here.post(job_id, records=[outcome(1, "succeeded", result=RESULT)])
    here.tick()
    path = f"/api/v1/jobs/{job_id}/events"
    whole = streamed(here, path)
    assert [kind for _, kind in whole][-2:] == ["job.stopping", "job.succeeded"]
    assert [seq for seq, _ in whole] == list(range(1, len(whole) + 1))
    assert streamed(here, path, **{"Last-Event-ID": "3"}) == whole[3:]
    assert streamed(here, f"{path}?after=2") == whole[2:]
    level = here.client.get(path, headers={"Accept": "text/event-stream", "Last-Event-ID": str(len(whole))})
    assert level.status_code == 204, "EventSource stops asking at 204"


def test_a_checkpoint_that_is_not_told_whole_is_none(here: Stage) -> None:
    job_id = here.running()
    whole = {"step": 5, "uri": place(job_id, "step-5"), "size_bytes": 10, "removed": []}
    told = [whole, {}, {**whole, "removed": None}, {**whole, "uri": 5}]
    rows = [event(seq, "checkpoint.saved", **data) for seq, data in enumerate(told, start=1)]
    here.post(job_id, records=rows)
    answer = here.client.get(f"/api/v1/jobs/{job_id}/checkpoints")
    assert [item["step"] for item in answer.json()["items"]] == [5]


ELSEWHERE = (
    "s3://k:s@b?endpoint_override=127.0.0.1%3A{port}&scheme=http/step-3",
    "s3://k:s@b?endpoint_override=127.0.0.1%3A{port}&scheme=http/checkpoints/{job}/step-3",
    "s3://bucket/checkpoints/{job}/step-3",
    "http://127.0.0.1:{port}/checkpoints/{job}/step-3",
    "/home/checkpoints/job_00000000000000000000000000/step-3",
    "/home/checkpoints/{job}/../step-3",
    "/home/checkpoints/{job}/..",
    "/home/checkpoints/{job}/step-3?x=1",
    "checkpoints/{job}/step-3",
    "/step-3",
)


@pytest.mark.parametrize("uri", [None, "s3://mine/place/"])
def test_a_checkpoint_is_believed_in_the_jobs_own_folder_alone_and_no_host_is_asked(
    tmp_path: Path, uri: str | None
) -> None:
    here = stage(tmp_path)
    job_id = here.running(checkpoint={"uri": uri})
    own = f"{uri}{job_id}/step-1" if uri else place(job_id, "step-1")
    with socket.create_server(("127.0.0.1", 0)) as other:
        other.setblocking(False)
        port = other.getsockname()[1]
        uris = [own, *(text.format(job=job_id, port=port) for text in ELSEWHERE)]
        told = [{"step": 3, "uri": text, "size_bytes": 1, "removed": []} for text in uris]
        here.post(job_id, records=[event(n, "checkpoint.saved", **data) for n, data in enumerate(told, 1)])
        items = here.client.get(f"/api/v1/jobs/{job_id}/checkpoints").json()["items"]
        assert here.client.get(f"/api/v1/jobs/{job_id}/checkpoints/step-3/weights").status_code == 404
        with pytest.raises(BlockingIOError):
            other.accept()
    assert [item["uri"] for item in items] == [own]


HALF = json.loads('{"text": "\\ud800", "\\udc00": 1}')


def nested(deep: int) -> dict[str, Any]:
    data: dict[str, Any] = {}
    for _ in range(deep - 1):
        data = {"in": data}
    return data


@pytest.mark.parametrize(
    ("data", "expect"),
    [
        (nested(50), 200),
        (nested(51), 422),
        ({"a": [[]] * 3}, 200),
        (HALF, 422),
        ({"a": [HALF]}, 422),
        ({"a": [1] * (MANY - 2)}, 200),
        ({"a": [1] * MANY}, 422),
    ],
    ids=[
        "50 deep",
        "51 deep",
        "lists",
        "half a pair",
        "half a pair inside",
        "many values",
        "too many values",
    ],
)
def test_an_event_that_could_not_be_told_is_refused(here: Stage, data: dict[str, Any], expect: int) -> None:
    job_id = here.running()
    answer = posted(here, job_id, json.dumps({"attempt": 1, "records": [event(1, "recovered", **data)]}))
    assert answer.status_code == expect, answer.text
    path = f"/api/v1/jobs/{job_id}/events"
    assert here.client.get(path).json()["items"][-1]["type"] == (
        "recovered" if expect == 200 else "job.running"
    )


def posted(here: Stage, job_id: str, body: str) -> Response:
    """The answer to a post whose body is no JSON that a client would write."""
    token = here.cluster.alive[job_id, 1].ingest_token
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    return here.client.post(f"/api/v1/jobs/{job_id}/ingest", content=body, headers=headers)


SENT: dict[str, dict[str, Any]] = {
    "status": {"status": {"state": "running", "generation": 1, "world_size": 1, "progress": {}, "workers": [
        {"id": "w\ud800", "role": "worker", "rank": 0, "pid": 7, "node": "n", "state": "running", "generation": 1,
         "shards": [0, 1]}
    ]}},
    "metric": {"records": [metric(1, 1, **{"\ud800": 0.5})]},
    "line": {"records": [{**line(1, "x"), "worker": "\ud800"}]},
    "reason": {"records": [outcome(1, "failed", reason={"code": "x", "message": "\ud800"})]},
    "result": {"records": [outcome(1, "succeeded", result={**RESULT, "scores": {"\ud800": 1.0}})]},
}  # fmt: skip


@pytest.mark.parametrize("name", SENT)
def test_half_a_character_is_refused_wherever_it_stands_in_a_post(here: Stage, name: str) -> None:
    job_id = here.running()
    answer = posted(here, job_id, json.dumps({"attempt": 1, **SENT[name]}))
    assert answer.status_code == 422, answer.text
    assert here.client.get(f"/api/v1/jobs/{job_id}/workers").status_code == 200
    assert here.client.get(f"/api/v1/jobs/{job_id}").json()["state"] == "running"


def test_no_post_of_a_supervisor_is_larger_than_two_megabytes(here: Stage) -> None:
    """Eight times what supervisors post; all of it is read and checked while others wait."""
    job_id = here.running()
    headers = {"Authorization": f"Bearer {here.cluster.alive[job_id, 1].ingest_token}"}
    path = f"/api/v1/jobs/{job_id}/ingest"
    whole = {"attempt": 1, "records": [event(1, "recovered", text="x" * (1 << 20))]}
    assert here.client.post(path, json=whole, headers=headers).status_code == 200
    whole["records"] = [event(2, "recovered", text="x" * INGEST_BYTES)]
    assert here.client.post(path, json=whole, headers=headers).status_code == 413


def test_an_event_of_before_that_could_not_be_told_keeps_no_other_from_being_told(here: Stage) -> None:
    job_id = here.running()
    for data in (HALF, nested(500)):
        with here.control.store.write() as session:
            record(session, load(session, job_id), "recovered", here.time(), data, generation=1)
    here.post(job_id, records=[outcome(1, "cancelled")])
    here.tick(2)
    path = f"/api/v1/jobs/{job_id}/events"
    page = here.client.get(path)
    types = [item["type"] for item in page.json()["items"]]
    assert (page.status_code, types.count("recovered"), types[-1]) == (200, 2, "job.cancelled")
    told = [item["data"] for item in page.json()["items"] if item["type"] == "recovered"]
    assert told[0] == {"text": "\\ud800", "\\udc00": 1}
    assert len(streamed(here, path)) == len(types)
