"""Metric points as they are read: short curves whole, of long ones those alone that show every peak and dip."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import starmap
from operator import attrgetter
from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    CompoundSelect,
    Select,
    String,
    and_,
    cast,
    column,
    false,
    func,
    or_,
    select,
    true,
    union_all,
    values,
)
from sqlalchemy.orm import InstrumentedAttribute, Session

from ringleader_api.services.records.time_spans import long_curves, steps_at
from ringleader_api.store.tables import STRETCH, Metric, MetricStretch

Place = InstrumentedAttribute[int] | InstrumentedAttribute[datetime]
"""What the ends of an interval are compared with: `Metric.step` or `Metric.at`."""
Ends = tuple[int, int] | tuple[datetime, datetime]
COARSEST = 4
"""So many times fewer points than may be shown are enough where stretches have them: the points themselves would be
tens of thousands."""
LONG_STEPS = 32 * STRETCH
"""Of fewer steps the points are read soon enough: no point that may be shown is spared."""
MOST_APART = 100
"""Where more stretches are only partly within a time, points are read: a query has so many parts at most."""
_COLUMNS = (Metric.job_id, Metric.name, Metric.step, Metric.value, Metric.at, Metric.generation)


@dataclass(frozen=True, slots=True)
class Curve:
    """A curve, or the part of one that is read, with its first and its last step."""

    job_id: str
    name: str
    first: int
    last: int

    def all_points(self) -> ColumnElement[bool]:
        return and_(Metric.job_id == self.job_id, Metric.name == self.name)


def read_points(
    session: Session, place: Place, ends: Mapping[str, Ends], names: Collection[str], max_points: int
) -> Sequence[Any]:
    """The points of these metrics between the ends of each job, by job, name and step: at most `max_points` of each
    curve. Of a longer one its first and its last, and the lowest and the highest of each of several equal parts of the
    steps."""
    long = long_curves(session, ends, names, LONG_STEPS) if place is Metric.at and ends else {}
    if not long:
        return _read(session, place, ends, names, max_points)
    found = [*_read(session, place, {i: of for i, of in ends.items() if i not in long}, names, max_points)]
    times: dict[str, Any] = {i: ends[i] for i in long}
    spans = steps_at(session, long, times)
    for job_id, of in times.items():
        for name in sorted(names):
            found += _read(session, place, {job_id: of}, [name], max_points, steps=spans.get((job_id, name)))
    return sorted(found, key=attrgetter("job_id", "name"))


def _read(
    session: Session,
    place: Place,
    ends: Mapping[str, Ends],
    names: Collection[str],
    max_points: int,
    *,
    steps: tuple[int, int] | None = None,
) -> Sequence[Any]:
    """`read_points`, of points whose steps are known to lie between these."""
    whole = select(*_COLUMNS).order_by(Metric.job_id, Metric.name, Metric.step)
    near = Metric.step.between(*steps) if steps else true()
    within = {job_id: and_(Metric.job_id == job_id, place.between(*of), near) for job_id, of in ends.items()}
    long = _long_curves(session, place, ends, names, max_points, near=near) if ends else {}
    if not long:
        every = or_(false(), *within.values())
        return session.execute(whole.where(every, Metric.name.in_(names))).all()
    found: list[Any] = []
    for job_id in sorted(ends):
        for name in sorted(names):
            one = and_(within[job_id], Metric.name == name)
            if (curve := long.get((job_id, name))) is not None:
                times = ends[job_id] if place is Metric.at else None
                # With the ends of the steps beside it SQLite would read all points between these.
                one = and_(curve.all_points(), Metric.step.in_(_kept(session, one, curve, times, max_points)))
            found += session.execute(whole.where(one))
    return found


def _long_curves(
    session: Session,
    place: Place,
    ends: Mapping[str, Ends],
    names: Collection[str],
    max_points: int,
    *,
    near: ColumnElement[bool],
) -> dict[tuple[str, str], Curve]:
    """The curves with more points than that, each with its first and its last step. Points are not counted beyond."""
    bounds = column("low", place.type), column("high", place.type)
    job = (
        values(column("job_id", String), *bounds, name="job").data([(i, *of) for i, of in ends.items()]).cte()
    )
    metric = values(column("name", String), name="metric").data([(name,) for name in names]).cte()
    between = place.between(job.c.low, job.c.high)
    mine = Metric.job_id == job.c.job_id, Metric.name == metric.c.name, between, near
    step = select(Metric.step).where(*mine).limit(1)
    up, down = step.order_by(Metric.step), step.order_by(Metric.step.desc())
    first, last = up.scalar_subquery().label("first"), down.scalar_subquery().label("last")
    found = select(job.c.job_id, metric.c.name, first, last).join_from(job, metric, true())
    found = found.where(up.offset(max_points).scalar_subquery().is_not(None))
    return {(curve.job_id, curve.name): curve for curve in starmap(Curve, session.execute(found))}


def _kept(
    session: Session, one: ColumnElement[bool], curve: Curve, times: Ends | None, max_points: int
) -> list[int]:
    """The steps of a long curve that are shown."""
    first, last = curve.first, curve.last
    # Two points a part, and the two ends.
    parts, steps = max(1, (max_points - 2) // 2), last - first + 1
    which: Select[int, float] | CompoundSelect[int, float] = select(Metric.step, Metric.value).where(one)
    enough = steps >= STRETCH * parts or (steps >= LONG_STEPS and steps * COARSEST >= STRETCH * parts)
    if enough and (known := _extremes(session, curve, times)) is not None:
        which, parts = known, max(1, min(parts, steps // STRETCH))
    # In the database: a curve may be far longer than what is shown of it.
    point = which.subquery()
    # `op`: SQLAlchemy's own `/` of integers gives a fraction.
    part: ColumnElement[int] = cast((point.c.step - first) * parts, BigInteger).op("/")(steps)
    lowest, highest = (point.c.value, point.c.step), (point.c.value.desc(), point.c.step)
    ranked = select(
        point.c.step,
        func.row_number().over(partition_by=part, order_by=lowest).label("from_low"),
        func.row_number().over(partition_by=part, order_by=highest).label("from_high"),
    ).subquery()
    kept = select(ranked.c.step).where(or_(ranked.c.from_low == 1, ranked.c.from_high == 1))
    return sorted({first, last, *session.scalars(kept)})


def _extremes(session: Session, curve: Curve, times: Ends | None) -> CompoundSelect[int, float] | None:
    """A query of steps and values: the lowest and the highest of each whole stretch of the curve, and all points before
    the first and after the last of these. Between two `times` a stretch is whole where all its points are; of others
    that may have some all points there are read. None where stretches do not know all points."""
    whole = range(-(-curve.first // STRETCH), (curve.last + 1) // STRETCH)
    begin, end = whole.start * STRETCH, whole.stop * STRETCH
    stretch, point = MetricStretch, Metric
    mine = and_(
        stretch.job_id == curve.job_id,
        stretch.name == curve.name,
        stretch.stretch >= whole.start,
        stretch.stretch < whole.stop,
    )
    of = curve.all_points()
    known = session.scalar(select(func.coalesce(func.sum(stretch.points), 0)).where(mine))
    # Points from before there were stretches, and of control planes of the version before. To count a million points
    # takes long, and no curve has more than one of a step.
    if known != end - begin and known != session.scalar(
        select(func.count()).where(of, point.step >= begin, point.step < end)
    ):
        return None
    there, parts = of, []
    if times is not None:
        low, high = times
        there = and_(of, point.at.between(low, high))
        partly = or_(stretch.first_at.is_(None), stretch.first_at < low, stretch.last_at > high)
        apart = session.scalars(select(stretch.stretch).where(mine, partly)).all()
        if len(apart) > MOST_APART:
            return None
        mine = and_(mine, stretch.first_at >= low, stretch.last_at <= high)
        parts = [point.step.between(one * STRETCH, (one + 1) * STRETCH - 1) for one in apart]
    return union_all(
        select(stretch.low_step.label("step"), stretch.low.label("value")).where(mine),
        select(stretch.high_step, stretch.high).where(mine),
        select(point.step, point.value).where(there, point.step >= curve.first, point.step < begin),
        select(point.step, point.value).where(there, point.step >= end, point.step <= curve.last),
        *(select(point.step, point.value).where(there, part) for part in parts),
    )
