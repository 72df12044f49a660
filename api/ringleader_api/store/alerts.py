"""The tables of alerts: the rules of projects, how far each job has been looked at, and the alerts to be sent."""

from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, Boolean, ForeignKey, Index, Integer, String, Text
from sqlalchemy.orm import Mapped, mapped_column

from ringleader_api.store.tables import Base, of_job, partial_index


class AlertRuleRow(Base):
    """A rule of a project. `id` is drawn anew whenever it is set: a rule that was changed remembers nothing."""

    __tablename__ = "alert_rules"

    project: Mapped[str] = mapped_column(String(100), ForeignKey("projects.name"), primary_key=True)
    name: Mapped[str] = mapped_column(String(100), primary_key=True)
    id: Mapped[str] = mapped_column(String(40))
    terms: Mapped[dict[str, Any]]
    set_by: Mapped[str] = mapped_column(String(100))
    set_at: Mapped[datetime]


class AlertCursor(Base):
    """The place up to which a job has been looked at: a job without rules has none.

    `events` and `points` are the last event and the last metric row that its rules know; `memory` is what they
    remember, by rule. `curves`: one of them looks at metrics. `due_at` is when one wants a look whatever happens.
    `open` ends with the job.
    """

    __tablename__ = "alert_cursors"
    __table_args__ = (
        partial_index("ix_alert_cursors_open", "job_id", sqlite="open IS 1", postgresql="open IS true"),
    )

    job_id: Mapped[str] = of_job()
    events: Mapped[int] = mapped_column(BigInteger, default=0)
    points: Mapped[int] = mapped_column(BigInteger, default=0)
    curves: Mapped[bool] = mapped_column(Boolean, default=False)
    due_at: Mapped[datetime | None]
    memory: Mapped[dict[str, Any]]
    open: Mapped[bool] = mapped_column(Boolean, default=True)


class AlertRow(Base):
    """One alert to one channel: the outbox, and the history. It outlives its job, of which it holds what it tells.

    `due_at` is when it is tried next, until `ended_at`.
    """

    __tablename__ = "alerts"
    __table_args__ = (
        partial_index(
            "ix_alerts_pending",
            "due_at",
            sqlite="state = 'pending'",
            postgresql="state = 'pending'",
        ),
        Index("ix_alerts_project_id", "project", "id"),
        Index("ix_alerts_job_id", "job_id", "id"),
        Index("ix_alerts_ended_at", "ended_at"),
    )

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    project: Mapped[str] = mapped_column(String(100))
    job_id: Mapped[str] = mapped_column(String(40))
    job_name: Mapped[str] = mapped_column(String(100))
    rule: Mapped[str] = mapped_column(String(100))
    kind: Mapped[str] = mapped_column(String(32))
    message: Mapped[str] = mapped_column(Text)
    data: Mapped[dict[str, Any]]
    channel: Mapped[dict[str, Any]]
    target: Mapped[str] = mapped_column(Text)
    state: Mapped[str] = mapped_column(String(8))
    tries: Mapped[int] = mapped_column(Integer, default=0)
    error: Mapped[str] = mapped_column(Text, default="")
    at: Mapped[datetime]
    due_at: Mapped[datetime | None]
    ended_at: Mapped[datetime | None]
