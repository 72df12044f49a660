"""The order of a list of jobs, and the cursors that continue it."""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from math import isnan
from typing import Any

from sqlalchemy.orm import InstrumentedAttribute

from ringleader.text import is_utf8
from ringleader.wire.states import State
from ringleader_api.problems import Unprocessable
from ringleader_api.services.pages import ListCursors
from ringleader_api.store.listed import LABEL, PARAM, fitted
from ringleader_api.store.tables import Job, JobAttribute, MetricSummary

COLUMNS: Mapping[str, InstrumentedAttribute[Any]] = {
    "submitted_at": Job.id,  # ids grow with submission
    "name": Job.name,
    "state": Job.state,
    "owner": Job.owner,
    "project": Job.project,
    "priority": Job.priority,
    "finished_at": Job.finished_at,
    "duration": Job.duration_s,
    "step": Job.step,
    "workers": Job.world_size,
    "attempt": Job.attempt,
}
"""What a list can be sorted by, beside metrics, parameters and labels."""
METRIC: Mapping[str, InstrumentedAttribute[Any]] = {
    "last": MetricSummary.last,
    "min": MetricSummary.min,
    "max": MetricSummary.max,
}
MAY_LACK = frozenset({"finished_at", "duration"})
"""What some jobs do not have."""
HINT = (
    f"Sort by one of {', '.join(COLUMNS)}, metric:NAME:last|min|max, param:KEY or label:KEY, with a leading - for "
    "descending order."
)
_METRIC = re.compile(r"metric:(.{1,250}):(last|min|max)", re.DOTALL)
_ATTRIBUTE = re.compile(rf"({PARAM}|{LABEL}):(.+)", re.DOTALL)
_CURSORS = ListCursors(re.compile(r"(job_[0-9A-Z]{26}|\[.*\])", re.DOTALL))
_ID = re.compile(r"job_[0-9A-Z]{26}")


@dataclass(frozen=True, slots=True)
class SortValues:
    """The rows beside jobs that hold what a list is sorted by, at most one of a job: those with these values."""

    job_id: InstrumentedAttribute[str]
    values: Mapping[InstrumentedAttribute[str], str]


@dataclass(frozen=True, slots=True)
class Sort:
    """An order of jobs. Equal ones are ordered by id, in the same direction; those that lack a value come last in both.

    Attributes:
        by: a key of COLUMNS; where something is named, a key of METRIC, PARAM or LABEL.
        name: the name of a metric, or the key of a parameter or label.
        descending: whether the greatest comes first.
    """

    by: str
    name: str | None = None
    descending: bool = False

    @classmethod
    def parse(cls, text: str) -> "Sort":
        """Raises Unprocessable: there is no such order."""
        name = text.removeprefix("-")
        descending = name != text
        if found := _METRIC.fullmatch(name):
            # The name is all that stands between the first and the last colon: it may have some of its own.
            return cls(found[2], found[1], descending)
        if found := _ATTRIBUTE.fullmatch(name):
            return cls(found[1], found[2], descending)
        if name not in COLUMNS:
            raise Unprocessable(f"there is no order {text[:100]!r}.", hint=HINT, code="bad_sort")
        return cls(name, None, descending)

    def __str__(self) -> str:
        name = self.by
        if self.name is not None:
            name = f"metric:{self.name}:{self.by}" if self.by in METRIC else f"{self.by}:{self.name}"
        return f"-{name}" if self.descending else name

    @property
    def column(self) -> InstrumentedAttribute[Any]:
        return COLUMNS[self.by] if self.name is None else METRIC.get(self.by, JobAttribute.rank)

    @property
    def rows(self) -> SortValues | None:
        """The rows that have the column; None: the job's own row has it."""
        if self.name is None:
            return None
        if self.by in METRIC:
            return SortValues(MetricSummary.job_id, {MetricSummary.name: self.name})
        values = {JobAttribute.kind: self.by, JobAttribute.key: fitted(self.name)}
        return SortValues(JobAttribute.job_id, values)

    @property
    def is_of_ids(self) -> bool:
        """Whether the order is that of submission."""
        return self.column is Job.id

    @property
    def may_lack(self) -> bool:
        """Whether there are jobs without a value."""
        return self.name is not None or self.by in MAY_LACK


NEWEST_FIRST = Sort("submitted_at", descending=True)


@dataclass(frozen=True, slots=True)
class PageEnd:
    """The last job of a page: its value (None: it has none) and its id."""

    value: Any
    job_id: str


def cursor_behind(sort: Sort, place: PageEnd) -> str:
    """The cursor of the page behind that place."""
    # The first order that there was: its cursors stay as they were.
    if sort == NEWEST_FIRST:
        return _CURSORS.cursor(place.job_id)
    value = place.value.isoformat() if isinstance(place.value, datetime) else place.value
    return _CURSORS.cursor(json.dumps([str(sort), value, place.job_id]))


def place_of(sort: Sort, cursor: str) -> PageEnd:
    """The place that a cursor names. Raises Unprocessable: it is none of this order."""
    (text,) = _CURSORS.parts(cursor)
    if _ID.fullmatch(text):
        order, place = str(NEWEST_FIRST), PageEnd(text, text)
    else:
        order, place = _read(cursor, text, sort)
    if order != str(sort):
        raise Unprocessable(
            f"the cursor {cursor[:100]!r} comes from a list in the order {order[:300]!r}, and this one is in the order "
            f"{str(sort)!r}.",
            hint="Leave the cursor out to read the first page in the new order.",
            code="bad_cursor",
        )
    return place


def _read(cursor: str, text: str, sort: Sort) -> tuple[str, PageEnd]:
    """The order that a cursor was made for, and its place."""
    try:
        order, value, job_id = json.loads(text)
        if not isinstance(order, str) or not isinstance(job_id, str) or not _ID.fullmatch(job_id):
            raise ValueError(text)
        if order == str(sort) and (value is not None or not sort.may_lack):
            read: Callable[[Any], Any] = _VALUES.get(sort.by, _text)
            value = read(value)
    except (ValueError, TypeError, RecursionError, OverflowError):
        raise Unprocessable(
            f"the cursor {cursor[:100]!r} did not come from this list.",
            hint="Leave the cursor out to read the first page.",
            code="bad_cursor",
        ) from None
    return order, PageEnd(value, job_id)


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or isnan(value):
        raise TypeError(value)
    return float(value)


def _whole(value: Any, bits: int = 32) -> int:
    # The column has so many bits: PostgreSQL fails a comparison with more, and a cursor can be made up.
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) >= 1 << bits - 1:
        raise TypeError(value)
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str) or not is_utf8(value):
        raise TypeError(value)
    return value


def _moment(value: Any) -> datetime:
    moment = datetime.fromisoformat(value)
    if moment.tzinfo is None:
        raise ValueError(value)
    return moment


_VALUES: Mapping[str, Callable[[Any], Any]] = {
    "state": State,
    "priority": _whole,
    "finished_at": _moment,
    "duration": _number,
    "step": partial(_whole, bits=64),
    "workers": _whole,
    "attempt": _whole,
    **dict.fromkeys(METRIC, _number),
}
