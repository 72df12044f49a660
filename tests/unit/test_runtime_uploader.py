"""What reaches the control plane: everything, once, whatever it answers in between."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import httpx
import pytest
from integration.ray_home import IngestServer
from waiting import wait_for

from ringleader.runtime.records.sample_queue import SampleQueue
from ringleader.runtime.records.spool import Spool
from ringleader.runtime.records.uploader import Uploader
from ringleader.wire.ingest import Status
from ringleader.wire.states import State
from ringleader.wire.system import SystemSample, SystemUse
from ringleader.wire.views import Progress

NOW = "2026-01-01T00:00:00Z"
HANG_GUARD_S = 60.0


@pytest.fixture
def server() -> Iterator[IngestServer]:
    server = IngestServer()
    yield server
    server.close()


def open_uploader(
    server: IngestServer,
    folder: Path,
    *,
    generation: Any = 1,
    samples: SampleQueue | None = None,
    now: Callable[[], float] = monotonic,
) -> tuple[Spool, Uploader]:
    spool = Spool(folder / "spool")
    whole = Status(state=State.RUNNING, generation=1, world_size=2, progress=Progress(step=3), workers=[])
    status = whole.model_copy(update={"generation": generation})
    return spool, Uploader(
        url=server.url,
        token="secret",
        attempt=1,
        spool=spool,
        status=lambda: status,
        samples=samples if samples is not None else SampleQueue(),
        now=now,
    )


def put(spool: Spool, steps: range) -> None:
    for step in steps:
        spool.put(
            "metrics", {"at": "2026-01-01T00:00:00Z", "generation": 1, "step": step, "values": {"loss": 1.0}}
        )


def test_everything_put_arrives_once_and_in_order(server: IngestServer, tmp_path: Path):
    spool, uploader = open_uploader(server, tmp_path)
    put(spool, range(1, 2501))
    assert uploader.drained(60)
    assert [m["step"] for m in server.stream("metrics")] == list(range(1, 2501))
    assert server.posts >= 3, "bounded batches"
    uploader.close()


def test_records_wait_while_the_control_plane_is_away(server: IngestServer, tmp_path: Path):
    spool, uploader = open_uploader(server, tmp_path)
    server.away = True
    put(spool, range(1, 4))
    assert not uploader.drained(0.6)
    server.away = False
    assert uploader.drained(60)
    assert [m["step"] for m in server.stream("metrics")] == [1, 2, 3]
    uploader.close()


def test_a_control_plane_that_goes_away_behind_a_post_is_asked_after_pauses(
    server: IngestServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A post with more behind it is followed at once by the next one; a failed one is not."""
    tries = 0

    def post(_: Uploader) -> bool:
        nonlocal tries
        tries += 1
        if tries > 1:
            raise httpx.ConnectError("refused")
        return True

    monkeypatch.setattr(Uploader, "_post", post)
    _, uploader = open_uploader(server, tmp_path)
    wait_for("a second try", lambda: tries > 1, HANG_GUARD_S)
    sleep(1.0)
    assert tries <= 5, "0.25 s, then twice as long each time"
    uploader.close()


def test_an_answer_that_is_not_the_apis_is_no_acknowledgement(server: IngestServer, tmp_path: Path):
    spool, uploader = open_uploader(server, tmp_path)
    server.garbled = True
    put(spool, range(1, 4))
    assert not uploader.drained(0.6)
    server.garbled = False
    assert uploader.drained(60)
    assert [m["step"] for m in server.stream("metrics")] == [1, 2, 3]
    uploader.close()


def test_the_status_is_posted_without_records(server: IngestServer, tmp_path: Path):
    _, uploader = open_uploader(server, tmp_path)
    wait_for("two statuses", lambda: server.posts >= 2)
    assert server.status["progress"]["step"] == 3
    uploader.close()


def test_a_record_that_is_refused_does_not_hold_up_the_others(server: IngestServer, tmp_path: Path):
    spool, uploader = open_uploader(server, tmp_path)
    put(spool, range(1, 3))
    spool.put("logs", {"at": "not a time", "worker": "w0", "level": "info", "line": "x"})
    put(spool, range(3, 5))
    assert uploader.drained(30)
    assert [m["step"] for m in server.stream("metrics")] == [1, 2, 3, 4]
    assert (spool.dropped, server.stream("logs")) == ({"logs": 1}, [])
    uploader.close()


@pytest.mark.parametrize("before", [0, 1, 40])
def test_a_status_that_is_refused_costs_no_record_and_is_told_once(
    server: IngestServer, tmp_path: Path, before: int
):
    spool, uploader = open_uploader(server, tmp_path, generation=None)
    put(spool, range(1, before + 1))
    wait_for("the refusal of a status", lambda: server.stream("logs"))
    put(spool, range(before + 1, before + 2))
    assert uploader.drained(30)
    refusals = server.refusals
    wait_for("one more", lambda: server.refusals > refusals)
    assert uploader.drained(30)
    assert [m["step"] for m in server.stream("metrics")] == list(range(1, before + 2))
    (told,) = server.stream("logs")
    assert "refused the live status: 422, status/generation" in told["line"]
    assert (spool.dropped, server.status) == ({}, {})
    uploader.close()


def test_a_lone_record_and_a_status_that_are_both_refused_are_judged_apart(
    server: IngestServer, tmp_path: Path
):
    spool, uploader = open_uploader(server, tmp_path, generation=None)
    spool.put("events", {"at": NOW, "generation": 1, "type": "Not a type!", "data": {}})
    wait_for("both refusals", lambda: len(server.stream("logs")) == 2)
    put(spool, range(1, 2))
    assert uploader.drained(30)
    told = sorted(line["line"].partition(": 422")[0] for line in server.stream("logs"))
    assert told == [
        "[dropped: the control plane refused a record of the stream events, Not a type!",
        "[dropped: the control plane refused the live status",
    ]
    assert [m["step"] for m in server.stream("metrics")] == [1]
    assert spool.dropped == {"events": 1}
    uploader.close()


def test_a_record_that_is_refused_holds_up_the_status_no_longer_than_it_is_sought(
    server: IngestServer, tmp_path: Path
):
    spool, uploader = open_uploader(server, tmp_path)
    spool.put("events", {"at": NOW, "generation": 1, "type": "Not a type!", "data": {}})
    wait_for("the status", lambda: server.status)
    assert uploader.drained(30)
    assert spool.dropped == {"events": 1}
    uploader.close()


def test_an_event_that_is_refused_is_told_once_in_the_logs_and_not_sent_again(
    server: IngestServer, tmp_path: Path
):
    spool, uploader = open_uploader(server, tmp_path)
    spool.put("events", {"at": NOW, "generation": 1, "type": "Not a type!", "data": {}})
    spool.put("events", {"at": NOW, "generation": 1, "type": "worker.joined", "data": {}})
    assert uploader.drained(30)
    refusals = server.refusals
    posts = server.posts
    wait_for("later statuses", lambda: server.posts >= posts + 2)
    assert server.refusals == refusals
    assert [e["type"] for e in server.stream("events")] == ["worker.joined"]
    (told,) = server.stream("logs")
    assert (told["worker"], told["level"]) == ("supervisor", "error")
    assert "events, Not a type!: 422, records/0/events/type" in told["line"]
    assert spool.dropped == {"events": 1}
    uploader.close()


def test_an_outcome_that_is_refused_leaves_its_bare_word_so_that_the_attempt_ends(
    server: IngestServer, tmp_path: Path
):
    spool, uploader = open_uploader(server, tmp_path)
    reason = {"code": "entrypoint_raised", "message": "boom", "more": 1}
    spool.put("outcome", {"at": NOW, "outcome": "failed", "reason": reason, "result": {"steps": "many"}})
    assert uploader.drained(30)
    (told,) = server.stream("outcome")
    assert (told["outcome"], told["reason"]["code"], told["result"]) == ("failed", "entrypoint_raised", None)
    assert len(server.stream("logs")) == 1
    uploader.close()


def test_a_refusal_of_somebody_on_the_way_costs_no_record(server: IngestServer, tmp_path: Path):
    spool, uploader = open_uploader(server, tmp_path)
    server.blocked = 422
    put(spool, range(1, 4))
    assert not uploader.drained(0.6)
    server.blocked = 0
    assert uploader.drained(60)
    assert [m["step"] for m in server.stream("metrics")] == [1, 2, 3]
    assert spool.dropped == {}
    uploader.close()


def test_an_attempt_that_was_replaced_learns_it(server: IngestServer, tmp_path: Path):
    server.gone = True
    _, uploader = open_uploader(server, tmp_path)
    wait_for("stale", lambda: uploader.stale)
    uploader.close()


@pytest.mark.parametrize("status", [404, 409, 410])
def test_what_a_proxy_says_ends_no_attempt_and_is_no_answer(
    server: IngestServer, tmp_path: Path, status: int
):
    server.blocked = status
    _, uploader = open_uploader(server, tmp_path)
    uploader.close()
    answered = uploader._answered
    client = httpx.Client(headers={"Authorization": "Bearer secret"})
    uploader._client = client
    with pytest.raises(httpx.HTTPStatusError):
        uploader._post()
    assert (uploader.stale, uploader._answered) == (False, answered)
    server.blocked = 0
    uploader._post()
    assert uploader._answered > answered
    client.close()


@pytest.mark.parametrize("uptime_s", [0.0, 0.1, 86_399.7, 1_000_000.3])
def test_an_attempt_whose_token_nobody_knows_for_ten_minutes_learns_that_it_is_over(
    server: IngestServer, tmp_path: Path, uptime_s: float
):
    now = uptime_s
    _, uploader = open_uploader(server, tmp_path, now=lambda: now)
    uploader.close()

    def post(token: str, times: int, every_s: float = 5.0, blocked: int = 0) -> bool:
        nonlocal now
        server.blocked = blocked
        with httpx.Client(headers={"Authorization": f"Bearer {token}"}) as uploader._client:
            for _ in range(times):
                now += every_s
                with suppress(httpx.HTTPStatusError):
                    uploader._post()
        return uploader.stale

    assert not post("unknown", 119), "the first says only that it is so now"
    assert not post("secret", 1), "an answer that knows it begins anew"
    assert not post("unknown", 118)
    assert not post("unknown", 200, blocked=401), "a proxy's is none"
    assert not post("unknown", 1, every_s=3600.0), "what passes without an answer counts as one pause"
    assert post("unknown", 3)


def test_text_that_utf8_cannot_carry_holds_up_nothing_and_no_outcome_is_lost(
    server: IngestServer, tmp_path: Path
):
    spool, uploader = open_uploader(server, tmp_path)
    spool.put("logs", {"at": NOW, "worker": "w0", "level": "info", "line": "a\udcff"})
    spool.put("metrics", {"at": NOW, "generation": 1, "step": 1, "values": {"m\ud800": 1.0}})
    reason = {"code": "entrypoint_raised", "message": "ValueError: x\udcff", "hint": ""}
    spool.put("outcome", {"at": NOW, "outcome": "failed", "reason": reason, "result": None})
    assert uploader.drained(60)
    assert [line["line"] for line in server.stream("logs")] == ["a\\udcff"]
    assert [m["values"] for m in server.stream("metrics")] == [{"m\\ud800": 1.0}]
    assert [o["reason"]["message"] for o in server.stream("outcome")] == ["ValueError: x\\udcff"]
    uploader.close()


def sample(number: int, figure: Any = 1.0) -> SystemSample:
    at = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=5 * number)
    # Unchecked: one that the control plane refuses is to get this far.
    use = SystemUse.model_construct(kind="worker", id="w0", node="n", figures={"cpu_percent": figure})
    return SystemSample.model_construct(at=at, span_s=5.0, uses=[use])


def test_samples_arrive_with_the_status_and_the_oldest_are_lost_where_too_many_wait(
    server: IngestServer, tmp_path: Path
):
    samples = SampleQueue(most=25)
    server.away = True
    for number in range(30):
        samples.put(sample(number))
    _, uploader = open_uploader(server, tmp_path, samples=samples)
    server.away = False
    wait_for("the samples", lambda: len(server.system) == 25, HANG_GUARD_S)
    assert [one.at for one in server.system] == [sample(number).at for number in range(5, 30)]
    assert samples.dropped == 5
    uploader.close()


def test_a_refused_sample_holds_up_no_record(server: IngestServer, tmp_path: Path):
    samples = SampleQueue()
    samples.put(sample(0, figure=-1.0))
    spool, uploader = open_uploader(server, tmp_path, samples=samples)
    put(spool, range(1, 4))
    assert uploader.drained(HANG_GUARD_S)
    wait_for("the refusal", lambda: samples.dropped == 1, HANG_GUARD_S)
    samples.put(sample(1))
    wait_for("the next sample", lambda: server.system, HANG_GUARD_S)
    assert [m["step"] for m in server.stream("metrics")] == [1, 2, 3]
    assert [one.at for one in server.system] == [sample(1).at]
    assert server.stream("logs") == []
    uploader.close()


def test_samples_arrive_while_records_leave_no_time_for_a_status_alone(server: IngestServer, tmp_path: Path):
    samples = SampleQueue()
    samples.put(sample(0))
    # By this clock no status is ever due: it goes along with records.
    spool, uploader = open_uploader(server, tmp_path, samples=samples, now=lambda: 0.0)
    put(spool, range(1, 4))
    assert uploader.drained(HANG_GUARD_S)
    assert [one.at for one in server.system] == [sample(0).at]
    uploader.close()
