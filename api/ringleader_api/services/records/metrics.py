"""Metric curves: their names, and their points thinned so that every peak and dip is kept."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from itertools import groupby
from math import ceil, floor, inf
from operator import attrgetter
from typing import Any

from sqlalchemy import Row, func, select

from ringleader.wire.views import ComparedCurve, ComparedJob, Comparison, MetricPoint, View
from ringleader_api.problems import Unprocessable
from ringleader_api.services.records.thinning import Ends, Place, read_points
from ringleader_api.services.users.access import load
from ringleader_api.store import Store
from ringleader_api.store.tables import Job, Metric

MAX_VALUES = 250_000
"""The most values of one answer."""
_EPOCH = datetime.fromtimestamp(0, UTC)
_MOST = (1 << 63) - 1


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

    def place(self) -> Place:
        """What the ends are compared with."""
        return Metric.step if self.axis is Axis.STEP else Metric.at

    def ends(self, started_at: datetime | None) -> Ends | None:
        """The ends for a job. One that never started has no points by the relative axis: None."""
        first = -inf if self.first is None else self.first
        last = inf if self.last is None else self.last
        if self.axis is Axis.STEP:
            return ceil(min(max(first, 0), _MOST)), floor(min(max(last, -1), _MOST))
        since = _EPOCH if self.axis is Axis.WALL else started_at
        return None if since is None else (_later(since, first), _later(since, last))


class Curves:
    """Reads metric points."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def names(self, job_id: str) -> MetricNames:
        mine = Metric.job_id == job_id
        # From one name to the next by the index: DISTINCT would read all points.
        found = select(func.min(Metric.name).label("name")).where(mine).cte("found", recursive=True)
        following = select(func.min(Metric.name)).where(mine, Metric.name > found.c.name).scalar_subquery()
        found = found.union_all(select(following).where(found.c.name.is_not(None)))
        with self._store.read() as session:
            load(session, job_id)
            return MetricNames(
                names=list(session.scalars(select(found.c.name).where(found.c.name.is_not(None))))
            )

    def curve(self, job_id: str, name: str, interval: Interval, max_points: int) -> MetricCurve:
        """At most `max_points` points of that stretch: all of them, or the lowest and the highest of each of several
        equal parts of it."""
        with self._store.read() as session:
            ends = interval.ends(load(session, job_id).started_at)
            within = {job_id: ends} if ends is not None else {}
            rows = read_points(session, interval.place(), within, [name], max_points)
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
            within = {i: ends for i, row in jobs.items() if (ends := interval.ends(row.started_at))}
            rows = read_points(session, interval.place(), within, names, max_points)
        return Comparison(
            jobs=[ComparedJob.model_validate(jobs[i]._asdict()) for i in job_ids if i in jobs],
            curves=[_by_columns(*key, list(of)) for key, of in groupby(rows, attrgetter("job_id", "name"))],
            left_out=[i for i in job_ids if i not in jobs],
        )


def _by_columns(job_id: str, name: str, rows: Sequence[Row[Any]]) -> ComparedCurve:
    return ComparedCurve(
        job=job_id,
        name=name,
        steps=[row.step for row in rows],
        times=[round(row.at.timestamp(), 3) for row in rows],
        values=[row.value for row in rows],
    )


def unix_time(seconds: float) -> datetime:
    """That Unix time, or the nearest end of all dates."""
    return _later(_EPOCH, seconds)


def _later(since: datetime, seconds: float) -> datetime:
    """That many seconds later, or the nearest end of all dates."""
    try:
        return since + timedelta(seconds=seconds)
    except (OverflowError, ValueError):
        return datetime.max.replace(tzinfo=UTC) if seconds > 0 else datetime.min.replace(tzinfo=UTC)
