"""Jobs in groups of an equal label or parameter: how many there are, and what their metrics came to."""

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, and_, func, or_, select
from sqlalchemy.orm import Session
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
    own = _own(session, by)
    value, count = JobAttribute.value, func.count()
    query = (
        select(value, count).select_from(Job).outerjoin(JobAttribute, own).where(*matching).group_by(value)
    )
    # One more than is shown, and those without the value, however few they are.
    query = query.order_by(value.is_(None).desc(), count.desc(), value).limit(MOST_GROUPS + 2)
    rows = [(name, jobs) for name, jobs in session.execute(query)]
    named = [row for row in rows if row[0] is not None]
    shown = [*named[:MOST_GROUPS], *(row for row in rows if row[0] is None)]
    # Only of those shown: each job may have a value of its own.
    of_shown = or_(value.in_([name for name, _ in named[:MOST_GROUPS]]), value.is_(None))
    values = _values(session, [*matching, of_shown], own, metrics) if metrics and shown else {}
    groups = [
        JobGroup(value=name, filter=by.filter_of(name), jobs=jobs, metrics=values.get(name, {}))
        for name, jobs in shown
    ]
    return JobGroups(groups=groups, more=len(named) > MOST_GROUPS)


def _own(session: Session, by: Grouping) -> ColumnElement[bool]:
    """The attribute of a job that the groups are made by."""
    kind, key = JobAttribute.kind.expression, JobAttribute.key.expression
    if session.get_bind().dialect.name == "sqlite":
        # Its planner would look through all attributes of that key for each job, rather than through those of the job.
        kind, key = unindexed(kind), unindexed(key)
    return and_(JobAttribute.job_id == Job.id, kind == by.kind, key == fitted(by.key))


def unindexed(column: ColumnElement[Any]) -> ColumnElement[Any]:
    """The column as the planner of SQLite takes no index for it."""
    return UnaryExpression(column, operator=custom_op("+"), type_=column.type)


def _values(
    session: Session,
    matching: Sequence[ColumnElement[bool]],
    own: ColumnElement[bool],
    metrics: Sequence[str],
) -> dict[str | None, dict[str, GroupValues]]:
    """By group and metric, the lowest and the highest value, and the last one of the newest job that has any."""
    by: tuple[Any, ...] = (JobAttribute.value, MetricSummary.name)
    low, high, newest = func.min(MetricSummary.min), func.max(MetricSummary.max), func.max(Job.id)
    query = select(
        *by, low.label("low"), high.label("high"), newest.label("newest"), func.count().label("jobs")
    )
    query = query.select_from(Job).join(MetricSummary, MetricSummary.job_id == Job.id)
    query = query.outerjoin(JobAttribute, own).where(*matching, MetricSummary.name.in_(metrics)).group_by(*by)
    of = query.subquery()
    last = and_(MetricSummary.job_id == of.c.newest, MetricSummary.name == of.c.name)
    rows = session.execute(select(of, MetricSummary.last).join(MetricSummary, last))
    found: dict[str | None, dict[str, GroupValues]] = defaultdict(dict)
    for name, metric, lowest, highest, _, jobs, latest in rows:
        found[name][metric] = GroupValues(last=latest, min=lowest, max=highest, jobs=jobs)
    return found
