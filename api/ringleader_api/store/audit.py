"""The audit row of the current request: its changes are stored in one transaction with a row that names its sender."""

from collections.abc import Iterable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import insert
from sqlalchemy.orm import Session

from ringleader_api.store.people import AuditRow

DONE = "done"
_INSERT = insert(AuditRow.metadata.tables[AuditRow.__tablename__])


@dataclass(slots=True)
class AuditedAction:
    """A request that may change something. Services fill in `project` and `target`; `recorded` is set once its row is
    committed, or where nothing was changed."""

    at: datetime
    who: str
    token: str | None
    method: str
    path: str
    source: str
    request_id: str
    project: str = ""
    target: str = ""
    recorded: bool = False

    def row(self, outcome: str) -> dict[str, object]:
        return {
            "at": self.at,
            "who": self.who,
            "token": self.token,
            # Cut to the columns: a row that does not fit would fail the transaction of the change itself.
            "method": self.method[:16],
            "path": self.path[:500],
            "project": self.project[:100],
            "target": self.target[:200],
            "outcome": outcome,
            "source": self.source[:64],
            "request_id": self.request_id,
        }


CURRENT_ACTION: ContextVar[AuditedAction | None] = ContextVar("current_action", default=None)
"""Set by the guard. The threads that carry out a request inherit it; those of the control plane have none."""


def about(*, project: str = "", target: str = "") -> None:
    """Record what the current request concerns."""
    action = CURRENT_ACTION.get()
    if action is not None:
        action.project = project or action.project
        action.target = target or action.target


def changes_nothing() -> None:
    """Record that the current request was carried out and changed nothing: it gets no row."""
    action = CURRENT_ACTION.get()
    if action is not None:
        action.recorded = True


def by(who: str, token: str | None) -> None:
    """Record the caller of the current request: for log-ins, where nobody was known before."""
    action = CURRENT_ACTION.get()
    if action is not None:
        action.who, action.token = who, token


def current_actions() -> Sequence[AuditedAction]:
    """The action of the current request, if it is one that is recorded."""
    action = CURRENT_ACTION.get()
    return [action] if action is not None else []


def add_to(session: Session, actions: Iterable[AuditedAction]) -> list[AuditedAction]:
    """Add actions to the transaction that carries them out, each once."""
    # Without a name: a log-in that has not come so far that anybody is known, which gets no row.
    fresh = [action for action in actions if action.who and not action.recorded]
    store(session, fresh, DONE)
    return fresh


def store(session: Session, actions: Sequence[AuditedAction], outcome: str) -> None:
    """Add actions to the log, with their outcome."""
    if actions:
        session.execute(_INSERT, [action.row(outcome) for action in actions])
