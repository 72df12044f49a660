"""System metrics at the API: stored once, thinned as they grow old, read between two times, gone with their job."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from control_plane import DATABASES, RESULT, Stage, outcome, stage_over
from sqlalchemy import func, select

from ringleader_api.services.records.system import KEPT_EACH, SampleSpan, taken_together
from ringleader_api.store.samples import SystemRow

START = datetime(2026, 1, 1, tzinfo=UTC)
MIB = 1 << 20


@pytest.fixture(params=DATABASES)
def here(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Stage]:
    with stage_over(request, tmp_path) as here:
        yield here


def use(kind: str, name: str, **figures: float) -> dict[str, Any]:
    return {"kind": kind, "id": name, "node": "n1", "figures": figures}


def sample(number: int, *uses: dict[str, Any]) -> dict[str, Any]:
    at = START + timedelta(seconds=5 * number)
    return {"at": at.isoformat(), "span_s": 5.0, "uses": [*uses]}


def w0(number: int, **figures: float) -> dict[str, Any]:
    return sample(number, use("worker", "w0", **figures))


def series(here: Stage, job_id: str, **parameters: Any) -> list[dict[str, Any]]:
    answer = here.client.get(f"/api/v1/jobs/{job_id}/system", params=parameters)
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json()["series"]
    return found


def stretch(number: int, **figures: Any) -> SampleSpan:
    return SampleSpan(START + timedelta(seconds=5 * number), 5.0, "n1", figures)


def test_a_sample_sent_twice_is_stored_once_and_read_by_columns(here: Stage) -> None:
    job_id = here.running()
    node = use("node", "n1", cpu_percent=30.0)
    both = [
        sample(0, node, use("worker", "w0", cpu_percent=90.0, memory_bytes=MIB)),
        w0(1, cpu_percent=80.0),
    ]
    here.post(job_id, system=both)
    here.post(job_id, system=[*both, w0(2, memory_bytes=2 * MIB)])
    first, second = series(here, job_id)
    assert (first["kind"], first["id"], first["figures"]) == ("node", "n1", {"cpu_percent": [30.0]})
    assert second["times"] == [START.timestamp() + 5 * n for n in range(3)]
    assert second["figures"] == {"cpu_percent": [90.0, 80.0, None], "memory_bytes": [MIB, None, 2 * MIB]}


def test_what_nobody_measured_is_said_with_the_reason_and_not_shown_as_zero(here: Stage) -> None:
    job_id = here.running()
    assert series(here, job_id) == []
    here.post(job_id, system=[sample(0, use("node", "n1", cpu_percent=30.0))])
    (node,) = series(here, job_id)
    assert node["unmet"]["gpu_percent"] == "no GPU that NVML knows"
    assert node["unmet"]["disk_read_bytes_per_s"] == "this platform does not give it"
    assert not node["unmet"].keys() & node["figures"].keys()


def test_a_stretch_of_time_is_read_with_its_ends(here: Stage) -> None:
    job_id = here.running()
    here.post(job_id, system=[w0(number, cpu_percent=float(number)) for number in range(20)])
    at = START.timestamp()
    (found,) = series(here, job_id, **{"from": at + 25, "to": at + 40})
    assert found["figures"]["cpu_percent"] == [5.0, 6.0, 7.0, 8.0]
    (thinned,) = series(here, job_id, max_points=4)
    assert len(thinned["times"]) <= 4
    assert sum(thinned["spans_s"]) == 100.0
    assert here.client.get(f"/api/v1/jobs/{job_id}/system", params={"from": "nan"}).status_code == 422


def test_old_samples_are_taken_together_and_new_ones_stay_as_they_were(here: Stage) -> None:
    job_id = here.running()
    at_once, newest = 256, KEPT_EACH // 3
    count = 3 * KEPT_EACH
    for first in range(0, count, at_once):
        numbers = range(first, first + at_once)
        here.post(job_id, system=[w0(n, cpu_percent=float(n % 2), memory_bytes=n) for n in numbers])
        (found,) = series(here, job_id, max_points=20_000)
        assert len(found["times"]) <= KEPT_EACH
        assert sum(found["spans_s"]) == 5.0 * numbers.stop, "every second is in one of them"
        assert set(found["spans_s"][-newest:]) == {5.0}
        assert found["figures"]["memory_bytes"][-newest:] == [*range(numbers.stop)][-newest:]
    assert found["figures"]["cpu_percent"][0] == 0.5
    assert max(found["spans_s"]) <= 5.0 * 8 * count / KEPT_EACH


def test_several_samples_are_told_by_their_mean_and_their_most_memory() -> None:
    measured = enumerate([(10, 5), (40, 9), (10, 1)])
    parts = [stretch(n, cpu_percent=cpu, memory_bytes=memory) for n, (cpu, memory) in measured]
    (one,) = taken_together([*parts, stretch(3, memory_bytes=2)], 1)
    assert one.figures == {"cpu_percent": 20.0, "memory_bytes": 9}
    assert (one.at, one.span_s) == (START + timedelta(seconds=15), 20.0)


def test_samples_go_with_their_job(here: Stage) -> None:
    job_id = here.running()
    here.post(job_id, system=[w0(0, cpu_percent=1.0)])
    here.post(job_id, records=[outcome(1, "succeeded", result=RESULT)])
    here.tick(2)
    assert here.client.delete(f"/api/v1/jobs/{job_id}").status_code < 300
    here.tick(3)
    assert here.client.get(f"/api/v1/jobs/{job_id}/system").status_code == 404
    with here.control.store.read() as session:
        assert session.scalar(select(func.count()).select_from(SystemRow)) == 0


@pytest.mark.parametrize(
    "bad",
    [
        {"cpu_percent": -1.0},
        {"cpu_percent": "1"},
        {"heat": 1.0},
    ],
)
def test_a_sample_that_nobody_could_read_is_refused(here: Stage, bad: dict[str, Any]) -> None:
    here.post(here.running(), system=[w0(0, **bad)], expect=422)


def test_whoever_may_see_the_job_reads_them_and_nobody_else(here: Stage) -> None:
    viewer, stranger = here.user("vera", default="viewer"), here.user("sam", other="admin")
    path = f"/api/v1/jobs/{here.running()}/system"
    answers = [client.get(path).status_code for client in (viewer, stranger, here.holding(""))]
    assert answers == [200, 404, 401]
