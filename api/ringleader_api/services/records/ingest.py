"""Ingest: the records that supervisors post, each stored once, from the living attempt only, a post whole or not at
all."""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from ringleader.spec.job import MAX_WHY
from ringleader.spec.program.framework import CHOSEN, ON_NODES
from ringleader.wire.disclosure import masked
from ringleader.wire.ingest import (
    Acknowledged,
    EventRecord,
    Ingest,
    LogRecord,
    MetricRecord,
    OutcomeRecord,
    Record,
    Status,
)
from ringleader.wire.states import RETRIED, State
from ringleader.wire.views import Why
from ringleader_api.clock import Clock
from ringleader_api.log import Log
from ringleader_api.problems import StaleAttempt
from ringleader_api.services.jobs.attempts import TRUE_STATES, attempt_failed
from ringleader_api.services.records.points import store_points
from ringleader_api.services.records.system import store_samples
from ringleader_api.services.records.totals import counted, longest, over_all_attempts
from ringleader_api.services.secrets import Secrets
from ringleader_api.services.users.access import load
from ringleader_api.store import Store, move, record, retarget
from ringleader_api.store.tables import IngestPosition, Job, LogRow
from ringleader_api.telemetry import Telemetry
from ringleader_api.tracing import Traces

log = Log("ringleader.ingest")
HEARD_EVERY = timedelta(seconds=3)
"""The interval at which a post is noted as the supervisor's heartbeat: each note is a write to the disk. The last note
may be another replica's, whose clock is ahead."""
FREE_TEXT = {
    "logs": ["line"],
    "events": ["data"],
    "metrics": ["values"],
    "outcome": ["reason.message", "reason.hint", "result.scores", "result.reproducible_why"],
}
"""The fields of each stream's records that may hold text from user code."""


class Intake:
    """Stores posts. Of a job's log lines the newest are kept: `logs_kept` at most, of no more than `logs_kept_bytes`
    together."""

    def __init__(
        self,
        store: Store,
        now: Clock,
        telemetry: Telemetry,
        secrets: Secrets,
        traces: Traces,
        *,
        logs_kept: int,
        logs_kept_bytes: int,
    ) -> None:
        self._store = store
        self._now = now
        self._telemetry = telemetry
        self._secrets = secrets
        self._traces = traces
        self._logs_kept = logs_kept
        self._logs_kept_bytes = logs_kept_bytes

    def take(self, job_id: str, body: Ingest) -> tuple[Acknowledged, bool]:
        """Store the new records of a post.

        Returns:
            What the sender may forget, and whether the job needs the reconciler (the attempt has ended).

        Raises:
            NotFound: the job was deleted.
            StaleAttempt: the attempt is not the job's living one; its supervisor must stop.
        """
        now = self._now()
        with self._store.write() as session:
            # Locked from here on: two posts of one attempt may overtake each other on their way.
            job = load(session, job_id)
            _living(job, body.attempt)
            # The last one may be noted by a replica whose clock is ahead: a difference below 0 counts as well.
            if job.heard_at is None or abs(now - job.heard_at) >= HEARD_EVERY:
                job.heard_at = now
            positions = _positions(session, job)
            # Before anything is stored: after that a secret would be in the database, and in its backups.
            fresh = self._masked(session, job, _fresh(body.records, positions))
            before = job.step
            if body.status is not None:
                _apply_status(session, job, body.status, now)
            self._store_records(session, job, fresh, now)
            store_samples(session, job.id, body.system)
            # In the same transaction: a record is stored if and only if its position says so.
            _advance(session, job, positions)
        if before == 0 < job.step:
            self._traces.first_step(job, now)
        self._count([r.data for r in fresh if isinstance(r, EventRecord) and r.type == "recovered"])
        return Acknowledged(acked=positions), any(isinstance(r, OutcomeRecord) for r in fresh)

    def hand_out(self, job_id: str, attempt: int) -> dict[str, str]:
        """The job's secrets by environment variable, as of now.

        Raises:
            NotFound: the job was deleted.
            StaleAttempt: the attempt is over.
            SecretMissing: somebody has deleted one.
        """
        with self._store.read() as session:
            job = load(session, job_id)
            _living(job, attempt)
            return self._secrets.values(session, job.project, job.spec.get("secrets", {}))

    def _count(self, recoveries: Sequence[dict[str, Any]]) -> None:
        self._telemetry.recoveries.inc(len(recoveries))
        for told in recoveries:
            total_s = told.get("total_s")
            if isinstance(total_s, (int, float)):
                self._telemetry.recovery_s.observe(total_s)

    def _masked(self, session: Session, job: Job, told: list[Record]) -> list[Record]:
        """The records without the job's secrets."""
        named = job.spec.get("secrets")
        masks = self._secrets.masks(session, job.project, named) if named else []
        if not masks:
            return told
        # In each of them: a log line, a traceback or a label may hold one.
        return [_masked(r, masks) for r in told]

    def _store_records(self, session: Session, job: Job, fresh: Sequence[Record], now: datetime) -> None:
        for item in fresh:
            if isinstance(item, EventRecord) and item.type.startswith("job."):
                log.warning("ingest.event_refused", job=job.id, type=item.type)  # states are ours to tell
            elif isinstance(item, EventRecord):
                if item.type == CHOSEN:
                    _keep_choice(job, item.data)
                data = counted(job, item.type, item.data)
                record(session, job, item.type, item.at, data, generation=item.generation)
        points = [r for r in fresh if isinstance(r, MetricRecord)]
        job.step = max([job.step, *(point.step for point in points)])  # of a supervisor that posts no more
        store_points(session, job.id, points)
        self._store_logs(session, job, [r for r in fresh if isinstance(r, LogRecord)])
        # Last: the attempt's points and lines still belong to it when its outcome ends it.
        for item in fresh:
            if isinstance(item, OutcomeRecord):
                _apply_outcome(session, job, item, now)

    def _store_logs(self, session: Session, job: Job, lines: Sequence[LogRecord]) -> None:
        if not lines:
            return
        for line in lines:
            job.log_seq += 1
            session.add(
                LogRow(
                    job_id=job.id,
                    seq=job.log_seq,
                    at=line.at,
                    # Cut to the column: PostgreSQL refuses a longer one, and with it the post and all that come behind
                    # it.
                    worker=line.worker[:100],
                    level=line.level,
                    line=line.line,
                    start_byte=job.log_bytes,
                )
            )
            job.log_bytes += len(line.line.encode())
        # The rows have to be in the table for the statement that finds the oldest ones to drop.
        session.flush()
        self._drop_logs(session, job)

    def _drop_logs(self, session: Session, job: Job) -> None:
        """Drop the oldest lines until no more lines and bytes are kept than allowed; the newest stays."""
        mine = LogRow.job_id == job.id
        # Never less than before: the setting may have been raised since lines were dropped.
        last = max(job.logs_dropped, job.log_seq - self._logs_kept)
        if (beyond := job.log_bytes - self._logs_kept_bytes) > 0:
            kept = select(LogRow.seq).where(mine, LogRow.seq > last, LogRow.start_byte >= beyond)
            # None where the newest line alone is longer than what is kept: it stays all the same.
            last = (session.scalar(kept.order_by(LogRow.seq).limit(1)) or job.log_seq) - 1
        session.execute(delete(LogRow).where(mine, LogRow.seq <= last))
        job.logs_dropped = last


def _living(job: Job, attempt: int) -> None:
    if attempt != job.attempt or not job.state.holds:
        raise StaleAttempt(
            f"attempt {attempt} of job {job.id} is over: the job is {job.state} at attempt {job.attempt}.",
            hint="The supervisor that sent this must stop.",
        )


def _positions(session: Session, job: Job) -> dict[str, int]:
    query = select(IngestPosition).where(
        IngestPosition.job_id == job.id, IngestPosition.attempt == job.attempt
    )
    return {row.stream: row.seq for row in session.scalars(query)}


def _fresh(records: Iterable[Record], positions: dict[str, int]) -> list[Record]:
    """The records not stored yet, in order; `positions` moves on with them."""
    fresh: list[Record] = []
    for item in sorted(records, key=lambda r: r.seq):
        if item.seq > positions.get(item.stream, 0):
            positions[item.stream] = item.seq
            fresh.append(item)
    return fresh


def _masked(told: Record, masks: Sequence[str]) -> Record:
    fields = told.model_dump()
    for path in FREE_TEXT[told.stream]:
        *outer, name = path.split(".")
        part = fields[outer[0]] if outer else fields
        if part is not None:
            part[name] = masked(part[name], masks)
    return type(told).model_validate(fields)


def _advance(session: Session, job: Job, positions: dict[str, int]) -> None:
    for stream, seq in positions.items():
        session.merge(IngestPosition(job_id=job.id, attempt=job.attempt, stream=stream, seq=seq))


def _keep_choice(job: Job, told: dict[str, Any]) -> None:
    """Keep what a node has found `framework: auto` to be, with the reason, as a job file has it for which `ringleader
    submit` has chosen: later attempts do not choose again."""
    framework, why = told.get("framework"), told.get("framework_why")
    if job.spec.get("framework") != "auto" or not (isinstance(framework, str) and isinstance(why, str)):
        return
    if framework in ON_NODES:
        job.spec = {**job.spec, "framework": framework, "framework_why": " ".join(why.split())[:MAX_WHY]}


def _apply_status(session: Session, job: Job, status: Status, now: datetime) -> None:
    job.generation = status.generation
    job.failures_reported = status.failures_spent
    job.step = status.progress.step
    job.total_steps = status.progress.total_steps
    job.epoch = status.progress.epoch
    if status.spent is not None:
        job.spending = longest(job.spending, status.spent)
    # A job that is to end keeps that state, whatever its supervisor still reports of its training.
    if job.state is State.STOPPING:
        return
    job.world_size = status.world_size
    job.workers = [w.model_dump(mode="json") for w in status.workers]
    for state in _path(job.state, status.state):
        move(session, job, state, at=now, who="supervisor")


def _path(now: State, told: State) -> tuple[State, ...]:
    """The moves from the stored state to the supervisor's."""
    # It trained between two posts: there is no edge that leaves `running` out.
    if now is State.STARTING and told is State.RECOVERING:
        return (State.RUNNING, State.RECOVERING)
    return (told,) if told is not now and told is not State.STARTING else ()


def _ended_while_pausing(session: Session, job: Job, told: OutcomeRecord, now: datetime) -> None:
    """Give the job the end it has reached by itself while it was to pause."""
    # A failure of the cluster does not count: resume begins with a checkpoint.
    own = told.outcome == "failed" and told.reason is not None and told.reason.code not in RETRIED
    if told.outcome == "succeeded" or own:
        retarget(session, job, State(told.outcome), at=now, who="supervisor", why=told.reason)


def _apply_outcome(session: Session, job: Job, told: OutcomeRecord, now: datetime) -> None:
    """Store how the attempt ended. An end decided before (a cancel, max_runtime_s) stands."""
    job.outcome_at = now
    if told.result is not None:
        job.result = over_all_attempts(session, job, told.result).model_dump(mode="json")
    if job.state is State.STOPPING and job.target is State.PAUSED:
        _ended_while_pausing(session, job, told, now)
    if job.state not in TRUE_STATES:
        return
    if told.outcome == "failed":
        why = told.reason or Why(code="platform_error", message="the supervisor gave no reason")
        attempt_failed(session, job, why, at=now, who="supervisor")
    else:
        job.preempted = told.outcome == "preempted"  # queued again once everything is released
        target = State.PAUSED if job.preempted else State(told.outcome)
        move(session, job, State.STOPPING, at=now, who="supervisor", why=told.reason, target=target)
