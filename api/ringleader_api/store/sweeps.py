"""The tables of sweeps and their trials."""

from datetime import datetime
from typing import Any

from sqlalchemy import Boolean, Enum, ForeignKey, Index, String, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from ringleader.wire.sweeps import SweepState
from ringleader_api.store.tables import Base, JsonValue

StateName = Enum(
    SweepState, native_enum=False, length=16, values_callable=lambda states: [s.value for s in states]
)


class Sweep(Base):
    """A sweep. `scope` is that of the credential that made it, beyond which none of its jobs goes; `closed` says that
    it has ended and none of its jobs lives; `key` is what its sender gave it, so that it is made once."""

    __tablename__ = "sweeps"
    __table_args__ = (
        Index("ix_sweeps_project_id", "project", "id"),
        Index("ix_sweeps_closed_id", "closed", "id"),
        UniqueConstraint("owner", "key"),
    )

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    name: Mapped[str] = mapped_column(String(100))
    project: Mapped[str] = mapped_column(String(100))
    owner: Mapped[str] = mapped_column(String(100))
    scope: Mapped[dict[str, Any]]
    spec: Mapped[dict[str, Any]]
    state: Mapped[SweepState] = mapped_column(StateName)
    reason: Mapped[dict[str, Any] | None]
    best: Mapped[int | None]
    closed: Mapped[bool] = mapped_column(Boolean, default=False)
    created_at: Mapped[datetime]
    finished_at: Mapped[datetime | None]
    key: Mapped[str | None] = mapped_column(String(200))
    body_sha256: Mapped[str] = mapped_column(String(64))


class SweepTrial(Base):
    """A trial. `point` is stored before its job is submitted, and `job_id` after that; `scores` are those at the rungs
    that it has reached and at its end, `scored_at` when each was stored; `held` says that the sweep has paused its job.
    `reason` is why it could not be submitted."""

    __tablename__ = "sweep_trials"
    __table_args__ = (Index("ix_sweep_trials_job_id", "job_id"),)

    sweep_id: Mapped[str] = mapped_column(
        String(40), ForeignKey("sweeps.id", ondelete="CASCADE"), primary_key=True
    )
    number: Mapped[int] = mapped_column(primary_key=True)
    point: Mapped[dict[str, Any] | None]
    # No reference: a trial whose job was deleted must not look as if it had none yet.
    job_id: Mapped[str | None] = mapped_column(String(40))
    rung: Mapped[int] = mapped_column(default=0)
    scores: Mapped[list[float]] = mapped_column(JsonValue)
    scored_at: Mapped[list[float]] = mapped_column(JsonValue)
    held: Mapped[bool] = mapped_column(Boolean, default=False)
    reason: Mapped[dict[str, Any] | None]
