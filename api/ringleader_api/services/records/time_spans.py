"""The steps that a time spans: points have an index by their steps alone, and a curve of a million would be read whole.

Steps that ran again after a loss have later times than those behind them, so no search by halves can find the ends. The
stretches of a curve know the times of their points.
"""

from collections.abc import Collection, Iterable, Mapping
from datetime import datetime

from sqlalchemy import and_, func, or_, select
from sqlalchemy.orm import Session

from ringleader_api.store.tables import STRETCH, Metric, MetricStretch, MetricSummary

Times = tuple[datetime, datetime]
Steps = tuple[int, int]
NOWHERE: Steps = (0, -1)


def long_curves(
    session: Session, job_ids: Iterable[str], names: Collection[str], steps: int
) -> dict[str, list[str]]:
    """The metrics among these, by job, that have more steps than that."""
    of = MetricSummary
    found = select(of.job_id, of.name).where(
        of.job_id.in_(job_ids), of.name.in_(names), of.last_step >= steps
    )
    curves: dict[str, list[str]] = {}
    for job_id, name in session.execute(found):
        curves.setdefault(job_id, []).append(name)
    return curves


def steps_at(
    session: Session, curves: Mapping[str, Collection[str]], times: Mapping[str, Times]
) -> dict[tuple[str, str], Steps]:
    """The first and the last step that points between these times may have, by job and metric; nothing of a curve of
    which stretches do not know all points."""
    return {
        (job_id, name): _span(session, job_id, name, times[job_id])
        for job_id, names in curves.items()
        for name in names
        if _all_known(session, job_id, name)
    }


def _span(session: Session, job_id: str, name: str, times: Times) -> Steps:
    of, (low, high) = MetricStretch, times
    meets = or_(of.first_at.is_(None), and_(of.first_at <= high, of.last_at >= low))
    ends = select(func.min(of.stretch), func.max(of.stretch))
    first, last = session.execute(ends.where(of.job_id == job_id, of.name == name, meets)).one()
    return NOWHERE if first is None else (first * STRETCH, (last + 1) * STRETCH - 1)


def _all_known(session: Session, job_id: str, name: str) -> bool:
    """Whether each point of a curve is in a stretch: those of the version before are not."""
    of, point = MetricStretch, Metric
    mine = point.job_id == job_id, point.name == name
    known = session.scalar(
        select(func.coalesce(func.sum(of.points), 0)).where(of.job_id == job_id, of.name == name)
    )
    first, last = (session.scalar(select(which(point.step)).where(*mine)) for which in (func.min, func.max))
    # To count a million points takes long, and no curve has more than one of a step.
    if first is None or last is None or known == last - first + 1:
        return True
    return known == session.scalar(select(func.count()).where(*mine))
