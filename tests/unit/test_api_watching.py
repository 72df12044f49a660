"""What whoever runs the control plane sees of it: metrics, readiness, log lines; and what users find in jobs' logs."""

import asyncio
import io
import itertools
import json
import re
import resource
import threading
import time
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio import fail_after, to_thread
from control_plane import SPEC, Stage, event, line, stage, status
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from sqlalchemy import select
from sqlalchemy.event import listens_for
from sqlalchemy.exc import IntegrityError

from ringleader.wire.views import LogLine
from ringleader_api import assembly, control
from ringleader_api.routes.streams.channel import Channel
from ringleader_api.routes.streams.follow import PING, items
from ringleader_api.services.records.feeds import Wanted
from ringleader_api.store import database
from ringleader_api.store.tables import Fact
from ringleader_api.tracing import UNTRACED, TracedRequest, traces_to


@pytest.fixture
def here(tmp_path: Path) -> Stage:
    return stage(tmp_path)


def metrics(here: Stage) -> dict[str, float]:
    rows = here.client.get("/metrics").text.splitlines()
    return {name: float(value) for name, _, value in (row.rpartition(" ") for row in rows if row[:1] != "#")}


def test_metrics_tell_of_queue_starts_states_recoveries_and_requests(here: Stage) -> None:
    job_id = here.running()
    here.submit(workers={"min": 4, "max": 4})
    here.time.pass_s(90)
    here.post(job_id, records=[event(1, "recovered", total_s=0.07), event(2, "recovered", total_s=0.2)])
    told = metrics(here)
    assert told['ringleader_jobs{state="queued"}'] == told['ringleader_jobs{state="running"}'] == 1
    assert told["ringleader_queue_longest_wait_seconds"] == 90
    assert (told["ringleader_scheduling_seconds_count"], told["ringleader_submissions_total"]) == (1, 2)
    assert (told["ringleader_recoveries_total"], told["ringleader_recovery_seconds_count"]) == (2, 2)
    assert told['ringleader_recovery_seconds_bucket{le="0.1"}'] == 1
    served = 'ringleader_http_request_seconds_count{method="POST",route="/api/v1/jobs",status="201"}'
    assert told[served] == 2


def test_what_strangers_make_up_makes_no_time_series(here: Stage) -> None:
    stranger = here.holding("")
    here.client.get("/metrics")
    for n in range(20):
        assert stranger.request(f"BREW{n}", f"/tea/{n}").status_code == 401
        here.client.request(f"BREW{n}", f"/api/v1/tea/{n}")
        here.client.request(f"BREW{n}", f"/api/v1/jobs/tea{n}")
        here.client.get(f"/api/v1/tea{n}")
    counts = "ringleader_http_request_seconds_count"
    routes = {"unmatched", "/api/v1/{path:path}", "/api/v1/jobs/{job_id}", "/metrics"}
    labels = [set(re.findall(r'(\w+)="([^"]*)"', name)) for name in metrics(here) if name.startswith(counts)]
    assert {value for pairs in labels for kind, value in pairs if kind == "method"} == {"GET", "other"}
    assert {value for pairs in labels for kind, value in pairs if kind == "route"} <= routes
    assert metrics(here)[f'{counts}{{method="other",route="unmatched",status="401"}}'] == 20


def test_readiness_is_that_of_the_database_the_queue_and_the_cluster(here: Stage) -> None:
    reconciler = here.control.reconciler

    def trouble() -> list[str]:
        reconciler.beat_at = time.monotonic()
        answer = here.client.get("/readyz")
        assert (answer.status_code == 200) is answer.json()["ok"] is (answer.json()["trouble"] == [])
        return [word.partition(" ")[0] for word in answer.json()["trouble"]]

    here.tick()
    assert trouble() == []
    here.submit()
    here.time.pass_s(31)
    assert trouble() == ["1"], "a job that no scheduler looks at"
    here.tick()
    assert trouble() == []
    here.cluster.down = True
    here.tick()
    assert trouble() == ["the"]
    here.control.store.ping = lambda: 1 / 0  # type: ignore[assignment, method-assign, return-value]
    found = here.client.get("/readyz").json()["trouble"]
    assert "the database does not answer (ZeroDivisionError)" in found


def test_a_disk_without_room_and_a_database_that_can_only_be_read_are_not_ready(here: Stage) -> None:
    here.tick()
    assert here.client.get("/api/v1/jobs").status_code == 200
    here.time.pass_s(120)  # the use of the token would be noted again

    def answered() -> tuple[int, list[str], int]:
        here.control.reconciler.beat_at = time.monotonic()
        answer = here.client.get("/readyz")
        return answer.status_code, answer.json()["trouble"], here.client.get("/api/v1/jobs").status_code

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1024, before[1]))
    try:
        full = answered()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    refused = (503, ["the database does not answer (OperationalError)"], 200)
    assert full == refused
    readable = "ON"

    @listens_for(here.control.store.engine(), "checkout")
    def _limited(connection: Any, *_: Any) -> None:
        connection.execute(f"PRAGMA query_only = {readable}")

    assert answered() == refused
    readable = "OFF"
    assert answered() == (200, [], 200)


def test_readiness_costs_a_write_a_second_however_often_it_is_asked_and_wakes_nobody(
    here: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    here.client.get("/readyz")
    version = here.control.store.version
    for every_s, writes in ((3600.0, 1), (0.0, 5)):
        monkeypatch.setattr(database, "PING_EVERY_S", every_s)
        written = set()
        for _ in range(5):
            here.client.get("/readyz")
            with here.control.store.read() as session:
                written.add(session.scalar(select(Fact.value).where(Fact.name == "written")))
        assert len(written) == writes
    assert here.control.store.version == version, "nothing has changed that a follower waits for"


def test_a_reconciler_that_fails_each_round_is_not_ready(here: Stage) -> None:
    reconciler, enough = here.control.reconciler, threading.Event()
    here.tick()
    assert here.client.get("/readyz").status_code == 200
    reconciler.beat_at = before = time.monotonic() - control.BEAT_LIMIT_S - 1
    rounds = itertools.count(1)

    def broken() -> None:
        if next(rounds) == 2:
            enough.set()
        raise ZeroDivisionError

    reconciler.tick = broken  # type: ignore[method-assign]
    loop = threading.Thread(target=reconciler.run, args=(0.001,))
    loop.start()
    try:
        assert enough.wait(20)
    finally:
        reconciler.stop()
        loop.join(20)
    answer = here.client.get("/readyz")
    assert answer.status_code == 503
    assert answer.json()["trouble"][0].startswith("the reconciler has not finished a round for 3")
    assert reconciler.beat_at == before


def test_a_number_to_come_of_the_first_follower_takes_nothing_from_the_others(here: Stage) -> None:
    job_id = here.running()

    def feed(after: int) -> AsyncIterator[bytes]:
        return items(here.control, job_id, after, here.control.feeds.events, lambda: True, ping_s=0.01)

    async def follow() -> tuple[bytes, bytes, bytes]:
        first, second = feed((1 << 63) - 1), feed(0)
        with fail_after(20):
            silent = await anext(first)
            while (old := await anext(second)) == PING:
                pass
            assert await anext(second) == PING
            await to_thread.run_sync(lambda: here.post(job_id, records=[event(1, "recovered")]))
            while (new := await anext(second)) == PING:
                pass
        return silent, old, new

    silent, old, new = anyio.run(follow)
    assert silent == PING
    assert [word in old for word in (b"job.queued", b"job.starting", b"job.running")] == [True] * 3
    assert (b"recovered" in new, new.count(b"data:")) == (True, 1)


def test_what_is_kept_for_followers_is_bounded_in_bytes_and_nothing_is_lost(
    here: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, size_bytes in (("KEPT_BYTES", 4000), ("CHUNK_BYTES", 2000)):
        monkeypatch.setattr(f"ringleader_api.routes.streams.channel.{name}", size_bytes)
    job_id = here.running()
    here.post(job_id, records=[line(n + 1, f"{n}" * 500) for n in range(9)])
    more = [line(n + 1, f"{n}" * 300) for n in range(9, 29)]
    kept, pieces = [], []

    async def follow() -> list[int]:
        feed = items(here.control, job_id, 0, here.control.feeds.logs, lambda: True)
        seen: list[int] = []
        with fail_after(20):
            async for piece in feed:
                seen += [int(found) for found in re.findall(rb"id: (\d+)", piece)]
                kept.extend(channel.kept_bytes for channel in here.control.channels.values())
                pieces.append(len(piece))
                if len(seen) == 9:
                    await to_thread.run_sync(lambda: here.post(job_id, records=more))
                if len(seen) >= 29:
                    return seen
        return seen

    assert anyio.run(follow) == list(range(1, 30))
    assert (max(kept) <= 4000, max(kept) > 0) == (True, True)


def test_followers_that_catch_up_take_no_thread_of_other_requests_and_each_gets_all(here: Stage) -> None:
    job_id = here.running()
    here.post(job_id, records=[line(n + 1, f"line {n}") for n in range(10)])
    reading: set[str] = set()
    go = threading.Event()

    def slow(job_id: str, after: int, limit: int) -> list[LogLine]:
        reading.add(threading.current_thread().name)
        assert go.wait(20)
        return here.control.feeds.logs(job_id, after, limit)

    async def follow(number: int) -> list[int]:
        feed = items(here.control, job_id, 5, slow, lambda: True)
        async for piece in feed:
            if piece != PING:
                return [int(found) for found in re.findall(rb"id: (\d+)", piece)]
        return []

    async def crowd() -> tuple[int, list[list[int]]]:
        with fail_after(20):
            followers = [asyncio.create_task(follow(n)) for n in range(100)]
            while len(reading) < control.CATCHING_UP:
                await asyncio.sleep(0)
            others = [await to_thread.run_sync(lambda: here.job(job_id)["state"]) for _ in range(3)]
            go.set()
            return others.count("running"), [await one for one in followers]

    others, seen = anyio.run(crowd)
    assert (others, seen) == (3, [[6, 7, 8, 9, 10]] * 100)
    assert len([name for name in reading if name.startswith("catching-up")]) == control.CATCHING_UP


def test_lines_that_a_follower_has_not_chosen_are_read_once(
    here: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ringleader_api.routes.streams.channel.LOOK_ANYWAY_S", 0)
    job_id = here.running()
    asked: list[int] = []

    def read(job_id: str, after: int, limit: int, wanted: Wanted) -> list[LogLine]:
        asked.append(after)
        return here.control.feeds.logs(job_id, after, limit, wanted)

    async def follow() -> tuple[int, bytes] | None:
        channel = Channel(here.control, job_id, 0, partial(read, wanted=Wanted(text="needle")))
        for texts in (["hay"] * 5, [], ["hay", "needle", "hay"], []):
            records = [line(len(told) + n, text) for n, text in enumerate(texts, start=1)]
            told.extend(records)
            await to_thread.run_sync(lambda new=records: here.post(job_id, records=new))
            assert await channel._round()
        return channel.since(0)

    told: list[dict[str, Any]] = []
    found = anyio.run(follow)
    assert (asked, found is not None and found[0]) == ([0, 5, 5, 8], 7)


def test_what_the_database_refuses_twice_is_a_conflict_and_logged(here: Stage, logged: io.StringIO) -> None:
    job_id = here.submit()

    def refuse(*_: object) -> None:
        raise IntegrityError(
            "INSERT", {"token": "t0p"}, Exception("UNIQUE constraint failed"), hide_parameters=True
        )

    here.control.jobs.view = refuse  # type: ignore[assignment, method-assign]
    assert here.client.get(f"/api/v1/jobs/{job_id}").status_code == 409
    assert "UNIQUE constraint failed" in logged.getvalue()
    assert "t0p" not in logged.getvalue()


def test_every_line_of_a_request_names_it_and_its_job(here: Stage, logged: io.StringIO) -> None:
    made = here.client.post("/api/v1/jobs", json=SPEC)
    job_id = made.json()["id"]
    here.tick()
    earlier = here.post(job_id, records=[event(1, "job.failed")])
    assert earlier == {"acked": {"events": 1}}
    lines: list[dict[str, Any]] = [json.loads(row) for row in logged.getvalue().splitlines()]
    told = {row["event"]: row for row in lines}
    first = next(row for row in lines if row["event"] == "http.served")
    assert (first["request_id"], first["job"]) == (made.headers["x-request-id"], job_id)
    assert (told["attempt.started"]["job"], "request_id" in told["attempt.started"]) == (job_id, False)
    refused = told["ingest.event_refused"]
    assert (refused["job"], refused["request_id"]) == (job_id, told["http.served"]["request_id"])


def test_lines_are_found_by_worker_level_and_text(here: Stage) -> None:
    job_id = here.running()
    told = [("w0", "info", "50% done"), ("w1", "error", "50 bad"), ("supervisor", "error", "50% lost")]
    rows = [{**line(n + 1, text), "worker": who, "level": level} for n, (who, level, text) in enumerate(told)]
    here.post(job_id, records=rows)

    def found(query: str) -> list[int]:
        page = here.client.get(f"/api/v1/jobs/{job_id}/logs?{query}")
        assert page.status_code == 200, page.text
        return [item["seq"] for item in page.json()["items"]]

    assert found("worker=w1") == [2]
    assert found("worker=supervisor&level=error") == [3]
    assert found("level=error") == [2, 3]
    assert found("text=50%25") == [1, 3], "a percent sign is one"
    assert found("text=50%25&after=1&limit=1") == [3]
    assert found("worker=w9") == []
    assert here.client.get(f"/api/v1/jobs/{job_id}/logs?level=loud").status_code == 422


@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
def test_text_is_found_in_either_case_on_both_databases(
    tmp_path: Path, database: str, request: pytest.FixtureRequest
) -> None:
    if database == "postgresql":
        request.getfixturevalue("on_postgres")
    here = stage(tmp_path)
    job_id = here.running()
    here.post(job_id, records=[line(1, "Traceback"), line(2, "no trace of it"), line(3, "100%_done")])

    def found(text: str) -> list[int]:
        page = here.client.get(f"/api/v1/jobs/{job_id}/logs", params={"text": text})
        return [item["seq"] for item in page.json()["items"]]

    assert [found(text) for text in ("traceback", "TRACE", "%_d", "_t")] == [[1], [1, 2], [3], []]


def test_a_trace_leads_from_the_request_to_the_first_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spans = InMemorySpanExporter()
    monkeypatch.setattr(assembly, "traces_to", lambda endpoint: TracedRequest(spans, at_once=True))
    here = stage(tmp_path)
    job_id = here.submit()
    here.time.pass_s(2)
    here.tick()
    here.time.pass_s(3)
    here.post(job_id, status=status("running"))
    here.time.pass_s(4)
    for step in (1, 2):
        here.post(job_id, status=status("running", step=step))
    told = spans.get_finished_spans()
    assert [span.name for span in told] == [
        "POST /api/v1/jobs", "launch", "job", "queued", "starting", "first step",
    ]  # fmt: skip
    took = {span.name: ((span.end_time or 0) - (span.start_time or 0)) / 1e9 for span in told}
    assert took == {
        "POST /api/v1/jobs": 0, "launch": 0, "job": 9, "queued": 2, "starting": 3, "first step": 4,
    }  # fmt: skip
    root = next(span for span in told if span.name == "job")
    assert {span.context.trace_id for span in told} == {root.context.trace_id}
    assert {span.parent.span_id for span in told if span.parent is not None} == {root.context.span_id}
    assert [span.name for span in told if span.parent is None] == ["job"]
    assert {(span.attributes or {})["ringleader.job_id"] for span in told} == {job_id}
    assert here.control.settings.otlp_endpoint == "", "nothing is sent where no collector is named"
    assert traces_to("") is UNTRACED
