"""The posts of a supervisor to `POST /jobs/{id}/ingest`: settled records, numbered per stream, and the live status.

The receiver keeps, per (attempt, stream), the highest `seq` it has stored and skips records that it has, so a
record sent twice is stored once. `acked` tells the sender which it may forget.
"""

import math
import re
import sys
from datetime import UTC, datetime
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, AwareDatetime, BeforeValidator, Field

from ringleader.text import is_plain, is_utf8
from ringleader.wire.states import State
from ringleader.wire.views import Progress, Result, Spent, View, Why, WorkerView

DEEP = 50
"""The deepest nesting of an event's data: some readers of JSON read no deeper."""
MANY = 10_000
"""The most values of an event's data, keys counted: its receiver looks at each."""
Whole = Annotated[int, Field(strict=True)]
Seq = Annotated[Whole, Field(ge=1)]


def _spelt_out(given: object) -> object:
    # Pydantic would take a number, or a text of digits, for seconds since 1970.
    if not isinstance(given, datetime) and not (isinstance(given, str) and _DATE_AND_TIME.match(given)):
        raise ValueError(
            f"{given!r} is not a point in time; allowed: a date and a time, as in 2026-01-31T12:00:00Z"
        )
    return given


_DATE_AND_TIME = re.compile(r"\d{4}-\d\d-\d\d[Tt ]")


def _of_utc(given: datetime) -> datetime:
    try:
        return given.astimezone(UTC)
    except OverflowError:
        # In the first and last hours of the calendar another zone's time may have none in UTC.
        raise ValueError(f"{given.isoformat()} does not exist in UTC") from None


Moment = Annotated[AwareDatetime, BeforeValidator(_spelt_out), AfterValidator(_of_utc)]
"""A date and a time with its zone, as UTC: seconds since 1970, and a time without a zone, are refused."""


def _plain(given: dict[str, Any]) -> dict[str, Any]:
    if not is_plain(given, DEEP, MANY):
        raise ValueError(
            f"allowed: JSON of at most {MANY} values, nested at most {DEEP} deep, without lone surrogates"
        )
    return given


def _carried(given: str) -> str:
    if not is_utf8(given):
        raise ValueError(f"{given!r} has a lone surrogate; allowed: text that can be encoded as UTF-8")
    return given


V = TypeVar("V", bound=View | None)


def _sendable(given: V) -> V:
    """The same, where it can be told."""
    if given is not None and not is_plain(given.model_dump(), DEEP, sys.maxsize):
        # Of what is stored, one lone surrogate would fail every later answer.
        raise ValueError("a text in it has a lone surrogate; allowed: text that can be encoded as UTF-8")
    return given


def _finite(given: float | None) -> float | None:
    return given if given is None or math.isfinite(given) else None


Text = Annotated[str, AfterValidator(_carried)]
Value = Annotated[Annotated[float, Field(strict=True)] | None, AfterValidator(_finite)]
"""A number; None stands for what is none."""


class EventRecord(View):
    """An event, e.g. worker.lost {worker, rank, pid, cause, step} or recovered {detect_s, …, steps_lost}."""

    stream: Literal["events"] = "events"
    seq: Seq
    at: Moment
    generation: Whole
    type: Annotated[str, Field(pattern=r"^[a-z_]+(\.[a-z_]+)?$", max_length=64)]
    data: Annotated[dict[str, Any], AfterValidator(_plain)]


class MetricRecord(View):
    """All metric values of one settled step."""

    stream: Literal["metrics"] = "metrics"
    seq: Seq
    at: Moment
    generation: Whole
    step: Annotated[Whole, Field(ge=0)]
    values: dict[Text, Value]


class LogRecord(View):
    """One printed line."""

    stream: Literal["logs"] = "logs"
    seq: Seq
    at: Moment
    worker: Text
    level: Literal["info", "error"]
    line: Annotated[str, Field(max_length=16_384)]


class OutcomeRecord(View):
    """The end of the attempt: the last record a supervisor sends. `preempted`: its machines go away, so it has saved
    its state and should continue elsewhere."""

    stream: Literal["outcome"] = "outcome"
    seq: Seq
    at: Moment
    outcome: Literal["succeeded", "failed", "cancelled", "paused", "preempted"]
    reason: Annotated[Why | None, AfterValidator(_sendable)] = None
    result: Annotated[Result | None, AfterValidator(_sendable)] = None


Record = Annotated[EventRecord | MetricRecord | LogRecord | OutcomeRecord, Field(discriminator="stream")]


class Status(View):
    """The current state of the attempt; each status replaces the previous one, which is not kept."""

    state: Literal[State.STARTING, State.RUNNING, State.RECOVERING]
    generation: Whole
    world_size: Whole
    progress: Progress
    workers: list[WorkerView]
    failures_spent: Whole = 0
    spent: Spent | None = None
    dropped: dict[str, Whole] = {}


class Ingest(View):
    """The body of one post."""

    attempt: Seq
    status: Annotated[Status | None, AfterValidator(_sendable)] = None
    records: Annotated[list[Record], Field(max_length=5000)] = []


class Acknowledged(View):
    """The highest stored seq of each stream of this attempt."""

    acked: dict[str, int]


class JobSecrets(View):
    """The answer of `GET /jobs/{id}/secrets` to the supervisor of the current attempt: values by environment
    variable."""

    values: Annotated[dict[str, str], Field(repr=False)]
