"""A job's handle: waiting, changing, reading, and feeds that survive what happens to the connection."""

import dataclasses
import math
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest
from fake_api import (
    AT,
    FAILED,
    SUCCEEDED,
    TOKEN,
    URL,
    Broken,
    FakeApi,
    event,
    job_id,
    job_view,
    log,
    sse,
    stream,
)

from ringleader.client import Client, Job, SystemSeries, Worker, feed
from ringleader.client.http import NotSendable
from ringleader.errors import ApiProblem, ApiUnreachable, JobFailed, WaitTimeout
from ringleader.wire.states import State


@pytest.fixture
def api() -> FakeApi:
    return FakeApi(jobs=[job_view()])


@pytest.fixture
def job(api: FakeApi) -> Job:
    return Client(URL, TOKEN, transport=api).job(job_id(1))


def test_wait_returns_the_result_as_attributes_and_as_a_mapping(api: FakeApi, job: Job) -> None:
    api.history[job.id] = [{}, {}, SUCCEEDED]
    result = job.wait(timeout=20)
    assert result.scores["accuracy"] == result["scores"]["accuracy"] == 0.98
    assert isinstance(result, Mapping)
    assert dict(result)["steps"] == 920
    assert "nonsense" not in result
    with pytest.raises(dataclasses.FrozenInstanceError):
        result.steps = 1  # type: ignore[misc]


def test_a_job_is_watched_to_its_end_and_outages_are_shown(api: FakeApi) -> None:
    job = Client(URL, TOKEN, transport=api, patience_s=0).job(job_id(1))
    api.history[job.id] = [{"state": "queued"}, httpx.ConnectError("refused"), {}, SUCCEEDED]
    seen = [view.state if view is not None else None for view in job.watch(timeout=20)]
    assert seen == ["queued", None, "queued", "succeeded"]


def test_wait_raises_the_reason_and_the_last_log_lines(api: FakeApi, job: Job) -> None:
    api.feeds["logs"] = [log(seq) for seq in range(1, 31)]
    api.history[job.id] = [FAILED]
    with pytest.raises(JobFailed, match="ZeroDivisionError") as failed:
        job.wait()
    assert failed.value.code == "entrypoint_raised"
    assert failed.value.log_lines == [f"line {seq}" for seq in range(11, 31)]


def test_wait_that_times_out_says_where_the_job_is(job: Job) -> None:
    with pytest.raises(WaitTimeout, match="running at step 7"):
        job.wait(timeout=0)


@pytest.mark.parametrize("timeout", [math.nan, math.inf, -1])
def test_a_wait_without_a_time_to_end_is_refused(job: Job, timeout: float) -> None:
    with pytest.raises(
        ValueError, match=r"timeout is .*: expected a number of seconds of at least 0, or None"
    ):
        job.wait(timeout=timeout)


@pytest.mark.parametrize("number", [math.nan, math.inf])
def test_a_number_that_cannot_be_sent_is_refused_before_anything_is(
    api: FakeApi, job: Job, number: float
) -> None:
    api.seen.clear()
    with pytest.raises(NotSendable, match=r"POST /jobs/.*/cancel cannot be sent .* Give finite numbers"):
        job.cancel(grace_s=number)
    assert api.seen == []


def test_wait_bears_a_restart_of_the_control_plane(api: FakeApi, job: Job) -> None:
    api.faults = [httpx.ConnectError("refused"), httpx.Response(503), httpx.ReadError("reset")]
    api.history[job.id] = [SUCCEEDED]
    assert job.wait(timeout=20).steps == 920


def test_pause_and_resume_reach_the_job(api: FakeApi, job: Job) -> None:
    assert job.pause().state is State.PAUSED
    assert job.resume().state is State.QUEUED


def test_resize_cancel_and_delete_reach_the_job(api: FakeApi, job: Job) -> None:
    assert job.resize(max=6).view.spec["workers"] == {"min": 2, "max": 6}
    assert job.cancel(grace_s=3).state is State.CANCELLED
    assert api.calls("POST", f"/jobs/{job.id}/cancel")[0].content == b'{"grace_s":3}'
    job.delete()
    with pytest.raises(ApiProblem, match="there is no job"):
        job.refresh()


def test_workers_and_metrics_are_frozen_values(api: FakeApi, job: Job) -> None:
    worker = {
        "id": "w0",
        "role": "worker",
        "rank": 0,
        "pid": 4,
        "node": "n",
        "state": "running",
        "generation": 1,
    }
    api.workers = [worker | {"shards": [0, 2]}]
    api.points["loss"] = [{"step": 1, "value": 0.5, "at": AT, "generation": 1}]
    assert job.workers() == [Worker("w0", "worker", 0, 4, "n", "running", 1, (0, 2))]
    (point,) = job.metrics("loss")
    assert (point.step, point.value, point.generation, point.time.year) == (1, 0.5, 1, 2026)
    assert job.metric_names() == ["loss"]


def test_what_a_job_uses_is_asked_for_since_a_time_and_frozen(api: FakeApi, job: Job) -> None:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    columns = {"times": [at.timestamp()], "spans_s": [5.0], "figures": {"cpu_percent": [None]}}
    unmet = {"gpu_memory_bytes": "no GPU that NVML knows"}
    api.system = [{"kind": "worker", "id": "w0", "node": "n", **columns, "unmet": unmet}]
    (found,) = job.system(since=at, max_points=10)
    assert found == SystemSeries("worker", "w0", "n", [at], [5.0], {"cpu_percent": [None]}, unmet)
    (asked,) = api.calls("GET", f"/jobs/{job.id}/system")
    assert dict(asked.url.params) == {"from": str(at.timestamp()), "max_points": "10"}


def test_url_is_the_page(job: Job) -> None:
    assert job.url == f"{URL}/jobs/{job.id}"


def test_a_feed_is_read_over_all_its_pages(api: FakeApi, job: Job) -> None:
    api.feeds["logs"] = [log(seq) for seq in range(1, 8)]
    assert [line.seq for line in job.logs()] == list(range(1, 8))
    assert [line.seq for line in job.logs(after=5)] == [6, 7]


def test_following_survives_broken_connections_and_gives_each_item_once(api: FakeApi, job: Job) -> None:
    api.feeds["events"] = [event(1, "job.queued")]
    lost = event(3, "worker.lost", worker="w1")
    api.streams = [
        stream(sse(event(1, "job.queued"), event(2, "job.running"))[:-1], breaks=True),  # 2 was cut off
        stream(b": keep-alive\n\n" + sse(event(2, "job.running"), lost), breaks=True),
        stream(sse(lost, event(4, "recovered", total_s=0.05))),
    ]
    api.history[job.id] = [{}, {}, {}, SUCCEEDED]
    api.feeds["events"] += [event(2, "job.running"), lost, event(4, "recovered"), event(5, "job.succeeded")]
    api.page = 1_000
    first = api.feeds["events"][:1]
    later, api.feeds["events"] = api.feeds["events"], first
    found = []
    for happened in job.events(follow=True):
        found.append(happened.seq)
        if happened.seq == 4:
            api.feeds["events"] = later  # what the stream never sent
    assert found == [1, 2, 3, 4, 5]
    resumed = [r.headers["last-event-id"] for r in api.seen if "event-stream" in r.headers.get("accept", "")]
    assert resumed == ["1", "1", "3"]


def test_following_waits_while_the_job_is_queued_and_the_api_is_away(api: FakeApi, job: Job) -> None:
    api.jobs = [job_view(state="queued")]
    api.history[job.id] = [{}, {}, SUCCEEDED]
    follower = job.logs(follow=True)
    api.faults = [httpx.ConnectError("refused"), httpx.Response(503)]
    api.streams = [stream(b""), stream(sse(log(1, "a line with \u2028 and \x85 in it")))]
    assert [line.line for line in follower] == ["a line with \u2028 and \x85 in it"]


def test_following_gives_up_on_a_control_plane_that_stays_away(api: FakeApi, job: Job) -> None:
    def gone() -> bool:
        raise ApiUnreachable("refused")

    with pytest.raises(ApiUnreachable, match="could not reach"):
        list(feed.follow(job._api, f"/jobs/{job.id}/logs", gone, patience_s=0.3))


def test_a_program_that_takes_long_over_a_line_has_not_lost_contact(api: FakeApi, job: Job) -> None:
    api.streams = [stream(sse(log(1)), breaks=True), stream(sse(log(2)))]
    found: list[int] = []
    for item in feed.follow(job._api, f"/jobs/{job.id}/logs", lambda: len(found) == 2, patience_s=0.2):
        found.append(item["seq"])
        began = time.monotonic()
        while time.monotonic() < began + 0.4:  # the server closes a stream that is not read meanwhile
            pass
    assert found == [1, 2]


class Quiet(httpx.SyncByteStream):
    """A stream that keeps alive for a while, and then breaks."""

    def __init__(self, for_s: float) -> None:
        self._for_s = for_s

    def __iter__(self) -> Iterator[bytes]:
        until = time.monotonic() + self._for_s
        while time.monotonic() < until:
            yield b": ping\n\n"
        raise httpx.RemoteProtocolError("peer closed connection")


def test_a_stream_that_was_only_quiet_has_not_lost_contact_when_it_breaks(api: FakeApi, job: Job) -> None:
    headers = {"content-type": "text/event-stream"}
    api.streams = [httpx.Response(200, headers=headers, stream=Quiet(for_s=0.4)), stream(sse(log(1)))]
    found: list[int] = []
    for item in feed.follow(job._api, f"/jobs/{job.id}/logs", lambda: bool(found), patience_s=0.2):
        found.append(item["seq"])
    assert found == [1]


def test_following_a_deleted_job_ends_with_its_error(api: FakeApi, job: Job) -> None:
    api.jobs = []
    with pytest.raises(ApiProblem, match="there is no job"):
        list(job.events(follow=True))


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_messages_come_out_whole_however_the_bytes_are_cut(size: int) -> None:
    body = b"id: 1\r\ndata: {\r\ndata: }\r\n\r\n: ping\n\nevent: x\ndata:2\n\ndata: never finished"
    chunks = (body[at : at + size] for at in range(0, len(body), size))
    assert list(feed.messages(chunks)) == ["{\n}", None, "2"]


def test_a_download_appears_whole_or_not_at_all(api: FakeApi, job: Job, tmp_path: Path) -> None:
    api.artifacts["weights"] = b"w" * 100_000
    assert job.download("weights", tmp_path / "deep" / "w.bin").read_bytes() == b"w" * 100_000
    api.faults = [httpx.Response(200, stream=Broken(b"half"))]
    with pytest.raises(ApiUnreachable):
        job.download("weights", tmp_path / "other.bin")
    with pytest.raises(ApiProblem, match="no artifact"):
        job.download("nothing", tmp_path / "other.bin")
    assert [p.name for p in tmp_path.iterdir()] == ["deep"]
