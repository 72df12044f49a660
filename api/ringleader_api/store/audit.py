"""The deed of the request at hand: whatever it changes is stored in one transaction with a row that says who did it."""

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
class Deed:
    """A request that may change something. Services fill in `project` and `target`; `recorded` once committed,
    or where nothing was changed."""

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
            "method": self.method[:16],
            "path": self.path[:500],
            "project": self.project[:100],
            "target": self.target[:200],
            "outcome": outcome,
            "source": self.source[:64],
            "request_id": self.request_id,
        }


AT_HAND: ContextVar[Deed | None] = ContextVar("deed", default=None)
"""Set by the guard; threads that a request is carried out in inherit it, those of the control plane have none."""


def about(*, project: str = "", target: str = "") -> None:
    """Say what the request at hand concerns."""
    deed = AT_HAND.get()
    if deed is not None:
        deed.project = project or deed.project
        deed.target = target or deed.target


def changes_nothing() -> None:
    """Say that the request at hand was carried out and left everything as it was: it gets no row."""
    deed = AT_HAND.get()
    if deed is not None:
        deed.recorded = True


def by(who: str, token: str | None) -> None:
    """Say who turned out to be asking: for log-ins, where nobody was known before."""
    deed = AT_HAND.get()
    if deed is not None:
        deed.who, deed.token = who, token


def at_hand() -> Sequence[Deed]:
    """The deed of the request at hand, if it is one that is told."""
    deed = AT_HAND.get()
    return [deed] if deed is not None else []


def add_to(session: Session, deeds: Iterable[Deed]) -> list[Deed]:
    """Put deeds into the transaction that carries them out, each once."""
    fresh = [deed for deed in deeds if deed.who and not deed.recorded]
    store(session, fresh, DONE)
    return fresh


def store(session: Session, deeds: Sequence[Deed], outcome: str) -> None:
    """Put deeds into the log, with what became of them."""
    if deeds:
        session.execute(_INSERT, [deed.row(outcome) for deed in deeds])
