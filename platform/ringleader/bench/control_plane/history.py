"""A database with a long history of ended jobs, with labels, parameters and metrics."""

from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from sqlalchemy import insert, text

from ringleader.bench.control_plane.crowd import JOB
from ringleader.spec import JobSpec
from ringleader.wire.states import State
from ringleader_api.clock import new_job_id, utc_now
from ringleader_api.store import Store
from ringleader_api.store.listed import attributes_of
from ringleader_api.store.tables import Job, JobAttribute, MetricSummary

AT_ONCE = 5_000
METRICS = ("loss", "accuracy")
ENDS = (State.SUCCEEDED, State.SUCCEEDED, State.FAILED, State.CANCELLED)


def fill(home: Path, jobs: int, database_url: str = "") -> None:
    """Put `jobs` ended jobs into the database of a new home, SQLite where no other is named: ten projects, a hundred
    names, four ends, twenty owners; three labels, three parameters and two metrics of each job."""
    home.mkdir(mode=0o700, parents=True)
    store = Store.at(home, database_url)
    plain = JobSpec.parse(JOB).model_dump(mode="json")
    for first in range(0, jobs, AT_ONCE):
        at = utc_now() - timedelta(seconds=jobs - first)
        numbers = range(first, min(jobs, first + AT_ONCE))
        specs = [{**plain, "labels": _labels(number), "params": _params(number)} for number in numbers]
        rows = [_job(number, spec, at) for number, spec in zip(numbers, specs, strict=True)]
        named = [a for row in rows for a in attributes_of(row["id"], row["labels"], row["spec"]["params"])]
        values = [
            _metric(row["id"], name, number)
            for row, number in zip(rows, numbers, strict=True)
            for name in METRICS
        ]
        with store.write() as session:
            # Straight into the table: 100,000 submissions over HTTP would take minutes.
            session.execute(insert(Job), rows)
            session.execute(insert(JobAttribute), named)
            session.execute(insert(MetricSummary), values)
    if store.shared:
        # PostgreSQL does so by itself within minutes; until then its planner knows nothing of the rows.
        with store.write() as session:
            session.execute(text("ANALYZE"))
    store.close()


def _job(number: int, spec: dict[str, Any], at: datetime) -> dict[str, Any]:
    return {
        "id": new_job_id(),
        "name": f"n{number % 100}",
        "project": f"p{number % 10}",
        "owner": f"u{number % 20}",
        "labels": spec["labels"],
        "spec": spec,
        "submitted": spec,
        "state": ENDS[number % len(ENDS)],
        "attempt": 1 + number % 3,
        "step": number * 7919 % 100_003,
        "workers": [],
        "created_at": at,
        "queued_at": at,
        "started_at": at,
        "finished_at": at + timedelta(seconds=number % 977),
        "duration_s": float(number % 977),
        "priority": number % 3 - 2,
        "listed": True,
    }


def _labels(number: int) -> dict[str, str]:
    return {"team": f"t{number % 5}", "sweep": f"s{number // 100}", "run": f"r{number}"}


def _params(number: int) -> dict[str, Any]:
    return {"lr": 10.0 ** -(number % 4), "seed": number, "layers": number % 7}


def _metric(job_id: str, name: str, number: int) -> dict[str, Any]:
    # Spread as a hash does: in the order of submission a walk by a metric would be one by id.
    value = (number * 2_654_435_761 + len(name)) % 1_000_003 / 1_000_003
    of = {"job_id": job_id, "name": name, "last_step": 1000}
    return {**of, "last": value, "min": value / 2, "max": value + 1}
