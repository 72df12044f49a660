"""The jobs' runs in MLflow, each brought up to the job's rows.

A cursor moves only after MLflow has taken the batch; the batch after a doubt (a start of this process, a call without
an answer) is first compared with what the run already holds.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sqlalchemy import func, select

from ringleader.wire.artifacts import MOST_BYTES
from ringleader_api.log import Log
from ringleader_api.services.records.artifacts import saved_file
from ringleader_api.store import Transactions
from ringleader_api.store.tables import Event, ExportCursor, Job, Metric
from ringleader_api.tracking import records
from ringleader_api.tracking.mlflow import Mlflow, MlflowPoint, TrackerRefused
from ringleader_api.tracking.registry import TAG, Registry
from ringleader_api.tracking.system import next_samples, node_names, system_points

log = Log("ringleader.tracking")


class MlflowRuns:
    """Copies rows of jobs to their runs, and remembers of which runs it is certain what they hold."""

    def __init__(
        self, store: Transactions, mlflow: Mlflow, home: Path | None = None, *, system: bool = True
    ) -> None:
        self._store = store
        self._home = home
        self._system = system
        self._mlflow = mlflow
        self._registry = Registry(mlflow, home)
        self._certain: set[str] = set()
        self._keys: dict[str, records.Keys] = {}
        self._nodes: dict[str, dict[str, str]] = {}

    def doubt(self, job_id: str) -> None:
        """Compare before the next batch."""
        # MLflow may have taken the last one although its answer was lost.
        self._certain.discard(job_id)

    def doubt_all(self) -> None:
        self._certain.clear()

    def forget(self, job_id: str) -> None:
        self._certain.discard(job_id)
        self._keys.pop(job_id, None)
        self._nodes.pop(job_id, None)

    def update(self, job_id: str) -> None:
        """Copy what is new of a job. Raises TrackerDown, TrackerRefused."""
        with self._store.read() as session:
            job = session.get(Job, job_id)  # before its points: an ended job gets no more of them
            cursor = session.get(ExportCursor, job_id)
        if job is None:
            return
        cursor = self._with_run(job, cursor)
        while self._next_metrics(cursor):
            pass
        self._events(cursor)
        while self._system and self._next_samples(job, cursor):
            pass
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

    def _next_samples(self, job: Job, cursor: ExportCursor) -> bool:
        """Copy some system metrics; False when there were none."""
        with self._store.read() as session:
            rows = next_samples(session, job.id, cursor.system_at)
            nodes = self._nodes.get(job.id, {})
            if any(row.kind == "node" and row.name not in nodes for row in rows):
                nodes = self._nodes[job.id] = node_names(session, job.id)
            points = system_points(rows, job.started_at or job.created_at, nodes)
        for start in range(0, len(points), records.MAX_BATCH):
            self._send(cursor, points[start : start + records.MAX_BATCH])
        if rows:
            self._note(cursor, system_at=rows[-1].at)
        return bool(rows)

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

    def _events(self, cursor: ExportCursor) -> None:
        """Copy the recoveries and artifacts behind the cursor."""
        query = select(Event).where(Event.job_id == cursor.job_id).order_by(Event.seq)
        with self._store.read() as session:
            newest = session.scalar(
                select(Event.seq).where(Event.job_id == cursor.job_id).order_by(Event.seq.desc()).limit(1)
            )
            if newest is None or newest <= cursor.event_seq:
                return
            # Earlier events, too: they tell the step at which a recovery happened.
            events = session.scalars(query.where(Event.type.in_((records.RECOVERED, "worker.lost")))).all()
            fresh = query.where(Event.type == records.SAVED, Event.seq > cursor.event_seq)
            made = records.artifact_files(session.scalars(fresh).all())
        self._artifacts(cursor, made)
        found = records.recovery_points(events, cursor.event_seq)
        for start in range(0, len(found), records.MAX_BATCH):
            self._send(cursor, found[start : start + records.MAX_BATCH])
        self._note(cursor, event_seq=newest)

    def _artifacts(self, cursor: ExportCursor, made: Sequence[tuple[str, str]]) -> None:
        """Copy artifacts, each by its path: one that is sent again replaces itself."""
        if self._home is None or not made:
            return
        folder = self._mlflow.artifact_folder(cursor.run_id)
        if folder is None:
            log.warning(
                "tracking.artifacts_not_copied", job=cursor.job_id, why="MLflow does not serve artifacts"
            )
            return
        for name, file in made:
            path = saved_file(self._home, cursor.job_id, file)
            # A job writes this folder itself, and may have put a larger file there than a session saves.
            if path is not None and path.stat().st_size <= MOST_BYTES:
                self._mlflow.put_artifact(f"{folder}/{name}/{file}", path.read_bytes())

    def _finish(self, job: Job, cursor: ExportCursor) -> None:
        self._send(cursor, records.score_points(job))
        self._mlflow.log_tags(cursor.run_id, records.end_tags(job))
        at = job.finished_at or job.created_at
        self._mlflow.finish(cursor.run_id, records.STATUS[job.state], records.millis(at))
        # Behind the end: a registry that refuses keeps no run going.
        self._mlflow.log_tags(cursor.run_id, self._registered(job, cursor))
        # The note comes last: after a crash the end is sent once more, which changes nothing.
        self._note(cursor, finished=True)
        self._keys.pop(job.id, None)
        self._nodes.pop(job.id, None)

    def _registered(self, job: Job, cursor: ExportCursor) -> dict[str, str]:
        """The tag that says which version of a model was made of the run. Raises TrackerRefused, which the run says."""
        try:
            return self._registry.register(job, cursor.run_id, lambda: self._note(cursor))
        except TrackerRefused as refused:
            self._mlflow.log_tags(cursor.run_id, {TAG: f"not yet: {refused.message}"})
            raise

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
            # Gone where the job was removed meanwhile: there is nothing left to note.
            if row is not None:
                for name, value in reached.items():
                    setattr(row, name, value)
