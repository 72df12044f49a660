"""Metric curves: their names, and their points thinned so that every peak and dip is kept."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from itertools import groupby
from operator import attrgetter
from typing import Any

from sqlalchemy import BigInteger, ColumnElement, Row, Select, and_, cast, false, func, or_, select
from sqlalchemy.orm import Session

from ringleader.wire.views import ComparedCurve, ComparedJob, Comparison, MetricPoint, View
from ringleader_api.problems import Unprocessable
from ringleader_api.services.records.points import extremes
from ringleader_api.services.users.access import load
from ringleader_api.store import Store
from ringleader_api.store.tables import STRETCH, Job, Metric

MAX_VALUES = 250_000
"""The most values of one answer."""
_EPOCH = datetime.fromtimestamp(0, UTC)
_COLUMNS = (Metric.job_id, Metric.name, Metric.step, Metric.value, Metric.at, Metric.generation)


class MetricNames(View):
    """The names of a job's metrics."""

    names: list[str]


class MetricCurve(View):
    """One metric by step."""

    name: str
    points: list[MetricPoint]


class Axis(StrEnum):
    """The unit of an interval's ends: steps, Unix seconds, or seconds since the job started."""

    STEP = "step"
    WALL = "wall"
    RELATIVE = "relative"


@dataclass(frozen=True, slots=True)
class Interval:
    """The part of each curve to read, ends included; None: without an end."""

    axis: Axis = Axis.STEP
    first: float | None = None
    last: float | None = None

    def of(self, job_id: str, started_at: datetime | None) -> ColumnElement[bool]:
        """The condition for the points of this job. One that never started has none by the relative axis."""
        ends: Sequence[Any] = (self.first, self.last)
        column: Any = Metric.step
        if self.axis is not Axis.STEP:
            since = _EPOCH if self.axis is Axis.WALL else started_at
            if since is None:
                return false()
            column, ends = Metric.at, [end if end is None else _later(since, end) for end in ends]
        first, last = ends
        bounds = [
            *([column >= first] if first is not None else []),
            *([column <= last] if last is not None else []),
        ]
        return and_(Metric.job_id == job_id, *bounds)


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
        """At most `max_points` points: all of them, or the lowest and the highest of each of several equal parts of the
        steps."""
        with self._store.read() as session:
            load(session, job_id)
            rows = _points(session, and_(Metric.job_id == job_id, Metric.name == name), max_points)
        points = [MetricPoint(step=r.step, value=r.value, at=r.at, generation=r.generation) for r in rows]
        return MetricCurve(name=name, points=points)

    def compare(
        self,
        job_ids: Sequence[str],
        names: Sequence[str],
        interval: Interval,
        max_points: int,
        projects: Collection[str] | None,
    ) -> Comparison:
        """The curves of these jobs, at most `max_points` points of each, thinned so within the interval; `projects`
        are those that the caller may read (None: all).

        Raises:
            Unprocessable: the answer could have more than MAX_VALUES values.
        """
        if len(job_ids) * len(names) * max_points > MAX_VALUES:
            most = MAX_VALUES // (len(job_ids) * len(names))
            raise Unprocessable(
                f"{len(job_ids)} jobs, {len(names)} metrics and {max_points} points of each are more than "
                f"{MAX_VALUES} values.",
                hint=f"Ask for {most} points at most, or for fewer jobs."
                if most >= 4
                else "Ask for fewer jobs.",
                code="too_many_values",
            )
        found = select(Job.id, Job.name, Job.project, Job.state, Job.started_at)
        found = found.where(Job.id.in_(job_ids), Job.deleted_at.is_(None))
        if projects is not None:
            found = found.where(Job.project.in_(projects))
        with self._store.read() as session:
            jobs = {row.id: row for row in session.execute(found)}
            within = [interval.of(row.id, row.started_at) for row in jobs.values()]
            # `false()`: without it the condition would fall away where there is no job, and all points would match.
            rows = _points(session, and_(or_(false(), *within), Metric.name.in_(names)), max_points)
        return Comparison(
            jobs=[ComparedJob.model_validate(jobs[i]._asdict()) for i in job_ids if i in jobs],
            curves=[_by_columns(*key, list(of)) for key, of in groupby(rows, attrgetter("job_id", "name"))],
            left_out=[i for i in job_ids if i not in jobs],
        )


def _points(session: Session, which: ColumnElement[bool], max_points: int) -> Sequence[Any]:
    """The points for which the condition holds, by job, name and step, with at most `max_points` of each curve."""
    by = (Metric.job_id, Metric.name)
    count, first, last = func.count(), func.min(Metric.step), func.max(Metric.step)
    curves = session.execute(select(*by, count, first, last).where(which).group_by(*by).order_by(*by)).all()
    whole = select(*_COLUMNS).order_by(*by, Metric.step)
    if all(points <= max_points for _, _, points, _, _ in curves):
        return session.execute(whole.where(which)).all()
    found: list[Row[Any]] = []
    for job_id, name, points, start, end in curves:
        one = and_(which, Metric.job_id == job_id, Metric.name == name)
        if points > max_points:
            found += session.execute(_thinned(session, one, (job_id, name, start, end), max_points))
        else:
            found += session.execute(whole.where(one))
    return found


def _thinned(
    session: Session, one: ColumnElement[bool], curve: tuple[str, str, int, int], max_points: int
) -> Select[Any]:
    _, _, first, last = curve
    # Two points a part, and the two ends.
    parts = max(1, (max_points - 2) // 2)
    # Where parts are longer than stretches, the extremes of these are enough: two of 256 points at most.
    if last - first >= STRETCH * parts and (steps := extremes(session, *curve)) is not None:
        one = and_(one, Metric.step.in_(steps))
    # In the database: a curve may be far longer than what is shown of it.
    # `op`: SQLAlchemy's own `/` of integers gives a fraction.
    part: ColumnElement[int] = cast((Metric.step - first) * parts, BigInteger).op("/")(last - first + 1)
    lowest, highest = (Metric.value, Metric.step), (Metric.value.desc(), Metric.step)
    ranked = (
        select(
            *_COLUMNS,
            func.row_number().over(partition_by=part, order_by=lowest).label("from_low"),
            func.row_number().over(partition_by=part, order_by=highest).label("from_high"),
        )
        .where(one)
        .subquery()
    )
    keep = or_(ranked.c.from_low == 1, ranked.c.from_high == 1, ranked.c.step.in_((first, last)))
    return select(*(ranked.c[column.key] for column in _COLUMNS)).where(keep).order_by(ranked.c.step)


def _by_columns(job_id: str, name: str, rows: Sequence[Row[Any]]) -> ComparedCurve:
    return ComparedCurve(
        job=job_id,
        name=name,
        steps=[row.step for row in rows],
        times=[round(row.at.timestamp(), 3) for row in rows],
        values=[row.value for row in rows],
    )


def _later(since: datetime, seconds: float) -> datetime:
    """That many seconds later, or the nearest end of all dates."""
    try:
        return since + timedelta(seconds=seconds)
    except (OverflowError, ValueError):
        return datetime.max.replace(tzinfo=UTC) if seconds > 0 else datetime.min.replace(tzinfo=UTC)
