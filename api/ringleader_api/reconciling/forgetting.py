"""Removing deleted jobs for good, once nobody needs their rows any more."""

import shutil
from pathlib import Path

from sqlalchemy import select

from ringleader_api.store import Transactions
from ringleader_api.store.tables import ExportCursor, Job


class Forgetting:
    """`exporting`: a tracker has to get everything of a job before its rows go."""

    def __init__(self, store: Transactions, home: Path, exporting: bool) -> None:
        self._store = store
        self._home = home
        self._exporting = exporting

    def purge(self) -> None:
        """Rows and files of deleted jobs."""
        query = select(Job.id, ExportCursor.finished).outerjoin(ExportCursor, ExportCursor.job_id == Job.id)
        with self._store.read() as session:
            rows = session.execute(query.where(Job.deleted_at.is_not(None))).all()
        for job_id, exported in rows:
            if self._exporting and exported is False:
                continue
            for folder in ("jobs", "checkpoints"):
                shutil.rmtree(self._home / folder / job_id, ignore_errors=True)
            with self._store.write() as session:
                job = session.get(Job, job_id, with_for_update={"skip_locked": True})
                if job is not None:
                    session.delete(job)
