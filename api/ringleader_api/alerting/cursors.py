"""The jobs that are looked at for alerts: those of projects with rules, and those whose job files have some."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Select, case, func, literal, null, or_, select
from sqlalchemy.orm import Session

from ringleader.wire.states import State
from ringleader_api.store.alerts import AlertCursor, AlertRuleRow
from ringleader_api.store.listed import insert_of
from ringleader_api.store.tables import Job, JsonValue, Metric

ALIVE = [state for state in State if not state.ended]
OVERLOOKED = timedelta(minutes=10)
"""How long ago a job may have ended that `follow_overlooked` still finds."""
STORED_WITHIN = timedelta(seconds=10)
"""How long a job may be on its way into the store, behind the time that it is created at: it sees no rule that is set
meanwhile, and the rule does not see it."""
_COLUMNS = ["job_id", "events", "points", "curves", "due_at", "memory", "open"]


def follow_submitted(session: Session, jobs: Sequence[Mapping[str, Any]]) -> None:
    """Follow new jobs from their first event on, where any rule is for them; in the transaction that stores them."""
    projects = {job["project"] for job in jobs}
    ruled = set(session.scalars(select(AlertRuleRow.project).where(AlertRuleRow.project.in_(projects))))
    rows = [
        _from_first(job["id"])
        for job in sorted(jobs, key=lambda job: str(job["id"]))
        if job["project"] in ruled or job["spec"].get("alerts")
    ]
    if rows:
        session.execute(insert_of(session)(AlertCursor), rows)


def follow_living(session: Session, project: str) -> None:
    """Follow the project's jobs from now on; in the transaction that sets a rule."""
    insert = insert_of(session)(AlertCursor).from_select(_COLUMNS, _living(project))
    # Where no rule looked at metrics, nobody has moved the cursor over them.
    points = case((AlertCursor.curves, AlertCursor.points), else_=insert.excluded.points)
    session.execute(
        insert.on_conflict_do_update(index_elements=["job_id"], set_={"curves": True, "points": points})
    )


def follow_overlooked(session: Session, now: datetime) -> None:
    """Follow, from their first event on, jobs that nobody follows although a rule was there before them: one that was
    set while they were being stored, and those stored by a control plane of the version before."""
    since = select(AlertRuleRow.project, func.min(AlertRuleRow.set_at).label("at"))
    rules = since.group_by(AlertRuleRow.project).subquery()
    alone = select(Job.id, Job.created_at, Job.finished_at, rules.c.at)
    alone = alone.join(rules, rules.c.project == Job.project)
    alone = alone.outerjoin(AlertCursor, AlertCursor.job_id == Job.id).where(
        AlertCursor.job_id.is_(None),
        Job.deleted_at.is_(None),
        or_(Job.state.in_(ALIVE), Job.finished_at >= now - OVERLOOKED),
    )
    rows = [
        _from_first(job.id)
        for job in session.execute(alone.order_by(Job.id))
        # One that had ended before is none of the rule's.
        if job.at < job.created_at + STORED_WITHIN and (job.finished_at is None or job.at < job.finished_at)
    ]
    if rows:
        session.execute(insert_of(session)(AlertCursor).on_conflict_do_nothing(), rows)


def _living(project: str) -> Select[Any]:
    """Rows for the project's jobs."""
    newest = select(func.max(Metric.id)).where(Metric.job_id == Job.id).scalar_subquery()
    begun: tuple[Any, ...] = literal(value=True), null(), literal({}, JsonValue), literal(value=True)
    living = select(Job.id, Job.event_seq, func.coalesce(newest, 0), *begun)
    living = living.where(Job.project == project, Job.state.in_(ALIVE), Job.deleted_at.is_(None))
    # In the order in which everybody locks cursors.
    return living.order_by(Job.id)


def _from_first(job_id: str) -> dict[str, Any]:
    return {"job_id": job_id, "events": 0, "points": 0, "curves": True, "memory": {}, "open": True}
