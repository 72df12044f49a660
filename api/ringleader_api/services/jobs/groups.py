"""Jobs in groups of an equal label or parameter: how many there are, and what their metrics came to."""

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Select, and_, func, null, select
from sqlalchemy.orm import InstrumentedAttribute, Session
from sqlalchemy.sql.elements import UnaryExpression
from sqlalchemy.sql.operators import custom_op

from ringleader.wire.views import GroupValues, JobGroup, JobGroups
from ringleader_api.problems import Unprocessable
from ringleader_api.store.listed import LABEL, PARAM, fitted
from ringleader_api.store.tables import Job, JobAttribute, MetricSummary

MOST_GROUPS = 200


@dataclass(frozen=True, slots=True)
class Grouping:
    """The attribute by which jobs are grouped: the value of a label, or of a key of `params`."""

    kind: str
    key: str

    @classmethod
    def parse(cls, text: str) -> "Grouping":
        """Raises Unprocessable: it is neither label:KEY nor param:KEY."""
        kind, _, key = text.partition(":")
        if kind not in (LABEL, PARAM) or not key:
            raise Unprocessable(f"jobs cannot be grouped by {text[:100]!r}.", code="bad_group")
        return cls(kind, key)

    def filter_of(self, value: str | None) -> str:
        """The filter with which a list has the jobs of a group."""
        if value is None:
            return f"!{self.key}"
        # In quotes: 0.10 without them would stand for 0.1, too.
        return f"{self.key}={json.dumps(value, ensure_ascii=False) if self.kind == PARAM else value}"


def grouped(
    session: Session, matching: Sequence[ColumnElement[bool]], by: Grouping, metrics: Sequence[str]
) -> JobGroups:
    """The MOST_GROUPS greatest groups of the jobs that match, and behind them those without the value."""
    own = _own(session, by, Job.id)
    value, count = JobAttribute.value, func.count()
    query = (
        select(value, count).select_from(Job).outerjoin(JobAttribute, own).where(*matching).group_by(value)
    )
    # One more than is shown, and those without the value, however few they are.
    query = query.order_by(value.is_(None).desc(), count.desc(), value).limit(MOST_GROUPS + 2)
    rows = [(name, jobs) for name, jobs in session.execute(query)]
    named = [row for row in rows if row[0] is not None]
    shown = [*named[:MOST_GROUPS], *(row for row in rows if row[0] is None)]
    values = _values(session, matching, by, [name for name, _ in shown], metrics) if metrics and shown else {}
    groups = [
        JobGroup(value=name, filter=by.filter_of(name), jobs=jobs, metrics=values.get(name, {}))
        for name, jobs in shown
    ]
    return JobGroups(groups=groups, more=len(named) > MOST_GROUPS)


def _own(session: Session, by: Grouping, job_id: Any) -> ColumnElement[bool]:
    """The attribute of that job that the groups are made by."""
    kind, key = _read_by_row(session, JobAttribute.kind, JobAttribute.key)
    return and_(JobAttribute.job_id == job_id, kind == by.kind, key == fitted(by.key))


def _read_by_row(session: Session, *columns: InstrumentedAttribute[Any]) -> list[ColumnElement[Any]]:
    """The columns, as conditions on rows that are found by their job."""
    if session.get_bind().dialect.name != "sqlite":
        return [column.expression for column in columns]
    # Its planner would look through all rows with that value for each job, rather than through those of the job.
    return [unindexed(column.expression) for column in columns]


def unindexed(column: ColumnElement[Any]) -> ColumnElement[Any]:
    """The column as the planner of SQLite takes no index for it."""
    return UnaryExpression(column, operator=custom_op("+"), type_=column.type)


def _values(
    session: Session,
    matching: Sequence[ColumnElement[bool]],
    by: Grouping,
    shown: Sequence[str | None],
    metrics: Sequence[str],
) -> dict[str | None, dict[str, GroupValues]]:
    """By group and metric, the lowest and the highest value, and the last one of the newest job that has any. Only of
    the groups that are shown: each job may have a value of its own."""
    # A list of ids and no join: SQLite would read the row of each job, most of which is its job file.
    there = select(Job.id).where(*matching)
    found: dict[str | None, dict[str, GroupValues]] = defaultdict(dict)
    if named := [value for value in shown if value is not None]:
        own = (
            JobAttribute.kind == by.kind,
            JobAttribute.key == fitted(by.key),
            JobAttribute.value.in_(named),
        )
        job_id, name = _read_by_row(session, MetricSummary.job_id, MetricSummary.name)
        query = select(JobAttribute.value.label("value"), *_SUMS).where(
            *own, job_id.in_(there), name.in_(metrics)
        )
        query = query.join_from(JobAttribute, MetricSummary, MetricSummary.job_id == JobAttribute.job_id)
        _take(session, query.group_by(JobAttribute.value, MetricSummary.name), found)
    if None in shown:
        have = select(JobAttribute.job_id).where(_own(session, by, MetricSummary.job_id)).exists()
        for metric in metrics:  # of several at once, SQLite would look for each in every job
            query = select(null().label("value"), *_SUMS).where(MetricSummary.name == metric, ~have)
            query = query.where(MetricSummary.job_id.in_(there)).group_by(MetricSummary.name)
            _take(session, query, found)
    return found


_SUMS: tuple[ColumnElement[Any], ...] = (
    MetricSummary.name.label("name"),
    func.min(MetricSummary.min).label("low"),
    func.max(MetricSummary.max).label("high"),
    func.max(MetricSummary.job_id).label("newest"),
    func.count().label("jobs"),
)


def _take(session: Session, query: Select[Any], found: dict[str | None, dict[str, GroupValues]]) -> None:
    of = query.subquery()
    last = and_(MetricSummary.job_id == of.c.newest, MetricSummary.name == of.c.name)
    for value, name, low, high, _, jobs, latest in session.execute(
        select(of, MetricSummary.last).join(MetricSummary, last)
    ):
        found[value][name] = GroupValues(last=latest, min=low, max=high, jobs=jobs)
