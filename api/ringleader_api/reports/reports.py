"""Reports from what the database knows: of one job, and of several side by side. Bounded in whatever could be long."""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from math import isfinite

from sqlalchemy import select
from sqlalchemy.orm import Session

from ringleader import __version__
from ringleader.wire.states import State
from ringleader.wire.views import Comparison, MetricValues
from ringleader_api.clock import Clock
from ringleader_api.reports import compared_sections, job_sections
from ringleader_api.reports.across import described, marks, place_of, points_of
from ringleader_api.reports.chart import Chart, Line, chart
from ringleader_api.reports.document import Document, Section, cut, when
from ringleader_api.services.jobs.views import job_view
from ringleader_api.services.records.feeds import Feeds
from ringleader_api.services.records.metrics import Axis, Curves, Interval
from ringleader_api.services.users.access import load
from ringleader_api.store import Store
from ringleader_api.store.tables import Job, MetricSummary

MAX_CHARTS = 24
"""As many as may be named, and as the page compares."""
MAX_METRICS = 200
"""The most rows of a table of last values."""
MAX_EVENTS = 200
"""The most rows of a table of events: the newest."""
POINTS, ALL_POINTS = 600, 120_000
"""The most points of one curve, and of all together."""
_STATES = [f"{job_sections.STATES}{state}" for state in State]


class Reports:
    """Writes reports. `url` is the address users take."""

    def __init__(self, store: Store, curves: Curves, feeds: Feeds, url: str, now: Clock) -> None:
        self._store = store
        self._curves = curves
        self._feeds = feeds
        self._url = url
        self._now = now

    def of_job(self, job_id: str, interval: Interval) -> bytes:
        """The report of one job, as HTML; of its curves that stretch, by that axis.

        Raises:
            NotFound: there is no such job.
        """
        with self._store.read() as session:
            job = job_view(load(session, job_id), None, self._url, grows=False)
            values = _last_values(session, [job_id])[job_id]
        names = list(values)[:MAX_CHARTS]
        lost, _ = self._feeds.newest(job_id, ["worker.lost"], MAX_EVENTS)
        marked = [
            place_of(one.data["step"], one.at, interval.axis, job.started_at)
            for one in lost
            if isinstance(one.data.get("step"), int)
        ]
        places = [place for place in marked if place is not None]
        charts = self._charts({job_id: job.name}, names, None, places, interval)
        notes = [*described(interval), *(["Losses of a worker are marked."] if places else [])]
        of = job_sections
        sections = [
            of.summary(job),
            *([of.outcome(job.result)] if job.result else []),
            Section("Metrics", [*notes, *_beyond(len(values), MAX_CHARTS)], charts=charts),
            of.last_values(dict(list(values.items())[:MAX_METRICS]), len(values)),
            of.history(*self._feeds.newest(job_id, _STATES, MAX_EVENTS)),
            of.members(*self._feeds.newest(job_id, of.MEMBERS, MAX_EVENTS)),
            of.recoveries(*self._feeds.newest(job_id, of.RECOVERED, MAX_EVENTS)),
            of.job_file(job.spec),
        ]
        return self._written(job.name, sections)

    def of_jobs(
        self,
        job_ids: Sequence[str],
        names: Sequence[str],
        interval: Interval,
        projects: Collection[str] | None,
    ) -> bytes:
        """Jobs side by side, as HTML; those that do not exist, or that the caller may not read, are named as left out.

        Args:
            names: metrics; none: the first MAX_CHARTS of all that they have.
            interval: the axis of the charts, and the stretch of them.
            projects: those that the caller may read; None: all.
        """
        found = select(Job).where(Job.id.in_(job_ids), Job.deleted_at.is_(None))
        if projects is not None:
            found = found.where(Job.project.in_(projects))
        with self._store.read() as session:
            views = {row.id: job_view(row, None, self._url, grows=False) for row in session.scalars(found)}
            values = _last_values(session, list(views))
        jobs = [views[i] for i in job_ids if i in views]
        known = sorted({name for of in values.values() for name in of})
        shown = (list(names) or known)[:MAX_CHARTS]
        empty = [cut(name) for name in shown if name not in known]
        without = [f"No values: {', '.join(empty)}."] if empty else []
        notes = [*described(interval), *without, *_beyond(len(names or known), MAX_CHARTS)]
        labels = compared_sections.labels_of(jobs)
        of = compared_sections
        sections = [
            of.overview(jobs, labels, [i for i in job_ids if i not in views]),
            Section("Metrics", notes, charts=self._charts(labels, shown, projects, [], interval)),
            of.last_values(jobs, labels, shown, values),
            of.differences(jobs, labels),
        ]
        return self._written(f"{len(jobs)} job{'s' * (len(jobs) != 1)} compared", sections)

    def _charts(
        self,
        labels: Mapping[str, str],
        names: Sequence[str],
        projects: Collection[str] | None,
        lost: Sequence[float],
        interval: Interval,
    ) -> list[Chart]:
        """A chart for each metric that has values; `labels` names the jobs."""
        if not labels or not names:
            return []
        most = max(4, min(POINTS, ALL_POINTS // (len(labels) * len(names))))
        answer = self._curves.compare(list(labels), names, interval, most, projects)
        marked = partial(marks, axis=interval.axis)
        drawn = (
            chart(cut(name), _lines(answer, name, labels, interval.axis), lost, marked) for name in names
        )
        return [one for one in drawn if one is not None]

    def _written(self, title: str, sections: Sequence[Section]) -> bytes:
        made = f"Made {when(self._now())} by Ringleader {__version__}."
        return Document(cut(title), made, sections).html()


def _lines(answer: Comparison, name: str, labels: Mapping[str, str], axis: Axis) -> list[Line]:
    """A line for each job, in their order, so that each has its colour in every chart."""
    started = {job.id: job.started_at for job in answer.jobs}
    # What is not a number, which versions before stored, has no place in a chart.
    points = {
        curve.job: [
            (x, value)
            for x, value in points_of(curve, axis, started.get(curve.job))
            if value is not None and isfinite(value)
        ]
        for curve in answer.curves
        if curve.name == name
    }
    # Also of jobs without points, so that each has its colour in every chart.
    return [Line(cut(label), points.get(i, [])) for i, label in labels.items()]


def _last_values(session: Session, job_ids: Sequence[str]) -> dict[str, dict[str, MetricValues]]:
    """The values of each metric of these jobs, by job and name."""
    query = select(MetricSummary).where(MetricSummary.job_id.in_(job_ids)).order_by(MetricSummary.name)
    found: dict[str, dict[str, MetricValues]] = defaultdict(dict)
    for row in session.scalars(query):
        found[row.job_id][row.name] = MetricValues(
            last=row.last, min=row.min, max=row.max, step=row.last_step
        )
    return found


def _beyond(count: int, most: int) -> list[str]:
    return [f"The first {most} of {count} metrics."] if count > most else []
