"""The exporter: copies settled metrics, recoveries and ends from the database to MLflow, from a stored cursor.

Exactly once: a cursor moves only after MLflow has taken the batch; the batch after a doubt (a start of this process,
a call without an answer) is first compared with what the run already holds. Timestamps, steps and values come from
our rows, so a point sent again is the same point.
"""

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import func, or_, select

from ringleader.wire.states import State
from ringleader_api.clock import Clock, utc_now
from ringleader_api.log import Log
from ringleader_api.store import RoleLease, RoleLeaseLost, Transactions, log_failure
from ringleader_api.store.tables import Event, ExportCursor, Job, Metric
from ringleader_api.tracking import records
from ringleader_api.tracking.mlflow import Mlflow, MlflowPoint, TrackerDown, TrackerRefused

log = Log("ringleader.tracking")
SLOWEST_S = 30.0
CLOCKS_APART = timedelta(hours=1)
"""The most by which the clocks of control planes may differ, with the time that a commit takes."""
_ALIVE = [state for state in State if not state.ended]


@dataclass(slots=True)
class _Patience:
    """The rounds that a refused job sits out; doubled with each refusal."""

    skip: int = 0
    next_skip: int = 1


class Exporter:
    """Copies jobs to MLflow: `round` copies the new rows of every job, `run` does so until stopped, slower while MLflow
    is away.

    `lease`: the role, where another process could have it. `shared`: other processes write to the store too, so that
    its version does not tell whether there is news.
    """

    def __init__(
        self,
        store: Transactions,
        mlflow: Mlflow,
        lease: RoleLease | None = None,
        shared: bool = False,
        now: Clock = utc_now,
    ) -> None:
        self._store = store
        self._lease = lease
        self._shared = shared
        self._mlflow = mlflow
        self._certain: set[str] = set()
        self._keys: dict[str, records.Keys] = {}
        self._refused: dict[str, _Patience] = {}
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
            if self._sits_out(job_id):
                continue
            try:
                self._export(job_id)
                self._refused.pop(job_id, None)
            except (TrackerDown, RoleLeaseLost):
                # It may have taken the batch although its answer was lost: compare before sending again.
                self._certain.discard(job_id)
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
        self._certain.clear()
        self._whole_at = None

    def _given_up(self, job_id: str) -> bool:
        """Whether the job was deleted: a run that MLflow refuses, or has no more, must not keep it for ever."""
        with self._store.read() as session:
            if session.scalar(select(Job.deleted_at).where(Job.id == job_id)) is None:
                return False
        with self._store.write() as session:
            session.merge(ExportCursor(job_id=job_id, finished=True))  # also where no run could be made
        self._refused.pop(job_id, None)
        self._certain.discard(job_id)
        self._keys.pop(job_id, None)
        return True

    def _put_off(self, job_id: str) -> None:
        self._certain.discard(job_id)
        patience = self._refused.setdefault(job_id, _Patience())
        patience.skip, patience.next_skip = patience.next_skip, min(300, patience.next_skip * 2)

    def _down(self, down: TrackerDown) -> None:
        if not self.trouble:
            log.warning("tracking.down", error=down.message)
        self.trouble = down.message

    def _sits_out(self, job_id: str) -> bool:
        patience = self._refused.get(job_id)
        if patience is None or patience.skip <= 0:
            return False
        patience.skip -= 1
        return True

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

    def _export(self, job_id: str) -> None:
        with self._store.read() as session:
            job = session.get(Job, job_id)  # before its points: an ended job gets no more of them
            cursor = session.get(ExportCursor, job_id)
        if job is None:
            return
        cursor = self._with_run(job, cursor)
        while self._next_metrics(cursor):
            pass
        self._recoveries(cursor)
        if job.state.ended:
            self._finish(job, cursor)

    def _with_run(self, job: Job, cursor: ExportCursor | None) -> ExportCursor:
        """The job's run, created once: found again by its tag after a crash between creating and noting it."""
        if cursor is None:
            experiment_id = self._mlflow.experiment(job.project)
            run_id = self._mlflow.find_run(experiment_id, job.id)
            if run_id is None:
                start_ms = records.millis(job.started_at or job.created_at)
                run_id = self._mlflow.create_run(experiment_id, job.name, start_ms, records.tags(job))
            cursor = ExportCursor(
                job_id=job.id,
                experiment_id=experiment_id,
                run_id=run_id,
                described=False,
                metric_id=0,
                event_seq=0,
                finished=False,
            )
            with self._store.write() as session:
                session.add(cursor)
        if not cursor.described:
            params = records.params(job)
            # Sent again after a crash: MLflow takes a param with the same value twice.
            for start in range(0, len(params), records.MAX_PARAMS):
                self._mlflow.log_params(cursor.run_id, params[start : start + records.MAX_PARAMS])
            self._note(cursor, described=True)
        return cursor

    def _next_metrics(self, cursor: ExportCursor) -> bool:
        """Copy one batch; False when there was none."""
        query = select(Metric).where(Metric.job_id == cursor.job_id, Metric.id > cursor.metric_id)
        with self._store.read() as session:
            rows = session.scalars(query.order_by(Metric.id).limit(records.MAX_BATCH)).all()
        if not rows:
            return False
        self._send(cursor, records.points(rows, self._keys_of(cursor)))
        self._note(cursor, metric_id=rows[-1].id)
        return True

    def _keys_of(self, cursor: ExportCursor) -> records.Keys:
        """The names of the job's metrics in MLflow; after a doubt rebuilt from the rows sent so far."""
        if cursor.job_id in self._certain and cursor.job_id in self._keys:
            return self._keys[cursor.job_id]
        first = func.min(Metric.id)
        mine = (Metric.job_id == cursor.job_id, Metric.id <= cursor.metric_id)
        # In the order of their first rows, which numbers names that are cleaned alike as it did the first time.
        query = select(Metric.name).where(*mine).group_by(Metric.name).order_by(first)
        keys = self._keys[cursor.job_id] = records.Keys()
        with self._store.read() as session:
            for name in session.scalars(query):
                # For its effect: a name that is missing is numbered and stored.
                keys[name]
        return keys

    def _recoveries(self, cursor: ExportCursor) -> None:
        """Copy the recoveries behind the cursor; earlier events are read too, for the step at which each happened."""
        query = select(Event).where(Event.job_id == cursor.job_id).order_by(Event.seq)
        with self._store.read() as session:
            newest = session.scalar(
                select(Event.seq).where(Event.job_id == cursor.job_id).order_by(Event.seq.desc()).limit(1)
            )
            if newest is None or newest <= cursor.event_seq:
                return
            events = session.scalars(query.where(Event.type.in_((records.RECOVERED, "worker.lost")))).all()
        found = records.recovery_points(events, cursor.event_seq)
        for start in range(0, len(found), records.MAX_BATCH):
            self._send(cursor, found[start : start + records.MAX_BATCH])
        self._note(cursor, event_seq=newest)

    def _finish(self, job: Job, cursor: ExportCursor) -> None:
        self._send(cursor, records.score_points(job))
        self._mlflow.log_tags(cursor.run_id, records.end_tags(job))
        at = job.finished_at or job.created_at
        self._mlflow.finish(cursor.run_id, records.STATUS[job.state], records.millis(at))
        # The note comes last: after a crash the end is sent once more, which changes nothing.
        self._note(cursor, finished=True)
        self._keys.pop(job.id, None)

    def _send(self, cursor: ExportCursor, points: Sequence[MlflowPoint]) -> None:
        if cursor.job_id not in self._certain:
            points = self._missing(cursor.run_id, points)
        if points:
            self._mlflow.log_metrics(cursor.run_id, points)
        self._certain.add(cursor.job_id)

    def _missing(self, run_id: str, points: Sequence[MlflowPoint]) -> list[MlflowPoint]:
        """The points that the run does not hold yet."""
        held = {
            (p.key, p.step, p.at_ms)
            for key in {p.key for p in points}
            for p in self._mlflow.history(run_id, key)
        }
        return [p for p in points if (p.key, p.step, p.at_ms) not in held]

    def _note(self, cursor: ExportCursor, **reached: Any) -> None:
        for name, value in reached.items():
            setattr(cursor, name, value)
        with self._store.write() as session:
            row = session.get(ExportCursor, cursor.job_id)
            if row is not None:
                for name, value in reached.items():
                    setattr(row, name, value)
