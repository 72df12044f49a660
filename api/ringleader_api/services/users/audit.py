"""The audit log, for reading. It is only ever appended to, by the guard and in the transactions that it records."""

from sqlalchemy import select

from ringleader.wire.access import EVERY, AuditEntry, AuditPage
from ringleader_api.rights import Action, Caller, may, roles_of
from ringleader_api.services.users.access import permit
from ringleader_api.store import Store
from ringleader_api.store.people import AuditRow

SHOWN = ("id", "at", "who", "token", "method", "path", "project", "target", "outcome", "source", "request_id")


class AuditLog:
    def __init__(self, store: Store) -> None:
        self._store = store

    def page(
        self, who: Caller, by: str | None, project: str | None, limit: int, before: int | None
    ) -> AuditPage:
        """A page of the log, newest first. An admin of some projects sees the rows of these.

        Raises:
            Forbidden: the caller is nobody's admin.
        """
        # One more than asked for: whether it is there tells if there is a next page.
        query = select(AuditRow).order_by(AuditRow.id.desc()).limit(limit + 1)
        if not may(who, Action.AUDIT, EVERY):
            theirs = [name for name in roles_of(who) if may(who, Action.AUDIT, name)]
            if not theirs:
                # Raises, with the words and the hint that every refusal has.
                permit(who, Action.AUDIT, EVERY)
            query = query.where(AuditRow.project.in_(theirs))
        if by is not None:
            query = query.where(AuditRow.who == by)
        if project is not None:
            query = query.where(AuditRow.project == project)
        if before is not None:
            query = query.where(AuditRow.id < before)
        with self._store.read() as session:
            rows = session.scalars(query).all()
        items = [AuditEntry(**{name: getattr(row, name) for name in SHOWN}) for row in rows[:limit]]
        return AuditPage(items=items, next=items[-1].id if len(rows) > limit else None)
