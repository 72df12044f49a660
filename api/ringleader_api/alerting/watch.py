"""The watch over jobs: judges what is new about each, and stores what fires with the cursor that has passed it.

Cursor and alerts are one transaction, so that a process that dies between any two statements repeats no alert and
loses none.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from pydantic import ValidationError
from sqlalchemy import Select, and_, exists, func, insert, or_, select
from sqlalchemy.orm import Session

from ringleader.spec.alerts import AlertCondition, AlertRule, AlertTerms
from ringleader.wire.alerts import AlertState
from ringleader_api.alerting.bounds import judge_within_bounds
from ringleader_api.alerting.cursors import follow_overlooked
from ringleader_api.alerting.rules import Fired, Happened, News, Point
from ringleader_api.clock import Clock, new_id
from ringleader_api.log import Log
from ringleader_api.store import Transactions
from ringleader_api.store.alerts import AlertCursor, AlertRow, AlertRuleRow
from ringleader_api.store.spent import together
from ringleader_api.store.tables import Event, Job, Metric

log = Log("ringleader.alerts")
AT_ONCE = 50
"""The jobs that are looked at in one transaction."""
LOOKS = 10
"""The most such transactions in one round: alerts that are due must not wait for all jobs to be looked at."""
MOST_EVENTS, MOST_POINTS = 500, 5000
"""The most events and values of one job that one look takes; the next one goes on behind them."""
OVERLOOKED_EVERY = timedelta(minutes=1)
MAX_MESSAGE = 2000


@dataclass(frozen=True, slots=True)
class _Rule:
    """A rule for a job; `key` is what its memory is kept by."""

    key: str
    name: str
    terms: AlertTerms

    @property
    def when(self) -> AlertCondition:
        return self.terms.when


class AlertWatch:
    """Looks at jobs that have news. `shared`: other processes write to the store, too."""

    def __init__(self, store: Transactions, now: Clock, *, shared: bool = False) -> None:
        self._store = store
        self._now = now
        self._shared = shared
        self._seen_version = -1
        self._due_at: datetime | None = None
        self._swept_at: datetime | None = None
        self._behind = ""
        """The last job that was looked at; the next look goes on behind it."""

    def round(self) -> None:
        """Look at jobs that have news: at all of them, or else the next round goes on with the others."""
        version, now = self._store.version, self._now()
        if (
            not self._shared
            and version == self._seen_version
            and (self._due_at is None or now < self._due_at)
        ):
            return
        if self._swept_at is None or now - self._swept_at >= OVERLOOKED_EVERY:
            with self._store.write() as session:
                follow_overlooked(session, now)
            self._swept_at = now
        whole = False
        for _ in range(LOOKS):
            # Only a walk that has begun with the first job has looked at all of them.
            whole = whole or not self._behind
            if self._look(now):
                continue
            self._behind = ""
            if whole:
                self._note_all_seen(version)
                return

    def _note_all_seen(self, version: int) -> None:
        with self._store.read() as session:
            self._due_at = session.scalar(
                select(func.min(AlertCursor.due_at)).where(AlertCursor.open.is_(True))
            )
        self._seen_version = version

    def _look(self, now: datetime) -> bool:
        """Look at some jobs that have news; returns whether there may be more of them behind these."""
        with self._store.read() as session:
            ids = session.scalars(_with_news(now, self._behind).limit(AT_ONCE)).all()
        if not ids:
            return False
        # Before they are looked at: one that cannot be must not keep the others waiting.
        self._behind = ids[-1]
        with self._store.write() as session:
            followed = session.scalars(_locked(ids)).all()
            jobs = {job.id: job for job in session.scalars(select(Job).where(Job.id.in_(ids)))}
            rules = _rules_of_projects(session, {job.project for job in jobs.values()})
            raised: list[dict[str, Any]] = []
            for cursor in followed:
                job = jobs[cursor.job_id]
                mine = [*rules.get(job.project, ()), *_own_rules(job)]
                raised += self._judge(session, cursor, job, mine, now)
            if raised:
                session.execute(insert(AlertRow), raised)
        return len(ids) == AT_ONCE

    def _judge(
        self, session: Session, cursor: AlertCursor, job: Job, rules: Sequence[_Rule], now: datetime
    ) -> list[dict[str, Any]]:
        """The alerts of one job; its cursor moves on."""
        metrics = {rule.when.metric for rule in rules if rule.when.metric is not None}
        before = cursor.events, cursor.points
        news = News(
            now=now,
            state=job.state,
            queued_at=job.queued_at,
            events=_events(session, cursor, job),
            points=_points(session, cursor, metrics),
            wall_s=(spent := together(job.spent_before, job.spending)).wall_s,
            compute_s=spent.compute_s,
        )
        verdicts = {
            rule.key: judge_within_bounds(rule.when, cursor.memory.get(rule.key, {}), news) for rule in rules
        }
        cursor.memory = {key: verdict.memory for key, verdict in verdicts.items() if verdict.memory}
        cursor.due_at = min((v.due_at for v in verdicts.values() if v.due_at is not None), default=None)
        cursor.curves = bool(metrics)
        # It may have ended with more to read than one look takes.
        cursor.open = not job.state.ended or (cursor.events, cursor.points) != before
        fired = [(rule, one) for rule in rules for one in verdicts[rule.key].fired]
        return [row for rule, one in fired for row in alerts_of(job, rule.name, rule.terms, one, now)]


def alerts_of(job: Job, name: str, terms: AlertTerms, fired: Fired, now: datetime) -> list[dict[str, Any]]:
    """The rows of `alerts` for a rule that fired: one for each channel."""
    about = {"project": job.project, "job_id": job.id, "job_name": job.name}
    message = f"{job.name} {fired.message}"[:MAX_MESSAGE]
    return rows_to(terms, about | {"rule": name, "message": message, "data": fired.data, "at": fired.at}, now)


def rows_to(
    terms: AlertTerms, told: Mapping[str, Any], now: datetime, kind: str = ""
) -> list[dict[str, Any]]:
    """A row of `alerts` for each channel of a rule."""
    return [
        {
            "id": new_id("alert"),
            "kind": kind or terms.when.kind,
            "channel": channel.model_dump(mode="json"),
            "target": channel.target,
            "state": AlertState.PENDING.value,
            "tries": 0,
            "error": "",
            "due_at": now,
            **told,
        }
        for channel in terms.channels
    ]


def _locked(ids: Sequence[str]) -> Select[AlertCursor]:
    """The cursors of these jobs, locked in the one order in which everybody locks them."""
    mine = select(AlertCursor).where(AlertCursor.job_id.in_(ids))
    return mine.order_by(AlertCursor.job_id).with_for_update()


def _with_news(now: datetime, last: str) -> Select[str]:
    """The jobs, behind the last one, with events or values behind their cursors, and those that a rule wants to be
    looked at."""
    behind = exists().where(Metric.job_id == AlertCursor.job_id, Metric.id > AlertCursor.points)
    changed = or_(
        Job.event_seq > AlertCursor.events,
        AlertCursor.due_at <= now,
        and_(AlertCursor.curves, behind),
        # Ended, and read to its end: only the cursor has to be closed.
        Job.finished_at.is_not(None),
    )
    query = select(AlertCursor.job_id).join(Job, Job.id == AlertCursor.job_id)
    mine = AlertCursor.open.is_(True), AlertCursor.job_id > last
    return query.where(*mine, changed).order_by(AlertCursor.job_id)


def _rules_of_projects(session: Session, projects: set[str]) -> dict[str, list[_Rule]]:
    found: dict[str, list[_Rule]] = defaultdict(list)
    rows = select(AlertRuleRow).where(AlertRuleRow.project.in_(projects)).order_by(AlertRuleRow.name)
    for row in session.scalars(rows):
        found[row.project] += _readable(row.id, {**row.terms, "name": row.name})
    return found


def _own_rules(job: Job) -> list[_Rule]:
    return [one for rule in job.spec.get("alerts", ()) for one in _readable(f"job/{rule['name']}", rule)]


def _readable(key: str, stored: Mapping[str, Any]) -> list[_Rule]:
    """The rule, unless a newer version has stored it with keys that this one does not know."""
    try:
        rule = AlertRule.model_validate(stored)
    except ValidationError:
        log.warning("alerts.rule_unreadable", rule=key)
        return []
    return [_Rule(key, rule.name, rule)]


def _events(session: Session, cursor: AlertCursor, job: Job) -> list[Happened]:
    query = select(Event).where(Event.job_id == cursor.job_id, Event.seq > cursor.events)
    rows = session.scalars(query.order_by(Event.seq).limit(MOST_EVENTS)).all()
    # The job was read before its events: all that it counts are here.
    cursor.events = rows[-1].seq if rows else job.event_seq
    return [Happened(row.type, row.at, row.data) for row in rows]


def _points(session: Session, cursor: AlertCursor, names: set[str]) -> list[Point]:
    if not names:
        return []
    mine = Metric.job_id == cursor.job_id
    newest = session.scalar(select(func.max(Metric.id)).where(mine)) or 0
    query = select(Metric).where(mine, Metric.id > cursor.points, Metric.id <= newest, Metric.name.in_(names))
    rows = session.scalars(query.order_by(Metric.id).limit(MOST_POINTS)).all()
    cursor.points = rows[-1].id if len(rows) == MOST_POINTS else newest
    return [Point(row.name, row.step, row.value, row.at) for row in rows]
