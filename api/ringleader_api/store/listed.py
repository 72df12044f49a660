"""The values by which lists of jobs are sorted and filtered, kept beside the jobs: attributes, metric summaries,
durations."""

import hashlib
import json
import re
import struct
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from math import inf
from typing import Any

from sqlalchemy import and_, func, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from ringleader.text import utf8
from ringleader_api.store.tables import Job, JobAttribute, Metric, MetricSummary

Transaction = Callable[[], AbstractContextManager[Session]]
LABEL, PARAM = "label", "param"
MAX_TEXT = 200
AT_ONCE = 200
"""The jobs that `fill` takes in one transaction."""
_NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_SIGN, _ALL_BITS = 1 << 63, (1 << 64) - 1


def attributes_of(job_id: str, labels: Mapping[str, str], params: Mapping[str, Any]) -> list[dict[str, str]]:
    """The rows of `job_attributes` for a job."""
    found = [(LABEL, key, value) for key, value in labels.items()]
    found += [
        (PARAM, key, scalar_text(value))
        for key, value in params.items()
        if not isinstance(value, list | dict)
    ]
    return [
        {
            "kind": kind,
            "key": fitted(key),
            "value": fitted(value),
            "rank": rank_of(fitted(value)),
            "job_id": job_id,
        }
        for kind, key, value in found
    ]


def rank_of(value: str) -> str:
    """The text by whose order values are sorted: numbers by size, behind them all others as texts."""
    if not _NUMBER.fullmatch(value):
        return f"t{value}"
    # The bits of a float, those of a negative one turned over, have the order of the numbers. + 0.0: -0 is 0.
    (bits,) = struct.unpack(">Q", struct.pack(">d", float(value) + 0.0))
    return f"n{bits ^ (_ALL_BITS if bits >> 63 else _SIGN):016x}"


def scalar_text(value: Any) -> str:
    """A JSON scalar as it is compared: 1, 1.0 and 1e0 alike, true, false and null as JSON spells them."""
    if isinstance(value, str):
        return value
    # An integer that no float holds stays as it is.
    if isinstance(value, float) and value.is_integer() and abs(value) < 1 << 53:
        value = int(value)
    return json.dumps(value)


def fitted(text: str) -> str:
    """The text as UTF-8 carries it; of a long one a beginning and a digest."""
    text = utf8(text)
    if len(text) <= MAX_TEXT:
        return text
    # PostgreSQL indexes short rows only.
    digest = hashlib.sha256(text.encode()).hexdigest()
    return f"{text[: MAX_TEXT - len(digest)]}{digest}"


def duration_s(started_at: datetime | None, finished_at: datetime | None) -> float | None:
    """The seconds from the first start to the end; None for a job that has not ended, or never started."""
    if started_at is None or finished_at is None:
        return None
    return (finished_at - started_at).total_seconds()


def summarise(session: Session, job_ids: Sequence[str]) -> None:
    """Summarise the stored points of jobs that have no summaries; the caller has locked them."""
    by = (Metric.job_id, Metric.name)
    # A value that is not a number was stored by versions before: it is neither the lowest nor the newest.
    mine = and_(Metric.job_id.in_(job_ids), Metric.value < inf, Metric.value > -inf)
    step, low, high = func.max(Metric.step), func.min(Metric.value), func.max(Metric.value)
    whole = select(*by, step.label("step"), low.label("low"), high.label("high")).where(mine).group_by(*by)
    of = whole.subquery()
    newest = and_(Metric.job_id == of.c.job_id, Metric.name == of.c.name, Metric.step == of.c.step)
    # By the newest step, not the newest row: a step that an earlier attempt left out is stored late.
    rows = select(of.c.job_id, of.c.name, Metric.value, of.c.step, of.c.low, of.c.high).join(Metric, newest)
    columns = ["job_id", "name", "last", "last_step", "min", "max"]
    # `where`: SQLite would read ON CONFLICT behind a join as the join's condition.
    filled = insert_of(session)(MetricSummary).from_select(columns, rows.where(of.c.step >= 0))
    session.execute(filled.on_conflict_do_nothing())


def fill(read: Transaction, write: Transaction) -> None:
    """Fill what lists need for jobs that were stored without it: by earlier versions, and by control planes of the
    version before beside this one."""
    unlisted = select(Job.id, Job.labels, Job.spec, Job.started_at, Job.finished_at)
    unlisted = unlisted.where(Job.listed.is_(False)).order_by(Job.id).limit(AT_ONCE)
    while True:
        with read() as session:
            # A read first: mostly there are none, and a write would take the writers' turn for nothing.
            if session.execute(unlisted.limit(1)).first() is None:
                return
        with write() as session:
            # Looked for again, under the lock: another control plane may have filled them meanwhile.
            jobs = session.execute(unlisted.with_for_update(of=Job)).all()
            rows = [
                row for job in jobs for row in attributes_of(job.id, job.labels, job.spec.get("params", {}))
            ]
            if rows:
                session.execute(insert_of(session)(JobAttribute).on_conflict_do_nothing(), rows)
            summarise(session, [job.id for job in jobs])
            changes = [
                {
                    "id": job.id,
                    "listed": True,
                    "priority": job.spec.get("priority", 0),
                    "duration_s": duration_s(job.started_at, job.finished_at),
                }
                for job in jobs
            ]
            if changes:
                session.execute(update(Job), changes)


def insert_of(session: Session) -> Any:
    """The `insert` of the session's database, which knows what to do about rows that are there."""
    return postgresql.insert if session.get_bind().dialect.name == "postgresql" else sqlite.insert
