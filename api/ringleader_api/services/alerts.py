"""Alert rules of projects, and the history of alerts."""

import re

from sqlalchemy import delete, func, insert, select
from sqlalchemy.orm import Session

from ringleader.spec.alerts import AlertTerms
from ringleader.wire.access import EVERY
from ringleader.wire.alerts import (
    TEST,
    AlertPage,
    AlertRulePage,
    AlertRuleSet,
    AlertRuleView,
    AlertState,
    AlertView,
)
from ringleader_api.alerting.cursors import follow_living
from ringleader_api.alerting.watch import rows_to
from ringleader_api.clock import Clock, new_id
from ringleader_api.problems import Conflict, NotFound
from ringleader_api.rights import Caller, visible
from ringleader_api.services.alert_checks import ChannelChecks
from ringleader_api.services.pages import ListCursors
from ringleader_api.services.users.access import no_project
from ringleader_api.store import Store, audit
from ringleader_api.store.alerts import AlertRow, AlertRuleRow
from ringleader_api.store.people import Project

MOST_RULES = 100
"""The most rules of a project."""
_KEYS = ListCursors(re.compile(r"alerts/(alert_[0-9A-Z]{26})"))


class Alerts:
    def __init__(self, store: Store, now: Clock, checks: ChannelChecks) -> None:
        self._store = store
        self._now = now
        self._checks = checks

    def rules(self, project: str) -> AlertRulePage:
        """The rules of a project, by name. Raises NotFound."""
        query = select(AlertRuleRow).where(AlertRuleRow.project == project).order_by(AlertRuleRow.name)
        with self._store.read() as session:
            _require(session, project)
            return AlertRulePage(items=[_rule_view(row) for row in session.scalars(query)])

    def put(self, who: Caller, project: str, name: str, terms: AlertTerms) -> AlertRuleSet:
        """Set or replace a rule. It looks at what happens from now on.

        Raises:
            NotFound: there is no such project.
            Unprocessable: a channel cannot be used.
            Conflict: the project has as many rules as it may.
        """
        audit.about(project=project, target=name)
        with self._store.read() as session:
            _require(session, project)
        # Outside of the transaction: it may wait for a resolver.
        warnings = self._checks.check(project, {"": terms}, "the rule")
        row = AlertRuleRow(
            project=project,
            name=name,
            id=new_id("rule"),
            terms=terms.model_dump(mode="json", exclude_none=True),
            set_by=who.name,
            set_at=self._now(),
        )
        with self._store.write() as session:
            # Without the one of this name: where it is replaced, the project has no more rules than before.
            mine = select(func.count()).where(AlertRuleRow.project == project, AlertRuleRow.name != name)
            if (session.scalar(mine) or 0) >= MOST_RULES:
                raise Conflict(
                    f"project {project} has {MOST_RULES} alert rules, which is the most.",
                    hint="Delete rules that are no longer needed.",
                    code="too_many_rules",
                )
            session.merge(row)
            session.flush()
            follow_living(session, project)
        return AlertRuleSet(**_rule_view(row).model_dump(), warnings=warnings)

    def drop(self, project: str, name: str) -> None:
        """Delete a rule. Raises NotFound. Alerts that it has raised are still sent."""
        audit.about(project=project, target=name)
        with self._store.write() as session:
            _rule(session, project, name)
            mine = AlertRuleRow.project == project, AlertRuleRow.name == name
            session.execute(delete(AlertRuleRow).where(*mine))

    def try_out(self, who: Caller, project: str, name: str) -> AlertPage:
        """Raise a test of a rule, which goes to each of its channels. Raises NotFound."""
        audit.about(project=project, target=name)
        now = self._now()
        with self._store.write() as session:
            terms = AlertTerms.model_validate(_rule(session, project, name).terms)
            told = {
                "project": project,
                "job_id": "",
                "job_name": "",
                "rule": name,
                "message": f"a test of the rule {name}, sent by {who.name}",
                "data": {},
                "at": now,
            }
            rows = rows_to(terms, told, now, kind=TEST)
            session.execute(insert(AlertRow), rows)
            ids = [row["id"] for row in rows]
            stored = session.scalars(select(AlertRow).where(AlertRow.id.in_(ids)).order_by(AlertRow.id)).all()
            return AlertPage(items=[_view(row) for row in stored])

    def page(
        self,
        who: Caller,
        *,
        job: str | None,
        project: str | None,
        state: AlertState | None,
        limit: int,
        cursor: str | None,
    ) -> AlertPage:
        """The alerts of the projects that the caller may read, newest first; `cursor` continues behind the last of the
        page before."""
        query = select(AlertRow).order_by(AlertRow.id.desc()).limit(limit + 1)
        if (theirs := visible(who)) is not None:
            query = query.where(AlertRow.project.in_(theirs))
        wanted = {"job_id": job, "project": project, "state": None if state is None else state.value}
        for column, value in wanted.items():
            if value is not None:
                query = query.where(getattr(AlertRow, column) == value)
        if cursor is not None:
            query = query.where(AlertRow.id < _KEYS.parts(cursor)[0])
        with self._store.read() as session:
            rows = session.scalars(query).all()
        items = [_view(row) for row in rows[:limit]]
        more = len(rows) > limit
        return AlertPage(items=items, next_cursor=_KEYS.cursor(f"alerts/{items[-1].id}") if more else None)


def _require(session: Session, project: str) -> None:
    # `*` stands for all projects, and is none.
    if project == EVERY or session.get(Project, project) is None:
        raise no_project(project)


def _rule(session: Session, project: str, name: str) -> AlertRuleRow:
    row = session.get(AlertRuleRow, (project, name))
    if row is None:
        raise NotFound(
            f"there is no alert rule {name!r} in project {project!r}.",
            hint=f"`ringleader alerts rules --project {project}` lists its rules.",
        )
    return row


def _rule_view(row: AlertRuleRow) -> AlertRuleView:
    return AlertRuleView.model_validate(
        {**row.terms, "project": row.project, "name": row.name, "set_by": row.set_by, "set_at": row.set_at}
    )


def _view(row: AlertRow) -> AlertView:
    told = {name: getattr(row, name) for name in AlertView.model_fields if name != "job"}
    return AlertView(job=row.job_id, **told)
