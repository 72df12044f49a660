"""System metrics of a job, as they are stored and read: what its workers and their nodes used, coarser the older."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import groupby
from operator import attrgetter
from typing import Any

from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session

from ringleader.wire.system import FIGURES, Figure, Kind, SystemHistory, SystemSample, SystemSeries, why_unmet
from ringleader_api.services.records.metrics import MAX_VALUES, unix_time
from ringleader_api.store import Store
from ringleader_api.store.listed import insert_of
from ringleader_api.store.samples import SystemRow

KEPT_EACH, KEPT_LEAST, KEPT = 1024, 64, 200_000
"""The most samples of one worker or node, that number where a job has had very many of these, and the most of a job."""
NEW = 1 / 3
"""The share of them that stays as it was measured; older ones are taken together."""
SPAN_S = 5.0
_HIGHEST = frozenset({"memory_bytes", "memory_total_bytes", "gpu_memory_bytes", "gpu_memory_total_bytes"})
"""The figures whose highest value stands for several; of all others it is the mean over the time."""


@dataclass(frozen=True, slots=True)
class SampleSpan:
    """One sample, or several taken together: `span_s` seconds measured, the last of them at `at`."""

    at: datetime
    span_s: float
    node: str
    figures: dict[Figure, float]


def store_samples(session: Session, job_id: str, samples: Sequence[SystemSample]) -> None:
    """Store samples, each once, and thin what is old of those that have too many."""
    rows = [
        {"job_id": job_id, "kind": use.kind, "name": use.id, "node": use.node}
        | {"at": sample.at, "span_s": sample.span_s, "figures": use.figures}
        for sample in samples
        for use in sample.uses
    ]
    if not rows:
        return
    session.execute(insert_of(session)(SystemRow).on_conflict_do_nothing(), rows)
    by = (SystemRow.kind, SystemRow.name)
    mine = SystemRow.job_id == job_id
    there = session.execute(select(*by, func.count(), func.max(SystemRow.at)).where(mine).group_by(*by)).all()
    # Many have come and gone: of those that went first nothing is kept.
    there = sorted(there, key=lambda one: one[3], reverse=True)
    for kind, name, *_ in there[KEPT // KEPT_LEAST :]:
        session.execute(delete(SystemRow).where(mine, SystemRow.kind == kind, SystemRow.name == name))
    most = max(KEPT_LEAST, min(KEPT_EACH, KEPT // len(there)))
    for kind, name, count, _ in there[: KEPT // KEPT_LEAST]:
        if count > most:
            _thin(session, (job_id, kind, name), most)


def taken_together(stretches: Sequence[SampleSpan], most: int) -> list[SampleSpan]:
    """At most `most` stretches in place of these, which are in order: each of one of several equal parts of the
    time."""
    if len(stretches) <= most:
        return list(stretches)
    first, last = stretches[0].at.timestamp(), stretches[-1].at.timestamp()
    part_s = SPAN_S
    # By doubling: what was taken together once falls into one part again.
    while int(last // part_s) - int(first // part_s) >= most:
        part_s *= 2
    parts = groupby(stretches, lambda one: int(one.at.timestamp() // part_s))
    return [_together(list(of)) for _, of in parts]


def system_history(
    store: Store, job_id: str, first: float | None, last: float | None, max_points: int
) -> SystemHistory:
    """The samples of a job between two Unix times, ends included, at most `max_points` of each worker and node."""
    bounds = [SystemRow.job_id == job_id]
    if first is not None:
        bounds.append(SystemRow.at >= unix_time(first))
    if last is not None:
        bounds.append(SystemRow.at <= unix_time(last))
    by = (SystemRow.kind, SystemRow.name)
    query = select(*by, SystemRow.at, SystemRow.span_s, SystemRow.node, SystemRow.figures).where(*bounds)
    with store.read() as session:
        rows = session.execute(query.order_by(*by, SystemRow.at)).all()
    found = [(*key, [_stretch(row) for row in of]) for key, of in groupby(rows, attrgetter("kind", "name"))]
    values = sum(len(FIGURES[kind]) for kind, _, _ in found)
    most = max(1, min(max_points, MAX_VALUES // max(1, values)))
    return SystemHistory(series=[_series(kind, name, taken_together(of, most)) for kind, name, of in found])


def _thin(session: Session, whose: tuple[str, str, str], most: int) -> None:
    """Take the older samples of a worker or node together, until no more than half of `most` stand for them."""
    job_id, kind, name = whose
    mine = (SystemRow.job_id == job_id, SystemRow.kind == kind, SystemRow.name == name)
    query = select(SystemRow.at, SystemRow.span_s, SystemRow.node, SystemRow.figures).where(*mine)
    rows = session.execute(query.order_by(SystemRow.at)).all()
    old = [_stretch(row) for row in rows[: -int(most * NEW)]]
    session.execute(delete(SystemRow).where(*mine, SystemRow.at <= old[-1].at))
    kept = [
        {"job_id": job_id, "kind": kind, "name": name, "node": one.node}
        | {"at": one.at, "span_s": one.span_s, "figures": one.figures}
        for one in taken_together(old, most // 2)
    ]
    session.execute(insert_of(session)(SystemRow), kept)


def _stretch(row: Any) -> SampleSpan:
    return SampleSpan(row.at, row.span_s, row.node, row.figures)


def _together(parts: Sequence[SampleSpan]) -> SampleSpan:
    if len(parts) == 1:
        return parts[0]
    names: Collection[Figure] = dict.fromkeys(name for part in parts for name in part.figures)
    figures = {name: _one(name, [part for part in parts if name in part.figures]) for name in names}
    return SampleSpan(parts[-1].at, sum(part.span_s for part in parts), parts[-1].node, figures)


def _one(name: Figure, parts: Sequence[SampleSpan]) -> float:
    if name in _HIGHEST:
        return max(part.figures[name] for part in parts)
    span_s = sum(part.span_s for part in parts)
    return round(sum(part.figures[name] * part.span_s for part in parts) / span_s, 1)


def _series(kind: Kind, name: str, stretches: Sequence[SampleSpan]) -> SystemSeries:
    met = [figure for figure in FIGURES[kind] if any(figure in one.figures for one in stretches)]
    return SystemSeries(
        kind=kind,
        id=name,
        node=stretches[-1].node,
        times=[round(one.at.replace(tzinfo=UTC).timestamp(), 3) for one in stretches],
        spans_s=[one.span_s for one in stretches],
        figures={figure: [one.figures.get(figure) for one in stretches] for figure in met},
        unmet={figure: why_unmet(figure) for figure in FIGURES[kind] if figure not in met},
    )
