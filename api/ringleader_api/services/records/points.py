"""Metric points as they are stored: each value of a (name, step) once, the extremes of each stretch of steps, and the
summary of each curve."""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from math import isfinite
from typing import Any

from sqlalchemy import case, select
from sqlalchemy.orm import Session

from ringleader.wire.ingest import MetricRecord
from ringleader_api.store.listed import insert_of, summarise
from ringleader_api.store.tables import STRETCH, Metric, MetricStretch, MetricSummary

MAX_NAME = 250


def store_points(session: Session, job_id: str, points: Sequence[MetricRecord]) -> None:
    """Store metric values. What is not a finite number is no point."""
    rows = _rows_of(job_id, points)
    if not rows:
        return
    last = _last_steps(session, job_id, {row["name"] for row in rows})
    new = [row for row in rows if row["step"] > last[row["name"]]]
    # Inserted without objects, many at a time: points are the most numerous rows by far.
    # The first value of a (name, step) stays: a later attempt that computes a step again has nothing new.
    insert = insert_of(session)(Metric).on_conflict_do_nothing()
    if new:
        session.execute(insert, new)
    # To ask which were new costs half as much again, so it is asked only where a step may be there already.
    if again := [row for row in rows if row["step"] <= last[row["name"]]]:
        stored = session.execute(insert.returning(Metric.name, Metric.step, Metric.value, Metric.at), again)
        new += [dict(point) for point in stored.mappings()]
    _widen(session, job_id, new)
    _summarise(session, job_id, new)


def _rows_of(job_id: str, points: Sequence[MetricRecord]) -> list[dict[str, Any]]:
    """A row for each value, of several of one (name, step) the first."""
    rows: dict[tuple[str, int], dict[str, Any]] = {}
    for point in points:
        for name, value in point.values.items():
            key = name[:MAX_NAME], point.step
            # Not the same key twice: a stretch counts each point once.
            if value is not None and isfinite(value) and key not in rows:
                rows[key] = {
                    "job_id": job_id,
                    "name": key[0],
                    "step": point.step,
                    "value": value,
                    "at": point.at,
                    "generation": point.generation,
                }
    return list(rows.values())


def _last_steps(session: Session, job_id: str, names: Collection[str]) -> dict[str, int]:
    """The newest step of each of these curves; -1 of one that has none yet."""
    summaries = select(MetricSummary.name, MetricSummary.last_step)
    summaries = summaries.where(MetricSummary.job_id == job_id, MetricSummary.name.in_(names))
    last = {row.name: row.last_step for row in session.execute(summaries)}
    unknown = [name for name in names if name not in last]
    there = select(Metric.id).where(Metric.job_id == job_id)
    # Of a control plane of the version before, which keeps none.
    if any(session.scalar(there.where(Metric.name == name).limit(1)) is not None for name in unknown):
        summarise(session, [job_id])
        last = {row.name: row.last_step for row in session.execute(summaries)}
    return {**dict.fromkeys(names, -1), **last}


def _widen(session: Session, job_id: str, new: Sequence[Mapping[str, Any]]) -> None:
    """Take new points into the stretches that they lie in."""
    by_stretch: dict[tuple[str, int], list[tuple[float, int]]] = defaultdict(list)
    times: dict[tuple[str, int], list[datetime]] = defaultdict(list)
    for point in new:
        of = point["name"], point["step"] // STRETCH
        by_stretch[of].append((point["value"], point["step"]))
        times[of].append(point["at"])
    if not by_stretch:
        return
    rows = []
    for (name, stretch), points in by_stretch.items():
        (low, low_step), (high, high_step) = min(points), max(points)
        rows.append(
            {"job_id": job_id, "name": name, "stretch": stretch, "points": len(points)}
            | {"low": low, "low_step": low_step, "high": high, "high_step": high_step}
            | {"first_at": min(times[name, stretch]), "last_at": max(times[name, stretch])}
        )
    insert = insert_of(session)(MetricStretch)
    theirs = insert.excluded
    lower, higher = theirs.low < MetricStretch.low, theirs.high > MetricStretch.high
    widened = insert.on_conflict_do_update(
        index_elements=[MetricStretch.job_id, MetricStretch.name, MetricStretch.stretch],
        set_={
            "points": MetricStretch.points + theirs.points,
            "low": case((lower, theirs.low), else_=MetricStretch.low),
            "low_step": case((lower, theirs.low_step), else_=MetricStretch.low_step),
            "high": case((higher, theirs.high), else_=MetricStretch.high),
            "high_step": case((higher, theirs.high_step), else_=MetricStretch.high_step),
            # Where one is not known it stays so: not all points were told of.
            "first_at": case(
                (theirs.first_at < MetricStretch.first_at, theirs.first_at), else_=MetricStretch.first_at
            ),
            "last_at": case(
                (theirs.last_at > MetricStretch.last_at, theirs.last_at), else_=MetricStretch.last_at
            ),
        },
    )
    session.execute(widened, rows)


def _summarise(session: Session, job_id: str, new: Sequence[Mapping[str, Any]]) -> None:
    """Take new points into the summaries of their curves."""
    by_name: dict[str, list[tuple[int, float]]] = defaultdict(list)
    for point in new:
        by_name[point["name"]].append((point["step"], point["value"]))
    if not by_name:
        return
    rows = []
    for name, points in by_name.items():
        step, value = max(points)
        values = [value for _, value in points]
        rows.append(
            {"job_id": job_id, "name": name, "last": value, "last_step": step}
            | {"min": min(values), "max": max(values)}
        )
    insert = insert_of(session)(MetricSummary)
    theirs = insert.excluded
    # A step that an earlier attempt left out is stored late: it is not the newest.
    newer = theirs.last_step > MetricSummary.last_step
    summarised = insert.on_conflict_do_update(
        index_elements=[MetricSummary.job_id, MetricSummary.name],
        set_={
            "last": case((newer, theirs.last), else_=MetricSummary.last),
            "last_step": case((newer, theirs.last_step), else_=MetricSummary.last_step),
            "min": case((theirs.min < MetricSummary.min, theirs.min), else_=MetricSummary.min),
            "max": case((theirs.max > MetricSummary.max, theirs.max), else_=MetricSummary.max),
        },
    )
    session.execute(summarised, rows)
