"""The frozen values the SDK returns."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from typing import Any, Self

from ringleader.wire import system, views


@dataclass(frozen=True, slots=True)
class Worker:
    """A worker or server of a running job; `shards` is [start, stop) of the logical shards it owns, `address` that
    of its node.

    What its process and all that this has started use was measured a few seconds ago; None: not yet, or not there.
    `cpu_percent` is of one core.
    """

    id: str
    role: str
    rank: int | None
    pid: int
    node: str
    state: str
    generation: int
    shards: tuple[int, int]
    cpu_percent: float | None = None
    memory_bytes: int | None = None
    gpu_memory_bytes: int | None = None
    address: str = ""

    @classmethod
    def read(cls, source: Any) -> Self:
        view = views.WorkerView.model_validate(source)
        return cls(**{f.name: getattr(view, f.name) for f in fields(cls)})


@dataclass(frozen=True, slots=True)
class SystemSeries:
    """What one worker or node of a job used, by columns.

    Attributes:
        kind: worker or node.
        times, spans_s: each sample stands for so many seconds that ended then; where the next one begins later,
            nothing was measured.
        figures: by name; None where a sample has no such figure.
        unmet: the figures that were never measured, and why.
    """

    kind: str
    id: str
    node: str
    times: list[datetime]
    spans_s: list[float]
    figures: dict[system.Figure, list[float | None]]
    unmet: dict[system.Figure, str]

    @classmethod
    def read(cls, source: Any) -> Self:
        view = system.SystemSeries.model_validate(source)
        times = [datetime.fromtimestamp(at, UTC) for at in view.times]
        return cls(view.kind, view.id, view.node, times, view.spans_s, view.figures, view.unmet)


@dataclass(frozen=True, slots=True)
class Point:
    """One value of one metric at one settled step."""

    step: int
    value: float
    time: datetime
    generation: int

    @classmethod
    def read(cls, source: Any) -> Self:
        view = views.MetricPoint.model_validate(source)
        return cls(view.step, view.value, view.at, view.generation)


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to a job."""

    seq: int
    type: str
    time: datetime
    attempt: int
    generation: int
    data: dict[str, Any]

    @classmethod
    def read(cls, source: Any) -> Self:
        view = views.EventView.model_validate(source)
        return cls(view.seq, view.type, view.at, view.attempt, view.generation, view.data)


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line a worker or the supervisor printed."""

    seq: int
    time: datetime
    worker: str
    level: str
    line: str

    @classmethod
    def read(cls, source: Any) -> Self:
        view = views.LogLine.model_validate(source)
        return cls(view.seq, view.at, view.worker, view.level, view.line)


@dataclass(frozen=True, eq=True)
class Result(Mapping[str, Any]):
    """The outcome of a succeeded job: attributes, and a mapping of the same. Times in seconds. Times, generations,
    recoveries and lost steps are those of all attempts together.

    Attributes:
        steps_lost: committed steps that had to be trained again, because an attempt began behind them.
        staleness: gradients by how many updates lay between the pull of their weights and their own: none, 1, ..., 15,
            more. Empty where workers do not lease items.
        skipped_updates: steps whose gradient had overflowed, with `precision: fp16`: they changed no weight.
    """

    steps: int
    samples: int
    loss: float | None
    scores: dict[str, float]
    generations: int
    reproducible: bool
    reproducible_why: str
    weights_sha256: str
    weights_uri: str
    run_id: str
    wall_s: float
    compute_s: float
    exposed_communication_s: float
    idle_s: float
    recovery_s: float
    ledger_uri: str
    trace_uri: str
    checkpoint_uri: str
    staleness: list[int]
    skipped_updates: int
    attempts: int
    recoveries: int
    steps_lost: int

    @classmethod
    def of(cls, view: views.Result) -> Self:
        return cls(**{f.name: getattr(view, f.name) for f in fields(cls)})

    def __getitem__(self, key: str) -> Any:
        # Not any attribute: as a mapping it has the fields of the result, and not its methods.
        if key not in _RESULT_KEYS:
            raise KeyError(key)
        return getattr(self, key)

    def __iter__(self) -> Iterator[str]:
        return iter(_RESULT_KEYS)

    def __len__(self) -> int:
        return len(_RESULT_KEYS)


_RESULT_KEYS = tuple(f.name for f in fields(Result))


def as_json(record: Any) -> dict[str, Any]:
    """A record as plain JSON values."""
    return {
        key: value.isoformat() if isinstance(value, datetime) else value
        for key, value in asdict(record).items()
    }
