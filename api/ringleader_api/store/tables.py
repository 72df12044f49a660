"""The tables: jobs and everything recorded about them."""

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    DateTime,
    Dialect,
    Enum,
    Float,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Text,
    TypeDecorator,
    UniqueConstraint,
    false,
    text,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from ringleader.wire.states import State

# `none_as_null`: a JSON null and a missing value would otherwise be two things to a query.
JsonValue = JSON(none_as_null=True)
# SQLite draws numbers of its own only for a key that is declared INTEGER.
RowId = BigInteger().with_variant(Integer, "sqlite")
GRACE_S = 30.0
"""The seconds that a job may take to end by itself, unless whoever cancels it says otherwise."""


class Utc(TypeDecorator[datetime]):
    """An aware datetime, kept as naive UTC."""

    impl = DateTime
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        return None if value is None else value.astimezone(UTC).replace(tzinfo=None)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        return None if value is None else value.replace(tzinfo=UTC)


# As text: a new state needs no change of a type in PostgreSQL.
StateName = Enum(
    State, native_enum=False, length=16, values_callable=lambda states: [s.value for s in states]
)


class Base(DeclarativeBase):
    """The base of all tables."""

    metadata = MetaData(
        # Names for constraints, without which a migration could not drop them on both databases.
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "fk": "fk_%(table_name)s_%(column_0_N_name)s",
            "pk": "pk_%(table_name)s",
        }
    )
    type_annotation_map = {datetime: Utc, dict[str, Any]: JsonValue, list[dict[str, Any]]: JsonValue}


def of_job() -> Mapped[str]:
    """The column of a job's id in a table of rows that go with the job."""
    return mapped_column(String(40), ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True)


def partial_index(name: str, *columns: str, sqlite: str, postgresql: str) -> Index:
    """An index of the rows for which a condition holds, as either database spells it."""
    return Index(name, *columns, sqlite_where=text(sqlite), postgresql_where=text(postgresql))


_DELETED = "deleted_at IS NOT NULL"


class Job(Base):
    """One job. `state` is only ever written by `moves.move`.

    `spec` follows PATCH, `submitted` does not. `launched` says that the backend confirmed the attempt's
    supervisor. `granted` is how many workers the scheduler lets it have (None: as many as it wants); one that is
    `preempted` is queued again once it is paused; an attempt that `overtook` others makes room for them again.
    `target` is the end that `stopping` leads to. `version` counts changes a user could collide with. `heard_at` is
    when the attempt's supervisor posted, to within a few seconds. `log_bytes` are those of all log lines that were
    ever stored. `reached` is the step behind which the next attempt loses what it trains again; `furthest` is
    the newest that any ended attempt came to, beyond which steps give failures back; `spent_before` and
    `spending` say what became of the time of ended attempts and of the present one, as `wire.views.Spent` has it.
    `priority` is that of `spec`, and `duration_s` the time from the first start to the end: lists are sorted by them.
    `listed` says that these, the job's attributes and its metric summaries are kept (`store.listed`).
    """

    __tablename__ = "jobs"
    __table_args__ = (
        Index("ix_jobs_state_id_deleted_at", "state", "id", "deleted_at"),
        Index("ix_jobs_project_id", "project", "id"),
        Index("ix_jobs_name_id", "name", "id"),
        Index("ix_jobs_package", "package"),
        Index("ix_jobs_finished_at_id", "finished_at", "id"),
        Index("ix_jobs_owner_id", "owner", "id"),
        Index("ix_jobs_priority_id", "priority", "id"),
        Index("ix_jobs_duration_s_id", "duration_s", "id"),
        Index("ix_jobs_step_id", "step", "id"),
        Index("ix_jobs_world_size_id", "world_size", "id"),
        Index("ix_jobs_attempt_id", "attempt", "id"),
        # Lists that are filtered by several of these read it instead of the rows, which are a hundred times as long.
        Index("ix_jobs_filtered", "id", "state", "project", "owner", "name", "deleted_at"),
        partial_index("ix_jobs_unlisted", "id", sqlite="listed IS 0", postgresql="listed IS false"),
        partial_index("ix_jobs_deleted_at_id", "deleted_at", "id", sqlite=_DELETED, postgresql=_DELETED),
    )

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    name: Mapped[str] = mapped_column(String(100))
    project: Mapped[str] = mapped_column(String(100))
    owner: Mapped[str] = mapped_column(String(100))
    labels: Mapped[dict[str, Any]]
    spec: Mapped[dict[str, Any]]
    submitted: Mapped[dict[str, Any]]
    package: Mapped[str | None] = mapped_column(String(64))
    state: Mapped[State] = mapped_column(StateName)
    target: Mapped[State | None] = mapped_column(StateName)
    pending_reason: Mapped[dict[str, Any] | None]
    reason: Mapped[dict[str, Any] | None]
    result: Mapped[dict[str, Any] | None]
    attempt: Mapped[int] = mapped_column(default=0)
    launched: Mapped[bool] = mapped_column(Boolean, default=False)
    generation: Mapped[int] = mapped_column(default=0)
    world_size: Mapped[int] = mapped_column(default=0)
    step: Mapped[int] = mapped_column(BigInteger, default=0)
    total_steps: Mapped[int | None] = mapped_column(BigInteger)
    epoch: Mapped[int] = mapped_column(default=0)
    workers: Mapped[list[dict[str, Any]]]
    # `server_default`: control planes of the version before go on storing rows without these.
    reached: Mapped[int] = mapped_column(BigInteger, default=0, server_default="0")
    furthest: Mapped[int] = mapped_column(BigInteger, default=0, server_default="0")
    steps_lost: Mapped[int] = mapped_column(BigInteger, default=0, server_default="0")
    recoveries: Mapped[int] = mapped_column(default=0, server_default="0")
    generations_before: Mapped[int] = mapped_column(default=0, server_default="0")
    spent_before: Mapped[dict[str, Any] | None]
    spending: Mapped[dict[str, Any] | None]
    failures_before: Mapped[int] = mapped_column(default=0)
    failures_reported: Mapped[int] = mapped_column(default=0)
    granted: Mapped[int | None]
    granted_at: Mapped[datetime | None]
    preempted: Mapped[bool] = mapped_column(Boolean, default=False)
    overtook: Mapped[bool] = mapped_column(Boolean, default=False, server_default=false())
    sized_min: Mapped[int | None]
    sized_max: Mapped[int | None]
    grace_s: Mapped[float] = mapped_column(Float, default=GRACE_S)
    cancel_sent: Mapped[bool] = mapped_column(Boolean, default=False)
    outcome_at: Mapped[datetime | None]
    created_at: Mapped[datetime]
    queued_at: Mapped[datetime]
    attempt_at: Mapped[datetime | None]
    heard_at: Mapped[datetime | None]
    started_at: Mapped[datetime | None]
    running_since: Mapped[datetime | None]
    ran_s: Mapped[float] = mapped_column(Float, default=0.0)
    stopping_at: Mapped[datetime | None]
    finished_at: Mapped[datetime | None]
    deleted_at: Mapped[datetime | None]
    priority: Mapped[int] = mapped_column(Integer, default=0, server_default="0")
    duration_s: Mapped[float | None] = mapped_column(Float)
    listed: Mapped[bool] = mapped_column(Boolean, default=False, server_default=false())
    version: Mapped[int] = mapped_column(default=1)
    event_seq: Mapped[int] = mapped_column(BigInteger, default=0)
    log_seq: Mapped[int] = mapped_column(BigInteger, default=0)
    log_bytes: Mapped[int] = mapped_column(BigInteger, default=0, server_default="0")
    logs_dropped: Mapped[int] = mapped_column(BigInteger, default=0)


class Event(Base):
    """Something that happened to a job, numbered per job."""

    __tablename__ = "events"

    job_id: Mapped[str] = of_job()
    seq: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    type: Mapped[str] = mapped_column(String(64))
    at: Mapped[datetime]
    attempt: Mapped[int]
    generation: Mapped[int]
    data: Mapped[dict[str, Any]]


class Metric(Base):
    """One value of one metric at one settled step. `id` grows in order of arrival: the exporter's cursor."""

    __tablename__ = "metrics"
    __table_args__ = (
        UniqueConstraint("job_id", "name", "step"),
        Index("ix_metrics_job_id_id", "job_id", "id"),
    )

    id: Mapped[int] = mapped_column(RowId, primary_key=True, autoincrement=True)
    job_id: Mapped[str] = mapped_column(String(40), ForeignKey("jobs.id", ondelete="CASCADE"))
    name: Mapped[str] = mapped_column(String(250))
    step: Mapped[int] = mapped_column(BigInteger)
    value: Mapped[float] = mapped_column(Float)
    at: Mapped[datetime]
    generation: Mapped[int]


STRETCH = 256
"""The steps of one row of `metric_stretches`."""


class MetricStretch(Base):
    """The lowest and the highest value of a metric among the steps from `stretch` × STRETCH on, how many values these
    are of, and their first and last time (None: not known): of such rows a curve of a million steps is drawn."""

    __tablename__ = "metric_stretches"

    job_id: Mapped[str] = of_job()
    name: Mapped[str] = mapped_column(String(250), primary_key=True)
    stretch: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    points: Mapped[int] = mapped_column(Integer)
    low: Mapped[float] = mapped_column(Float)
    low_step: Mapped[int] = mapped_column(BigInteger)
    high: Mapped[float] = mapped_column(Float)
    high_step: Mapped[int] = mapped_column(BigInteger)
    first_at: Mapped[datetime | None]
    last_at: Mapped[datetime | None]


class MetricSummary(Base):
    """The newest, the lowest and the highest value of a metric of a job: of such rows lists are sorted by a metric."""

    __tablename__ = "metric_summaries"
    __table_args__ = tuple(
        Index(f"ix_metric_summaries_name_{of}_job_id", "name", of, "job_id") for of in ("last", "min", "max")
    )

    job_id: Mapped[str] = of_job()
    name: Mapped[str] = mapped_column(String(250), primary_key=True)
    last: Mapped[float] = mapped_column(Float)
    last_step: Mapped[int] = mapped_column(BigInteger)
    min: Mapped[float] = mapped_column(Float)
    max: Mapped[float] = mapped_column(Float)


class JobAttribute(Base):
    """A label of a job, or a parameter of its job file whose value is no list and no mapping: lists are filtered by
    them, and sorted by `rank` (`store.listed.rank_of`)."""

    __tablename__ = "job_attributes"
    __table_args__ = (
        Index("ix_job_attributes_job_id", "job_id"),
        Index("ix_job_attributes_kind_key_rank_job_id", "kind", "key", "rank", "job_id"),
    )

    kind: Mapped[str] = mapped_column(String(8), primary_key=True)
    key: Mapped[str] = mapped_column(String(200), primary_key=True)
    value: Mapped[str] = mapped_column(String(200), primary_key=True)
    job_id: Mapped[str] = of_job()
    # `server_default`: control planes of the version before go on storing rows without it.
    rank: Mapped[str] = mapped_column(String(201), default="", server_default="")


class LogRow(Base):
    """One printed line, numbered per job; only the newest of a job are kept. `start_byte` is the job's `log_bytes`
    before this line."""

    __tablename__ = "logs"

    job_id: Mapped[str] = of_job()
    seq: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    at: Mapped[datetime]
    worker: Mapped[str] = mapped_column(String(100))
    level: Mapped[str] = mapped_column(String(16))
    line: Mapped[str] = mapped_column(Text)
    start_byte: Mapped[int] = mapped_column(BigInteger, default=0, server_default="0")


class IngestPosition(Base):
    """The highest stored seq of one stream of one attempt."""

    __tablename__ = "ingest_positions"

    job_id: Mapped[str] = of_job()
    attempt: Mapped[int] = mapped_column(primary_key=True)
    stream: Mapped[str] = mapped_column(String(16), primary_key=True)
    seq: Mapped[int] = mapped_column(BigInteger)


class IngestToken(Base):
    """The hash of the token that one attempt posts with."""

    __tablename__ = "ingest_tokens"

    job_id: Mapped[str] = of_job()
    attempt: Mapped[int] = mapped_column(primary_key=True)
    sha256: Mapped[str] = mapped_column(String(64))


class IdempotencyKey(Base):
    """A submission that has been carried out, by the key its sender gave it."""

    __tablename__ = "idempotency_keys_of_owners"

    owner: Mapped[str] = mapped_column(String(100), primary_key=True)
    key: Mapped[str] = mapped_column(String(200), primary_key=True)
    body_sha256: Mapped[str] = mapped_column(String(64))
    job_id: Mapped[str] = mapped_column(String(40), ForeignKey("jobs.id", ondelete="CASCADE"))
    created_at: Mapped[datetime]


class Package(Base):
    """An uploaded working directory that has been checked.

    `used_at` is when it was uploaded, or when somebody last asked whether it exists. Once it is given up nobody may
    refer to it, and its file goes next. `sender` is who uploaded it first; None where that was before it was noted.
    """

    __tablename__ = "packages"

    sha256: Mapped[str] = mapped_column(String(64), primary_key=True)
    size_bytes: Mapped[int] = mapped_column(BigInteger)
    created_at: Mapped[datetime]
    used_at: Mapped[datetime]
    given_up_at: Mapped[datetime | None]
    sender: Mapped[str | None] = mapped_column(String(100), index=True)


class LoginSession(Base):
    """A logged-in page, by the hash of its cookie. It is worth what the token is worth that it was made with.

    `token` is None where the identity provider vouched for the user.
    """

    __tablename__ = "login_sessions"

    sha256: Mapped[str] = mapped_column(String(64), primary_key=True)
    user: Mapped[str | None] = mapped_column(String(100))
    token: Mapped[str | None] = mapped_column(String(40))
    expires_at: Mapped[datetime]


class ExportCursor(Base):
    """The progress of copying a job to MLflow. `finished`: complete, its end included."""

    __tablename__ = "export_cursors"
    __table_args__ = (
        # Spelt as SQLAlchemy asks in each: an index serves only queries with its own condition.
        partial_index(
            "ix_export_cursors_open", "job_id", sqlite="finished IS 0", postgresql="finished IS false"
        ),
    )

    job_id: Mapped[str] = of_job()
    experiment_id: Mapped[str] = mapped_column(String(64), default="")
    run_id: Mapped[str] = mapped_column(String(64), default="")
    described: Mapped[bool] = mapped_column(Boolean, default=False)
    metric_id: Mapped[int] = mapped_column(BigInteger, default=0)
    event_seq: Mapped[int] = mapped_column(BigInteger, default=0)
    finished: Mapped[bool] = mapped_column(Boolean, default=False)
    system_at: Mapped[datetime | None]


class RoleLeaseRow(Base):
    """A role of several control planes. `token` grows with every change of holder."""

    __tablename__ = "leases"

    role: Mapped[str] = mapped_column(String(32), primary_key=True)
    holder: Mapped[str] = mapped_column(String(200))
    token: Mapped[int] = mapped_column(BigInteger)
    expires_at: Mapped[datetime]


class Fact(Base):
    """A fact about this database, by name."""

    __tablename__ = "facts"

    name: Mapped[str] = mapped_column(String(32), primary_key=True)
    value: Mapped[str] = mapped_column(String(200))
