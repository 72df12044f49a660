"""A job's metrics as an event file of TensorBoard: each settled step once, as the database has it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from typing import Any

from sqlalchemy import func, select

from ringleader.wire.artifacts import event_file_name
from ringleader_api.problems import NotFound
from ringleader_api.reports.event_file import Scalars, head, records
from ringleader_api.services.users.access import load
from ringleader_api.store import Store
from ringleader_api.store.tables import Metric

AT_ONCE = 5_000
"""The rows that are read, and written, at once."""
MOST_VALUES = 100
"""The most values of one event, whose checksum takes a turn for each of its bytes; a step may have several."""


@dataclass(frozen=True, slots=True)
class EventFile:
    """An event file on its way out: the values that were stored when it was asked for."""

    _store: Store
    _job_id: str
    _created_at: datetime
    _newest: int

    @property
    def name(self) -> str:
        """The same each time: a newer one takes the place of an older one, and no value stands twice in a folder."""
        return event_file_name(self._job_id, self._created_at)

    def chunks(self) -> Iterator[bytes]:
        """The file, in pieces. Raises NotFound: the job was deleted meanwhile."""
        yield head(self._created_at.timestamp())
        behind = 0
        while rows := self._rows(behind):
            behind = rows[-1].id
            yield records(_by_step(rows))
        if behind != self._newest:
            # A short file would pass for a whole one.
            raise NotFound(f"job {self._job_id} was deleted while its metrics were read.")

    def _rows(self, behind: int) -> Sequence[Any]:
        # By id: in the order of arrival, in which steps rise within an attempt, and by an index.
        query = select(Metric.id, Metric.step, Metric.at, Metric.name, Metric.value)
        query = query.where(Metric.job_id == self._job_id, Metric.id > behind, Metric.id <= self._newest)
        with self._store.read() as session:
            return session.execute(query.order_by(Metric.id).limit(AT_ONCE)).all()


def event_file(store: Store, job_id: str) -> EventFile:
    """The job's event file as of now.

    Raises:
        NotFound: there is no such job.
    """
    newest = select(func.max(Metric.id)).where(Metric.job_id == job_id)
    with store.read() as session:
        return EventFile(store, job_id, load(session, job_id).created_at, session.scalar(newest) or 0)


def _by_step(rows: Sequence[Any]) -> list[Scalars]:
    """Rows that follow each other with the same step and time as one, up to MOST_VALUES."""
    found = []
    for (step, at), of in groupby(rows, lambda row: (row.step, row.at)):
        values = [(row.name, row.value) for row in of]
        parts = range(0, len(values), MOST_VALUES)
        found += [Scalars(at.timestamp(), step, dict(values[n : n + MOST_VALUES])) for n in parts]
    return found
