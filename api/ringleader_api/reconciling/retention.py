"""The final removal of deleted jobs, once nobody needs their rows any more, of old sweeps, and of packages and uploads
that no job needs."""

import shutil
from collections.abc import Callable, Collection
from datetime import datetime, timedelta
from pathlib import Path

from sqlalchemy import delete, select, update

from ringleader_api.clock import Clock
from ringleader_api.log import Log
from ringleader_api.reconciling.package_collection import collect
from ringleader_api.services.packages import KEPT, sweep
from ringleader_api.store import RoleLeaseLost, Transactions
from ringleader_api.store.listed import fill
from ringleader_api.store.sweeps import Sweep
from ringleader_api.store.tables import ExportCursor, Job

log = Log("ringleader.forgetting")
LOOK_EVERY = timedelta(minutes=1)


class Retention:
    """Deletes jobs and sweeps whose time is over, and removes deleted ones for good. Used by the reconciler only.

    Args:
        let_go: removes the cluster's records of a job.
        exporting: a tracker has to get everything of a job before its rows go.
        kept: how long an ended job or sweep stays; None: until somebody deletes it.
        packages_kept: how long a package stays that no job refers to.
        open_home: where jobs under other accounts write, if there are such.
    """

    def __init__(
        self,
        store: Transactions,
        let_go: Callable[[str], None],
        home: Path,
        exporting: bool,
        now: Clock,
        *,
        kept: timedelta | None,
        packages_kept: timedelta = KEPT,
        open_home: Path | None = None,
    ) -> None:
        self._store = store
        self._let_go = let_go
        self._home = home
        self._homes = [home] if open_home is None else [home, open_home]
        self._exporting = exporting
        self._now = now
        self._kept = kept
        self._packages_kept = packages_kept
        self._looked_at: datetime | None = None

    def expire(self) -> None:
        """Delete jobs and sweeps that ended long enough ago, uploads that broke off and packages without a job; looks
        once a minute."""
        now = self._now()
        if self._looked_at is not None and now - self._looked_at < LOOK_EVERY:
            return
        # Before the work: what raises below is tried again in a minute, not in each round.
        self._looked_at = now
        # Of control planes of the version before, which may submit beside this one.
        fill(self._store.read, self._store.write)
        sweep(self._home)
        collect(self._store, self._home, now, self._packages_kept)
        if self._kept is None:
            return
        self._expire_sweeps(now - self._kept)
        over = (Job.deleted_at.is_(None), Job.finished_at < now - self._kept)
        with self._store.read() as session:
            # A read first: in most rounds nothing is over, and a write would take the writers' turn for nothing.
            if session.scalar(select(Job.id).where(*over).limit(1)) is None:
                return
        with self._store.write() as session:
            session.execute(update(Job).where(*over).values(deleted_at=now))

    def _expire_sweeps(self, before: datetime) -> None:
        """Remove closed sweeps that ended before this, with their trials; what is left of the jobs goes as theirs."""
        over = (Sweep.closed.is_(True), Sweep.finished_at < before)
        with self._store.read() as session:
            if session.scalar(select(Sweep.id).where(*over).limit(1)) is None:
                return
        with self._store.write() as session:
            session.execute(delete(Sweep).where(*over))

    def purge(self, alive: Collection[str]) -> None:
        """Remove everything of deleted jobs: the cluster's records, the files, the rows last. A job of which something
        still lives waits until that is released."""
        query = select(Job.id, Job.attempt, ExportCursor.finished)
        query = query.outerjoin(ExportCursor, ExportCursor.job_id == Job.id)
        with self._store.read() as session:
            rows = session.execute(query.where(Job.deleted_at.is_not(None))).all()
        for job_id, attempt, exported in rows:
            # One that began has a run to get, also where the tracker has not been reached since.
            if job_id in alive or (self._exporting and attempt and not exported):
                continue
            try:
                self._let_go(job_id)
            except RoleLeaseLost:
                raise
            except Exception:  # whatever the cluster's client raises: it is asked again in the next round
                log.exception("purge.put_off", job=job_id)
                continue
            # Files before the row: after a crash the row is still there, and the next round removes the rest.
            self._remove_files(job_id)
            with self._store.write() as session:
                job = session.get(Job, job_id, with_for_update={"skip_locked": True})
                if job is not None:
                    session.delete(job)

    def _remove_files(self, job_id: str) -> None:
        """Remove the job's files, with what its attempts left."""
        folders = [home / folder / job_id for home in self._homes for folder in ("jobs", "checkpoints")]
        for home in self._homes:
            for folder in ("spool", "scratch"):
                # Records from before secrets were masked, and copies of the package.
                folders += (home / folder).glob(f"{job_id}-a*")
        for path in folders:
            shutil.rmtree(path, ignore_errors=True)
