"""The posts of a supervisor to `POST /jobs/{id}/ingest`: settled records, numbered per stream, and the live status.

The receiver keeps, per (attempt, stream), the highest `seq` it has stored and skips records that it has, so a
record sent twice is stored once. `acked` tells the sender which it may forget.
"""

import math
import sys
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, Field

from ringleader.text import is_plain
from ringleader.wire.carried import Moment, Text
from ringleader.wire.states import State
from ringleader.wire.system import SystemSample
from ringleader.wire.views import Progress, Result, Spent, View, Why, WorkerView

DEEP = 50
"""The deepest nesting of an event's data: some readers of JSON read no deeper."""
MANY = 10_000
"""The most values of an event's data, keys counted: its receiver looks at each."""
Whole = Annotated[int, Field(strict=True)]
Seq = Annotated[Whole, Field(ge=1)]


def _plain(given: dict[str, Any]) -> dict[str, Any]:
    if not is_plain(given, DEEP, MANY):
        raise ValueError(
            f"allowed: JSON of at most {MANY} values, nested at most {DEEP} deep, without lone surrogates"
        )
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
    system: Annotated[list[SystemSample], Field(max_length=1000)] = []


class Acknowledged(View):
    """The highest stored seq of each stream of this attempt."""

    acked: dict[str, int]


class JobSecrets(View):
    """The answer of `GET /jobs/{id}/secrets` to the supervisor of the current attempt: values by environment
    variable."""

    values: Annotated[dict[str, str], Field(repr=False)]
