"""`GET /curves`: the same metrics of several jobs in one answer, thinned, and nothing of what one may not see."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from control_plane import AT, RESULT, Stage, metric, outcome, stage
from fastapi.testclient import TestClient
from sqlalchemy import delete, select, update
from sqlalchemy.orm import Session

from ringleader.client import Client
from ringleader.wire.ingest import MetricRecord
from ringleader_api.services.records.points import store_points
from ringleader_api.services.records.thinning import read_points
from ringleader_api.store.tables import Metric, MetricStretch

ABSENT = "job_" + "0" * 26


@pytest.fixture
def here(tmp_path: Path) -> Stage:
    return stage(tmp_path)


class _Through(httpx.BaseTransport):
    """Requests of the SDK to the control plane under test."""

    def __init__(self, client: TestClient) -> None:
        self._client = client

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        answer = self._client.request(request.method, str(request.url).removeprefix("http://localhost"))
        return httpx.Response(answer.status_code, content=answer.content)


def _of_700(steps: list[int]) -> Iterator[list[int]]:
    yield from (steps[first : first + 700] for first in range(0, len(steps), 700))


def compared(client: TestClient, *jobs: str, **parameters: Any) -> dict[str, Any]:
    answer = client.get("/api/v1/curves", params={"jobs": ",".join(jobs), **parameters})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def refused(client: TestClient, **parameters: Any) -> dict[str, Any]:
    answer = client.get("/api/v1/curves", params=parameters)
    assert answer.status_code == 422, answer.text
    problem: dict[str, Any] = answer.json()
    return problem


def test_the_curves_of_several_jobs_are_those_of_each_alone(here: Stage) -> None:
    jobs = []
    for offset in range(3):
        jobs.append(job_id := here.running())
        records = [metric(s + 1, s, loss=float((s * 7 + offset) % 31), accuracy=s / 200) for s in range(200)]
        here.post(job_id, records=[*records, outcome(1, "succeeded", result=RESULT)])
        here.tick(2)
    for max_points in (20, 1000):
        found = compared(here.client, *jobs, names="loss,accuracy,none", max_points=max_points)
        assert [job["id"] for job in found["jobs"]] == jobs
        assert {(c["job"], c["name"]) for c in found["curves"]} == {
            (job_id, name) for job_id in jobs for name in ("loss", "accuracy")
        }
        for curve in found["curves"]:
            alone = here.client.get(
                f"/api/v1/jobs/{curve['job']}/metrics",
                params={"name": curve["name"], "max_points": max_points},
            ).json()["points"]
            assert curve["steps"] == [point["step"] for point in alone]
            assert curve["values"] == [point["value"] for point in alone]
            assert curve["times"] == [datetime.fromisoformat(point["at"]).timestamp() for point in alone]


def test_a_spike_is_kept_and_a_stretch_shows_more_of_it(here: Stage) -> None:
    job_id = here.running()
    here.post(job_id, records=[metric(s + 1, s, loss=99.0 if s == 333 else 1.0) for s in range(1000)])
    (whole,) = compared(here.client, job_id, max_points=10)["curves"]
    assert len(whole["steps"]) <= 10
    assert (whole["steps"][0], whole["steps"][-1]) == (0, 999)
    assert 333 in whole["steps"]
    (near,) = compared(here.client, job_id, max_points=10, **{"from": 330, "to": 337})["curves"]
    assert near["steps"] == list(range(330, 338))
    assert near["values"] == [1.0, 1.0, 1.0, 99.0, 1.0, 1.0, 1.0, 1.0]


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
def test_of_a_long_curve_no_peak_is_lost(
    request: pytest.FixtureRequest, tmp_path: Path, database: str, known: bool
) -> None:
    lent = request.getfixturevalue("postgres_server").url() if database == "postgresql" else None
    here = stage(tmp_path, **({"database_url": str(lent)} if lent else {}))
    job_id, draw = here.running(), random.Random(11)
    values = {step: draw.uniform(1, 2) for step in range(100, 30_000)}
    peaks, dips = draw.sample(range(101, 29_999), 4), draw.sample(range(101, 29_999), 4)
    values |= dict.fromkeys(dips, 0.0) | dict.fromkeys(peaks, 9.0)
    steps = sorted(values)
    for seq, some in enumerate(_of_700(steps)):
        records = [metric(seq * 700 + n + 1, step, loss=values[step]) for n, step in enumerate(some)]
        here.post(job_id, records=records)
    twice = [metric(len(steps) + n + 1, step, loss=99.0) for n, step in enumerate(steps[5_000:5_100])]
    here.post(job_id, records=twice)  # computed again: what was stored first stays
    if not known:  # stored by the version before
        with here.control.store.write() as session:
            session.execute(delete(MetricStretch).where(MetricStretch.stretch % 3 == 1))
    (curve,) = compared(here.client, job_id, max_points=16)["curves"]
    shown = dict(zip(curve["steps"], curve["values"], strict=True))
    assert len(shown) <= 16
    assert shown.items() <= values.items()
    assert {100, 29_999} <= shown.keys()
    stretch_of = lambda step: (step - 100) * 7 // 29_900  # noqa: E731
    for extreme, at in ((9.0, peaks), (0.0, dips)):
        drawn = {stretch_of(step) for step, value in shown.items() if value == extreme}
        assert drawn == {stretch_of(step) for step in at}
    here.control.close()


@pytest.mark.parametrize("every", [1, 3])
def test_of_a_stretch_of_a_long_curve_no_peak_is_lost(here: Stage, every: int) -> None:
    job_id, draw = here.running(), random.Random(every)
    values = {step: draw.uniform(1, 2) for step in range(0, 9_000, every)}
    first, last = 1_002, 7_002
    # In a whole part of 256 steps, before the first of these, and behind the last.
    peaks = [first + 3, first + 300, 3_000, 4_500, last - 3, last]
    values |= dict.fromkeys(peaks, 9.0) | {first: 0.0, 3_003: 0.0}
    for seq, some in enumerate(_of_700(sorted(values))):
        records = [metric(seq * 700 + n + 1, step, loss=values[step]) for n, step in enumerate(some)]
        here.post(job_id, records=records)
    (curve,) = compared(here.client, job_id, max_points=60, **{"from": first - 0.5, "to": last + 0.5})[
        "curves"
    ]
    shown = dict(zip(curve["steps"], curve["values"], strict=True))
    assert len(shown) <= 60
    assert shown.items() <= values.items()
    assert {first, last, 3_003, *peaks} <= shown.keys()
    assert (min(shown), max(shown)) == (first, last)


@pytest.mark.parametrize(("first", "last"), [(0, 29_999), (7_000, 19_000)])
def test_a_long_curve_is_drawn_without_reading_its_points(here: Stage, first: int, last: int) -> None:
    job_id = here.running()
    with here.control.store.write() as session:
        store_points(session, job_id, [MetricRecord(**metric(s + 1, s, loss=s % 7)) for s in range(30_000)])
    with here.control.store.read() as session, _steps_of_sqlite(session) as taken:
        found = read_points(session, Metric.step, {job_id: (first, last)}, ["loss"], 200)
    assert (found[0].step, found[-1].step) == (first, last)
    # To count the points takes some steps for each, to rank them more than fifty.
    assert taken[0] < 60_000


@contextmanager
def _steps_of_sqlite(session: Session) -> Iterator[list[int]]:
    """The steps of SQLite's machine, in hundreds, that the session's queries take."""
    connection, taken = session.connection().connection.driver_connection, [0]
    assert connection is not None

    def count() -> None:
        taken[0] += 100

    connection.set_progress_handler(count, 100)
    yield taken
    connection.set_progress_handler(None, 0)


def test_a_value_that_comes_twice_in_one_post_is_counted_once(here: Stage) -> None:
    job_id = here.running()
    here.post(
        job_id, records=[metric(n + 1, step, loss=float(n)) for n, step in enumerate([0, 1, 2, 1, 2, 3])]
    )
    (curve,) = compared(here.client, job_id)["curves"]
    assert (curve["steps"], curve["values"]) == ([0, 1, 2, 3], [0.0, 1.0, 2.0, 5.0])
    with here.control.store.read() as session:
        known = session.scalars(select(MetricStretch)).one()
    assert (known.points, known.high_step) == (4, 3)


def test_metrics_whose_names_have_commas_are_asked_for_in_quotation_marks(here: Stage) -> None:
    job_id, name = here.running(), 'top-1, of "classes"'
    here.post(job_id, records=[metric(1, 0, loss=1.0, **{name: 2.0})])
    for asked in ('loss,"top-1, of ""classes"""', '"top-1, of ""classes""", loss'):
        found = compared(here.client, job_id, names=asked)["curves"]
        assert {(curve["name"], *curve["values"]) for curve in found} == {("loss", 1.0), (name, 2.0)}
    client = Client("http://localhost", "", transport=_Through(here.client))
    assert [curve.name for curve in client.curves([job_id], name).curves] == [name]
    (job,) = client.jobs(metrics=[name, "loss"])
    assert job.view.metrics is not None
    assert set(job.view.metrics) == {name, "loss"}


@pytest.mark.parametrize("late", [0, 37])
@pytest.mark.parametrize("known", [True, False])
def test_between_two_times_of_a_long_curve_no_peak_is_lost(here: Stage, late: int, known: bool) -> None:
    """`late`: steps in the middle that an earlier attempt left out, whose points came at its end."""
    job_id, began, steps = here.running(), datetime.fromisoformat(AT), 12_000
    missed = range(3_000, 3_000 + late)
    order = [step for step in range(steps) if step not in missed] + [*missed]
    times = {step: began + timedelta(seconds=place) for place, step in enumerate(order)}
    peaks = {2_500: 9.0, 5_300: 8.0, 11_500: 7.0} | dict.fromkeys(missed, 6.0)
    records = [
        MetricRecord(**metric(n + 1, step, loss=peaks.get(step, 1.0)) | {"at": times[step].isoformat()})
        for n, step in enumerate(order)
    ]
    with here.control.store.write() as session:
        store_points(session, job_id, records[: steps - late])
        store_points(session, job_id, records[steps - late :])
        if not known:  # stretches of the version before
            session.execute(update(MetricStretch).values(first_at=None, last_at=None))
    for first, last, seen in (
        (2_400, 11_000, {2_500, 5_300}),
        (5_200, 5_400, {5_300}),
        (11_400, 12_000, {11_500, *missed}),
    ):
        stretch = {"from": began.timestamp() + first, "to": began.timestamp() + last}
        (curve,) = compared(here.client, job_id, axis="wall", max_points=200, **stretch)["curves"]
        shown = dict(zip(curve["steps"], curve["values"], strict=True))
        within = {step for step, at in times.items() if first <= (at - began).total_seconds() <= last}
        assert len(shown) <= 200
        assert shown.keys() <= within
        assert {min(within), max(within)} <= shown.keys()
        assert {peaks[step] for step in seen & within} <= set(shown.values())
        if late == 0:
            assert seen & within <= shown.keys()


def test_a_stretch_of_time_of_a_long_curve_is_found_without_reading_its_points(here: Stage) -> None:
    job_id, began = here.running(), datetime.fromisoformat(AT)
    told = [
        MetricRecord(**metric(s + 1, s, loss=s % 7) | {"at": (began + timedelta(seconds=s)).isoformat()})
        for s in range(30_000)
    ]
    with here.control.store.write() as session:
        store_points(session, job_id, told)
    times = (began + timedelta(seconds=28_000), began + timedelta(seconds=28_100))
    with here.control.store.read() as session, _steps_of_sqlite(session) as taken:
        found = read_points(session, Metric.at, {job_id: times}, ["loss"], 200)
    assert [row.step for row in found] == [*range(28_000, 28_101)]
    assert taken[0] < 30_000


def test_a_stretch_is_in_steps_in_time_or_since_the_start(here: Stage) -> None:
    job_id = here.running()
    began = datetime.fromisoformat(AT)
    records = [
        metric(s + 1, s, loss=1.0) | {"at": (began + timedelta(seconds=s)).isoformat()} for s in range(60)
    ]
    here.post(job_id, records=records)
    (job,) = compared(here.client, job_id)["jobs"]
    before = (began - datetime.fromisoformat(job["started_at"])).total_seconds()
    for axis, zero in (("step", 0.0), ("wall", began.timestamp()), ("relative", before)):
        stretch = {"axis": axis, "from": zero + 20, "to": zero + 22}
        (curve,) = compared(here.client, job_id, **stretch)["curves"]
        assert curve["steps"] == [20, 21, 22], axis
    for axis in ("wall", "relative"):  # beyond all dates
        assert compared(here.client, job_id, axis=axis, **{"from": 1e300})["curves"] == []
        assert len(compared(here.client, job_id, axis=axis, **{"from": -1e300})["curves"][0]["steps"]) == 60


def test_the_client_reads_the_same(here: Stage) -> None:
    job_id = here.running()
    here.post(job_id, records=[metric(s + 1, s, loss=float(s)) for s in range(9)])
    client = Client("http://localhost", "", transport=_Through(here.client))
    found = client.curves([job_id, ABSENT], first=3, last=5)
    assert [(curve.name, curve.values) for curve in found.curves] == [("loss", [3.0, 4.0, 5.0])]
    assert (found.jobs[0].state, found.left_out) == ("running", [ABSENT])


def test_a_job_that_never_started_has_no_curve_since_its_start(here: Stage) -> None:
    queued = here.submit()
    found = compared(here.client, queued, axis="relative", **{"from": 0})
    assert (found["curves"], found["left_out"]) == ([], [])


def test_jobs_that_one_may_not_see_are_left_out_as_those_that_do_not_exist(here: Stage) -> None:
    ours, theirs = here.running(), here.submit(project="vision")
    here.post(ours, records=[metric(1, 0, loss=1.0)])
    found = compared(here.user("ada", default="viewer"), theirs, ours, ABSENT, ours)
    assert [job["id"] for job in found["jobs"]] == [ours]
    assert [curve["job"] for curve in found["curves"]] == [ours]
    assert found["left_out"] == [theirs, ABSENT]


def test_a_value_that_is_no_number_is_null(here: Stage) -> None:
    job_id = here.running()
    here.post(job_id, records=[metric(1, 0, loss=1.0), metric(2, 1, loss=None)])
    alone = here.client.get(f"/api/v1/jobs/{job_id}/metrics?name=loss").json()["points"]
    (curve,) = compared(here.client, job_id)["curves"]
    assert curve["values"] == [point["value"] for point in alone]


def test_what_is_too_much_or_nothing_is_refused_in_words(here: Stage) -> None:
    many = [f"job_{n:026d}" for n in range(101)]
    assert refused(here.client, jobs=" , ")["detail"] == "jobs names 0, and takes 1 to 100."
    assert refused(here.client, jobs=",".join(many))["code"] == "bad_list"
    assert refused(here.client, jobs=many[0], names=",".join(map(str, range(25))))["code"] == "bad_list"
    problem = refused(here.client, jobs=",".join(many[:100]), max_points=20_000)
    assert (problem["code"], problem["hint"]) == (
        "too_many_values",
        "Ask for 2500 points at most, or for fewer jobs.",
    )
    for stretch in ({"from": 9, "to": 1}, {"from": "nan"}, {"to": "inf"}, {"axis": "rows"}, {"from": "x"}):
        refused(here.client, jobs=many[0], **stretch)
