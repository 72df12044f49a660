"""A database with a long history of ended jobs."""

from datetime import timedelta
from pathlib import Path

from sqlalchemy import insert

from ringleader.bench.control_plane.crowd import JOB
from ringleader.spec import JobSpec
from ringleader.wire.states import State
from ringleader_api.clock import new_job_id, utc_now
from ringleader_api.store import Store
from ringleader_api.store.tables import Job

AT_ONCE = 5_000


def fill(home: Path, jobs: int) -> None:
    """Put `jobs` ended jobs into the SQLite database of a new home: ten projects, a hundred names, four ends."""
    home.mkdir(mode=0o700, parents=True)
    store = Store.at(home)
    spec = JobSpec.parse(JOB).model_dump(mode="json")
    ends = (State.SUCCEEDED, State.SUCCEEDED, State.FAILED, State.CANCELLED)
    for first in range(0, jobs, AT_ONCE):
        at = utc_now() - timedelta(seconds=jobs - first)
        rows = [
            {
                "id": new_job_id(),
                "name": f"n{number % 100}",
                "project": f"p{number % 10}",
                "owner": "admin",
                "labels": {},
                "spec": spec,
                "submitted": spec,
                "state": ends[number % len(ends)],
                "attempt": 1,
                "workers": [],
                "created_at": at,
                "queued_at": at,
                "finished_at": at,
            }
            for number in range(first, min(jobs, first + AT_ONCE))
        ]
        with store.write() as session:
            # Straight into the table: 100,000 submissions over HTTP would take minutes.
            session.execute(insert(Job), rows)
    store.close()
