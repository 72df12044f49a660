"""Lists of jobs: filtered, sorted, by pages, and what they can be filtered and sorted by."""

import json
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Select, exists, func, literal, or_, select, tuple_
from sqlalchemy.orm import InstrumentedAttribute, Session, defer

from ringleader.wire.states import State
from ringleader.wire.views import Facets, JobGroups, JobPage, MetricValues
from ringleader_api.services.jobs.groups import Grouping, grouped, unindexed
from ringleader_api.services.jobs.sorting import NEWEST_FIRST, PageEnd, Sort, cursor_behind, place_of
from ringleader_api.services.jobs.views import job_view
from ringleader_api.store import Store
from ringleader_api.store.listed import LABEL, PARAM, fitted, scalar_text
from ringleader_api.store.tables import ExportCursor, Job, JobAttribute, MetricSummary

FEW = 5000
"""Up to so many jobs that match are sorted; more are met soon enough on a walk through all in order."""
LOOKED_AT = 1000
MOST = 200
"""The jobs that `facets` looks at, and the most names or values that it gives of one kind."""


@dataclass(frozen=True, slots=True)
class Filter:
    """The jobs to list; None takes all. Labels and params are (key, value) pairs that must all match, a value of None
    those without the key; `search` is a part of the id, the name, or of a label as key=value, in letters of either
    case."""

    state: State | None = None
    project: str | None = None
    name: str | None = None
    owner: str | None = None
    labels: Sequence[tuple[str, str | None]] = ()
    params: Sequence[tuple[str, str | None]] = ()
    search: str | None = None


class JobList:
    """Reads lists of jobs. `url` is the address users take; `grows`: the cluster does."""

    def __init__(self, store: Store, url: str, *, grows: bool) -> None:
        self._store = store
        self._url = url
        self._grows = grows

    def page(
        self,
        which: Filter,
        limit: int,
        cursor: str | None,
        projects: Collection[str] | None,
        *,
        sort: Sort = NEWEST_FIRST,
        metrics: Sequence[str] = (),
    ) -> JobPage:
        """The jobs of these projects (None: all), in order, with their values of these metrics; `cursor` continues
        behind the last job of the page before."""
        # By key rather than by offset: new jobs shift no page.
        behind = place_of(sort, cursor) if cursor is not None else None
        with self._store.read() as session:
            places = _Search(session, which, projects).places(sort, behind, limit + 1)
            more, places = len(places) > limit, places[:limit]
            ids = [place.job_id for place in places]
            query = select(Job, ExportCursor).outerjoin(ExportCursor, ExportCursor.job_id == Job.id)
            # No view shows these.
            query = query.options(defer(Job.submitted), defer(Job.workers)).where(Job.id.in_(ids))
            rows = {job.id: (job, exported) for job, exported in session.execute(query)} if ids else {}
            values = _values(session, ids, metrics) if metrics else {}
        views = {i: job_view(*row, self._url, grows=self._grows) for i, row in rows.items()}
        if metrics:
            views = {i: view.model_copy(update={"metrics": values[i]}) for i, view in views.items()}
        # One may have been removed since the statement before.
        items = [views[i] for i in ids if i in views]
        return JobPage(items=items, next_cursor=cursor_behind(sort, places[-1]) if more else None)

    def facets(self, which: Filter, projects: Collection[str] | None) -> Facets:
        """The attributes of the newest LOOKED_AT of these jobs, MOST of each kind."""
        labels: dict[str, set[str]] = defaultdict(set)
        params: set[str] = set()
        with self._store.read() as session:
            places = _Search(session, which, projects).places(NEWEST_FIRST, None, LOOKED_AT)
            ids = [place.job_id for place in places]
            owned = session.execute(select(Job.owner, Job.project).where(Job.id.in_(ids)).distinct()).all()
            named = select(JobAttribute.kind, JobAttribute.key, JobAttribute.value)
            for kind, key, value in session.execute(named.where(JobAttribute.job_id.in_(ids)).distinct()):
                if kind == PARAM:
                    params.add(key)
                else:
                    labels[key].add(value)
            metrics = session.scalars(
                select(MetricSummary.name).where(MetricSummary.job_id.in_(ids)).distinct()
            ).all()
        return Facets(
            jobs=len(ids),
            owners=_some({owner for owner, _ in owned}),
            projects=_some({project for _, project in owned}),
            labels={key: _some(labels[key]) for key in _some(labels)},
            params=_some(params),
            metrics=_some(metrics),
        )

    def groups(
        self, which: Filter, by: Grouping, metrics: Sequence[str], projects: Collection[str] | None
    ) -> JobGroups:
        """These jobs in groups of an equal label or parameter."""
        with self._store.read() as session:
            return grouped(session, _Search(session, which, projects).matching(), by, metrics)


class _Search:
    """The jobs that match a filter, in the caller's projects, as the conditions of queries."""

    def __init__(self, session: Session, which: Filter, projects: Collection[str] | None) -> None:
        self._session = session
        self._which = which
        self._projects = projects
        self._sqlite = session.get_bind().dialect.name == "sqlite"

    def places(self, sort: Sort, behind: PageEnd | None, limit: int) -> list[PageEnd]:
        """The first jobs behind that place, in order."""
        conditions = self._cheapest()
        few: Sequence[str] | None = None
        if conditions and not sort.is_of_ids:
            ids = self._session.scalars(
                select(Job.id).where(*_there(self._conditions(self._unindexed))).limit(FEW + 1)
            ).all()
            if not ids:
                return []
            few = ids if len(ids) <= FEW else None
            conditions = [Job.id.in_(ids)] if few else self._conditions(self._unindexed, soon=True)
        found: list[PageEnd] = []
        if behind is None or behind.value is not None:
            # By an index those few would be met at the end of a walk through all.
            of = _indexed if few is None else self._unordered
            query = _with_value(sort, conditions, few, of)
            # None from here on: jobs without a value stand behind all that have one, and begin with their first.
            found, behind = self._read(query, of(sort.column), sort=sort, behind=behind, limit=limit), None
        if sort.may_lack and len(found) < limit:
            query = _without_value(sort, conditions, self._unindexed)
            found += self._read(query, None, sort=sort, behind=behind, limit=limit - len(found))
        return found

    def _read(
        self,
        query: Select[str, Any],
        column: ColumnElement[Any] | None,
        *,
        sort: Sort,
        behind: PageEnd | None,
        limit: int,
    ) -> list[PageEnd]:
        """The rows of one query, (id, value), in order: by `column` if there is one, and by id."""
        by: list[Any] = [*query.selected_columns][:1]
        last: list[Any] = [] if behind is None else [literal(behind.job_id)]
        if column is not None and not sort.is_of_ids:
            by = [column, *by]
            last = [] if behind is None else [literal(behind.value, column.type), *last]
        if last:
            key, end = tuple_(*by), tuple_(*last)
            query = query.where(key < end if sort.descending else key > end)
        order = [one.desc() if sort.descending else one.asc() for one in by]
        return [PageEnd(value, i) for i, value in self._session.execute(query.order_by(*order).limit(limit))]

    def matching(self) -> list[ColumnElement[bool]]:
        """The conditions for each job that is there."""
        return _there(self._cheapest())

    def _cheapest(self) -> list[ColumnElement[bool]]:
        conditions = self._conditions(_indexed)
        # One condition alone is what an index is made for; of several, SQLite would take one and read all its rows.
        if len(conditions) > 1 or self._which.search is not None:
            return self._conditions(self._unindexed)
        return conditions

    def _conditions(self, of: "_Spelling", *, soon: bool = False) -> list[ColumnElement[bool]]:
        """The conditions for each job. `soon`: many do, so that it is cheaper to ask each in turn than to find all."""
        which = self._which
        equal = ((Job.state, which.state), (Job.project, which.project), (Job.name, which.name))
        found = [
            of(column) == value for column, value in (*equal, (Job.owner, which.owner)) if value is not None
        ]
        if self._projects is not None:
            found.append(of(Job.project).in_(self._projects))
        for kind, pairs in ((LABEL, which.labels), (PARAM, which.params)):
            found += [_has(of(Job.id), kind, key, value) for key, value in pairs]
        if which.search is not None:
            found.append(self._containing(which.search, soon=soon))
        return found

    def _containing(self, text: str, *, soon: bool) -> ColumnElement[bool]:
        def contains(column: ColumnElement[str]) -> ColumnElement[bool]:
            # LIKE of SQLite takes letters of either case by itself, and in half the time.
            like = column.contains if self._sqlite else column.icontains
            return like(text, autoescape=True)

        found = contains(JobAttribute.key + "=" + JobAttribute.value)
        of = self._unindexed if soon else _indexed
        labelled = select(JobAttribute.job_id).where(of(JobAttribute.kind) == LABEL, found)
        any_label = labelled.where(JobAttribute.job_id == Job.id).exists() if soon else Job.id.in_(labelled)
        return or_(contains(Job.id.expression), contains(Job.name.expression), any_label)

    def _unordered(self, column: InstrumentedAttribute[Any]) -> ColumnElement[Any]:
        """The column as no planner takes an index for its order."""
        # PostgreSQL expects jobs that match to lie anywhere in an order; those of one owner lie together.
        return (
            self._unindexed(column) if self._sqlite else func.greatest(column.expression, type_=column.type)
        )

    def _unindexed(self, column: InstrumentedAttribute[Any]) -> ColumnElement[Any]:
        """The column as the planner of SQLite takes no index for it."""
        if not self._sqlite:
            # PostgreSQL knows how many rows each index would find.
            return column.expression
        return unindexed(column.expression)


_Spelling = Callable[[InstrumentedAttribute[Any]], ColumnElement[Any]]


def _indexed(column: InstrumentedAttribute[Any]) -> ColumnElement[Any]:
    return column.expression


def _there(conditions: Sequence[ColumnElement[bool]]) -> list[ColumnElement[bool]]:
    return [Job.deleted_at.is_(None), *conditions]


def _with_value(
    sort: Sort, conditions: Sequence[ColumnElement[bool]], few: Sequence[str] | None, of: _Spelling
) -> Select[str, Any]:
    """The jobs that have a value of what the list is sorted by; `few` are the ids of all that match."""
    column = of(sort.column)
    rows = sort.rows
    if rows is None:
        query = select(Job.id, column).where(*_there(conditions))
        return query.where(column.is_not(None)) if sort.may_lack else query
    query = select(rows.job_id, column).where(*(of(one) == value for one, value in rows.values.items()))
    if few is not None:
        return query.where(rows.job_id.in_(few))
    return query.join(Job, Job.id == rows.job_id).where(*_there(conditions))


def _without_value(sort: Sort, conditions: Sequence[ColumnElement[bool]], of: _Spelling) -> Select[str, Any]:
    nothing: ColumnElement[Any] = literal(None)
    query = select(Job.id, nothing).where(*_there(conditions))
    rows = sort.rows
    if rows is None:
        return query.where(sort.column.is_(None))
    own = [of(one) == value for one, value in rows.values.items()]
    return query.where(~exists().where(rows.job_id == Job.id, *own))


def _has(job_id: ColumnElement[str], kind: str, key: str, value: str | None) -> ColumnElement[bool]:
    """Whether the job has the attribute with this value; None: whether it lacks it."""
    having = select(JobAttribute.job_id).where(JobAttribute.kind == kind, JobAttribute.key == fitted(key))
    if value is None:
        return job_id.not_in(having)
    values = [value] if kind == LABEL else _spellings(value)
    return job_id.in_(having.where(JobAttribute.value.in_([fitted(v) for v in values])))


def _spellings(text: str) -> list[str]:
    """The text, and the JSON scalar that it is, if it is one: 0.10 stands for 0.1."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return [text]
    return [text] if isinstance(value, list | dict) else list({text, scalar_text(value)})


def _values(session: Session, ids: Sequence[str], names: Sequence[str]) -> dict[str, dict[str, MetricValues]]:
    """By job and metric, what there is of these."""
    query = select(MetricSummary).where(MetricSummary.job_id.in_(ids), MetricSummary.name.in_(names))
    found: dict[str, dict[str, MetricValues]] = {i: {} for i in ids}
    for row in session.scalars(query):
        found[row.job_id][row.name] = MetricValues(
            last=row.last, min=row.min, max=row.max, step=row.last_step
        )
    return found


def _some(names: Collection[str]) -> list[str]:
    return sorted(names)[:MOST]
