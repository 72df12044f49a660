"""The exporter: copies settled metrics, artifacts, recoveries and ends from database to MLflow, from a stored cursor.

Exactly once (`runs`): timestamps, steps and values come from our rows, so a point sent again is the same point.
"""

import threading
from datetime import datetime, timedelta
from pathlib import Path

from sqlalchemy import or_, select

from ringleader.wire.states import State
from ringleader_api.clock import Clock, Patience, utc_now
from ringleader_api.log import Log
from ringleader_api.store import RoleLease, RoleLeaseLost, Transactions, log_failure
from ringleader_api.store.tables import ExportCursor, Job
from ringleader_api.tracking.mlflow import Mlflow, TrackerDown, TrackerRefused
from ringleader_api.tracking.runs import MlflowRuns

log = Log("ringleader.tracking")
SLOWEST_S = 30.0
MOST_ROUNDS = 300
CLOCKS_APART = timedelta(hours=1)
"""The most by which the clocks of control planes may differ, with the time that a commit takes."""
_ALIVE = [state for state in State if not state.ended]


class Exporter:
    """Copies jobs to MLflow: `round` copies the new rows of every job, `run` does so until stopped, slower while MLflow
    is away.

    `lease`: the role, where another process could have it. `shared`: other processes write to the store too, so that
    its version does not tell whether there is news. `home`: where the jobs' artifacts are; None: they are not copied.
    `system`: whether system metrics are copied.
    """

    def __init__(
        self,
        store: Transactions,
        mlflow: Mlflow,
        lease: RoleLease | None = None,
        shared: bool = False,
        now: Clock = utc_now,
        *,
        home: Path | None = None,
        system: bool = True,
    ) -> None:
        self._store = store
        self._lease = lease
        self._shared = shared
        self._mlflow = mlflow
        self._runs = MlflowRuns(store, mlflow, home, system=system)
        self._refused: dict[str, Patience] = {}
        self._now = now
        self._whole_at: datetime | None = None
        self._seen_version = -1
        self._stop = threading.Event()
        self.trouble = ""

    def run(self, every_s: float) -> None:
        wait_s = every_s
        while not self._stop.wait(wait_s):
            try:
                version = self._store.version
                if self._lease is not None and not self._lease.hold():
                    self._start_over()
                    continue
                # Without a write nobody has anything new, unless other processes write or something is still owed.
                if self._shared or version != self._seen_version or self.trouble or self._refused:
                    self.round()
                    # The version of before the round: a write while it ran has to lead to another one.
                    self._seen_version = version
                wait_s = every_s
            except RoleLeaseLost as lost:
                self._start_over()
                log.warning("tracking.relieved", why=lost.message)
            except TrackerDown as down:
                wait_s = min(SLOWEST_S, wait_s * 2)
                self._down(down)
            except Exception as error:  # the loop must outlive any round
                wait_s = min(SLOWEST_S, wait_s * 2)
                log_failure(log, "tracking.round_failed", error)

    def stop(self) -> None:
        self._stop.set()

    def close(self) -> None:
        self._mlflow.close()

    def round(self) -> None:
        """Copy the new rows of every job that is not complete yet. Raises TrackerDown."""
        began = self._now()
        for job_id in self._unfinished():
            if self._stop.is_set():
                return
            if job_id in self._refused and self._refused[job_id].sits_out():
                continue
            try:
                self._runs.update(job_id)
                self._refused.pop(job_id, None)
            except (TrackerDown, RoleLeaseLost):
                self._runs.doubt(job_id)
                raise
            except TrackerRefused as refused:
                log.warning("tracking.refused", job=job_id, error=refused.message)
                if not self._given_up(job_id):
                    self._put_off(job_id)
            except Exception:  # whatever is wrong with one job, the others go on
                self._put_off(job_id)
                log.exception("tracking.job_failed", job=job_id)
        if self.trouble:
            log.info("tracking.back")
        self.trouble = ""
        # The beginning of the round: what came in while it ran may have been missed.
        self._whole_at = began

    def _start_over(self) -> None:
        """Treat nothing as certain: another process has had the role."""
        self._runs.doubt_all()
        self._whole_at = None

    def _given_up(self, job_id: str) -> bool:
        """Whether the job was deleted; then it is noted as complete."""
        with self._store.read() as session:
            if session.scalar(select(Job.deleted_at).where(Job.id == job_id)) is None:
                return False
        with self._store.write() as session:
            # A run that MLflow refuses, or has no more, must not keep a deleted job for ever.
            session.merge(ExportCursor(job_id=job_id, finished=True))  # also where no run could be made
        self._refused.pop(job_id, None)
        self._runs.forget(job_id)
        return True

    def _put_off(self, job_id: str) -> None:
        self._runs.doubt(job_id)
        self._refused.setdefault(job_id, Patience(MOST_ROUNDS)).put_off()

    def _down(self, down: TrackerDown) -> None:
        if not self.trouble:
            log.warning("tracking.down", error=down.message)
        self.trouble = down.message

    def _unfinished(self) -> list[str]:
        """The jobs with something to copy: started ones, until their end has been copied.

        Those without a cursor are looked for among all jobs once. Whoever had none when a whole round began was alive
        then, or is known here as refused.
        """
        open_ones = select(ExportCursor.job_id).where(ExportCursor.finished.is_(False))
        begun = select(Job.id).outerjoin(ExportCursor, ExportCursor.job_id == Job.id)
        begun = begun.where(Job.attempt > 0, ExportCursor.job_id.is_(None))
        if self._whole_at is not None:
            since = self._whole_at - CLOCKS_APART
            begun = begun.where(or_(Job.state.in_(_ALIVE), Job.finished_at >= since))
        with self._store.read() as session:
            found = {*session.scalars(open_ones), *session.scalars(begun)}
        return sorted(found | self._refused.keys())
