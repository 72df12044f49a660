"""Metric curves: their names, and their points thinned so that every peak and dip is kept."""

from typing import Any

from sqlalchemy import BigInteger, ColumnElement, cast, func, or_, select
from sqlalchemy.orm import Session

from ringleader.wire.views import MetricPoint, View
from ringleader_api.services.users.access import load
from ringleader_api.store import Store
from ringleader_api.store.tables import Metric


class MetricNames(View):
    """The names of a job's metrics."""

    names: list[str]


class MetricCurve(View):
    """One metric by step."""

    name: str
    points: list[MetricPoint]


class Curves:
    """Reads metric points."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def names(self, job_id: str) -> MetricNames:
        query = select(Metric.name).where(Metric.job_id == job_id).distinct().order_by(Metric.name)
        with self._store.read() as session:
            load(session, job_id)
            return MetricNames(names=list(session.scalars(query)))

    def curve(self, job_id: str, name: str, max_points: int) -> MetricCurve:
        """At most `max_points` points: all of them, or the lowest and the highest of each of several equal stretches of
        steps."""
        with self._store.read() as session:
            load(session, job_id)
            query = _points(session, job_id, name, max_points)
            rows = session.execute(query).all() if query is not None else []
        points = [MetricPoint(step=s, value=v, at=at, generation=g) for s, v, at, g in rows]
        return MetricCurve(name=name, points=points)


def _points(session: Session, job_id: str, name: str, max_points: int) -> Any:
    mine = (Metric.job_id == job_id, Metric.name == name)
    count, first, last = session.execute(
        select(func.count(), func.min(Metric.step), func.max(Metric.step)).where(*mine)
    ).one()
    if not count:
        return None
    columns = (Metric.step, Metric.value, Metric.at, Metric.generation)
    if count <= max_points:
        return select(*columns).where(*mine).order_by(Metric.step)
    # Two points a stretch, and the two ends.
    stretches = max(1, (max_points - 2) // 2)
    # In the database: a curve may be far longer than what is shown of it.
    # `op`: SQLAlchemy's own `/` of integers gives a fraction.
    stretch: ColumnElement[int] = cast((Metric.step - first) * stretches, BigInteger).op("/")(
        last - first + 1
    )
    ranked = (
        select(
            *columns,
            func.row_number()
            .over(partition_by=stretch, order_by=(Metric.value, Metric.step))
            .label("from_low"),
            func.row_number()
            .over(partition_by=stretch, order_by=(Metric.value.desc(), Metric.step))
            .label("from_high"),
        )
        .where(*mine)
        .subquery()
    )
    keep = or_(ranked.c.from_low == 1, ranked.c.from_high == 1, ranked.c.step.in_((first, last)))
    shown = (ranked.c.step, ranked.c.value, ranked.c.at, ranked.c.generation)
    return select(*shown).where(keep).order_by(ranked.c.step)
