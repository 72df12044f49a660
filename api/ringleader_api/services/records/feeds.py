"""Numbered feeds of a job, events and log lines: pages after a seq, and whether more can come."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from sqlalchemy import and_, func, select

from ringleader.text import is_plain, plain
from ringleader.wire.ingest import DEEP, MANY
from ringleader.wire.views import EventView, LogLine, View
from ringleader_api.services.users.access import load
from ringleader_api.store import Store
from ringleader_api.store.tables import Event, Job, LogRow


class EventPage(View):
    """Events in order; `next` is the seq to ask after, null when this page is the last for now."""

    items: list[EventView]
    next: int | None


class LogPage(View):
    """Log lines in order; `dropped` counts lines no longer stored because there were too many."""

    items: list[LogLine]
    next: int | None
    dropped: int


Read = Callable[[int, int], Sequence[EventView | LogLine]]


@dataclass(frozen=True, slots=True)
class Wanted:
    """The filter of log lines: by worker, by level, by a text that they contain; None takes all."""

    worker: str | None = None
    level: str | None = None
    text: str | None = None


ALL = Wanted()


class Feeds:
    """Reads feeds; never waits."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def ended(self, job_id: str) -> bool:
        """Whether no more can come. Raises NotFound."""
        with self._store.read() as session:
            return load(session, job_id).state.ended

    def reached(self, job_id: str) -> tuple[bool, int, int]:
        """The same, and the numbers of the newest event and line. Raises NotFound."""
        with self._store.read() as session:
            job = load(session, job_id)
            return job.state.ended, job.event_seq, job.log_seq

    def events(self, job_id: str, after: int, limit: int) -> list[EventView]:
        query = (
            select(Event).where(Event.job_id == job_id, Event.seq > after).order_by(Event.seq).limit(limit)
        )
        with self._store.read() as session:
            return [_view(found) for found in session.scalars(query)]

    def newest(self, job_id: str, types: Collection[str], most: int) -> tuple[list[EventView], int]:
        """The newest `most` events of these types, in order, and how many there are."""
        which = and_(Event.job_id == job_id, Event.type.in_(types))
        with self._store.read() as session:
            count = session.scalar(select(func.count()).select_from(Event).where(which)) or 0
            found = session.scalars(select(Event).where(which).order_by(Event.seq.desc()).limit(most)).all()
        return [_view(one) for one in reversed(found)], count

    def logs(self, job_id: str, after: int, limit: int, wanted: Wanted = ALL) -> list[LogLine]:
        query = select(LogRow).where(LogRow.job_id == job_id, LogRow.seq > after)
        if wanted.worker is not None:
            query = query.where(LogRow.worker == wanted.worker)
        if wanted.level is not None:
            query = query.where(LogRow.level == wanted.level)
        if wanted.text is not None:
            # Escaped: `%` and `_` stand for themselves, and not for any text.
            query = query.where(LogRow.line.icontains(wanted.text, autoescape=True))
        query = query.order_by(LogRow.seq).limit(limit)
        with self._store.read() as session:
            return [
                LogLine(seq=r.seq, at=r.at, worker=r.worker, level=r.level, line=r.line)
                for r in session.scalars(query)
            ]

    def dropped(self, job_id: str) -> int:
        with self._store.read() as session:
            job: Job = load(session, job_id)
            return job.logs_dropped

    def event_page(self, job_id: str, after: int, limit: int) -> EventPage:
        # Asked for its NotFound: a job without events has an empty page, one that does not exist has none.
        self.ended(job_id)
        items = self.events(job_id, after, limit)
        return EventPage(items=items, next=items[-1].seq if len(items) == limit else None)

    def log_page(self, job_id: str, after: int, limit: int, wanted: Wanted = ALL) -> LogPage:
        dropped = self.dropped(job_id)
        items = self.logs(job_id, after, limit, wanted)
        return LogPage(items=items, next=items[-1].seq if len(items) == limit else None, dropped=dropped)


def _view(event: Event) -> EventView:
    """The event as the API shows it."""
    # Data stored by an earlier version may not fit any answer: it is escaped or cut off.
    data = event.data if is_plain(event.data, DEEP, MANY) else plain(event.data, DEEP)
    return EventView(
        seq=event.seq,
        type=event.type,
        at=event.at,
        attempt=event.attempt,
        generation=event.generation,
        data=data,
    )
