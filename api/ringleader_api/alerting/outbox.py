"""The outbox: alerts that are to be sent, each until a receiver has taken it or no more is tried."""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import urlsplit

from sqlalchemy import delete, func, select, update

from ringleader.wire.alerts import AlertState
from ringleader_api.clock import Clock
from ringleader_api.log import Log
from ringleader_api.store import Transactions
from ringleader_api.store.alerts import AlertRow

log = Log("ringleader.alerts")
MOST_TRIES = 12
FIRST_WAIT, LONGEST_WAIT = timedelta(seconds=1), timedelta(minutes=10)
"""The wait behind the first failed try, doubled behind each further one: the last try is half an hour after the
first."""
MAX_ERROR = 500
PRUNED_EVERY = timedelta(minutes=1)


class Outbox:
    """Hands out alerts that are due, and notes what became of them.

    Args:
        kept: how long those that have ended stay.
        shared: other processes write to the store, too.
    """

    def __init__(self, store: Transactions, now: Clock, kept: timedelta, *, shared: bool = False) -> None:
        self._store = store
        self._now = now
        self._kept = kept
        self._shared = shared
        self._pruned_at: datetime | None = None
        self._empty_at_version = -1

    def due(self, per_target: int, besides: Collection[str]) -> Sequence[AlertRow]:
        """Alerts whose time has come, the oldest first, of each target a few: one that does not answer must not hide
        the others. `besides` are those on their way."""
        version = self._store.version
        # Nothing was pending at that version, and only a write of this process could have added some.
        if not self._shared and version == self._empty_at_version:
            return []
        place = func.row_number().over(
            partition_by=(AlertRow.project, AlertRow.target), order_by=(AlertRow.due_at, AlertRow.id)
        )
        due = select(AlertRow.id, place.label("place"))
        due = due.where(AlertRow.state == AlertState.PENDING.value, AlertRow.due_at <= self._now())
        first = due.where(AlertRow.id.not_in(besides)).subquery()
        query = select(AlertRow).join(first, first.c.id == AlertRow.id).where(first.c.place <= per_target)
        pending = select(AlertRow.id).where(AlertRow.state == AlertState.PENDING.value).limit(1)
        with self._store.read() as session:
            found = session.scalars(query.order_by(AlertRow.due_at, AlertRow.id)).all()
            if not found and session.scalar(pending) is None:
                self._empty_at_version = version
        return found

    def sent(self, alert: AlertRow) -> None:
        self._end(alert, AlertState.SENT, "")

    def not_sent(self, alert: AlertRow, error: str, *, final: bool) -> None:
        """Note a failed try; `final`: no other one would do better."""
        tries = alert.tries + 1
        if final or tries >= MOST_TRIES:
            target = host_of(alert.channel, alert.target)
            log.warning("alert.failed", alert=alert.id, rule=alert.rule, target=target, tries=tries)
            self._end(alert, AlertState.FAILED, error)
            return
        wait = min(LONGEST_WAIT, FIRST_WAIT * 2 ** (tries - 1))
        self._note(alert, tries=tries, error=error[:MAX_ERROR], due_at=self._now() + wait)

    def prune(self) -> None:
        """Remove what ended long ago; looks once a minute."""
        now = self._now()
        if self._pruned_at is not None and now - self._pruned_at < PRUNED_EVERY:
            return
        self._pruned_at = now
        over = AlertRow.ended_at < now - self._kept
        with self._store.read() as session:
            # A read first: mostly there is none, and a write would take the writers' turn for nothing.
            if session.scalar(select(AlertRow.id).where(over).limit(1)) is None:
                return
        with self._store.write() as session:
            session.execute(delete(AlertRow).where(over))

    def _end(self, alert: AlertRow, state: AlertState, error: str) -> None:
        now = self._now()
        self._note(
            alert,
            state=state.value,
            tries=alert.tries + 1,
            error=error[:MAX_ERROR],
            due_at=None,
            ended_at=now,
        )

    def _note(self, alert: AlertRow, **changes: object) -> None:
        with self._store.write() as session:
            session.execute(update(AlertRow).where(AlertRow.id == alert.id).values(**changes))


def host_of(channel: Mapping[str, Any], target: str) -> str:
    """The target as the log has it."""
    # Of an address the host alone: its path may hold a token.
    return urlsplit(channel.get("webhook") or "").hostname or target
