"""The API's shapes: jobs, events, workers, metric points, log lines, problems. Shared by server, SDK and page."""

from datetime import datetime
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from ringleader.wire.states import State


def _number(given: object) -> object:
    # Pydantic would take "1" for a number, and true for 1.
    if isinstance(given, (bool, str)):
        raise ValueError(f"{given!r} is not a number; allowed: a number")
    return given


def _truth(given: object) -> object:
    if isinstance(given, (int, float, str)) and not isinstance(given, bool):
        raise ValueError(f"{given!r} is not true or false; allowed: true, false")
    return given


Whole = Annotated[int, BeforeValidator(_number)]
Real = Annotated[float, BeforeValidator(_number)]
Truth = Annotated[bool, BeforeValidator(_truth)]
"""Numbers and truths as JSON has them, and as numpy does: "1" is no number, and true is not 1."""


class View(BaseModel):
    """A frozen JSON shape."""

    model_config = ConfigDict(frozen=True)


class Why(View):
    """A reason in words (`reason`, `pending_reason`)."""

    code: str
    message: str
    hint: str = ""


class Progress(View):
    """The number of committed steps, that of all steps if it is known, and the epoch."""

    step: Whole = 0
    total_steps: Whole | None = None
    epoch: Whole = 0


class Failures(View):
    """The failure budget."""

    spent: int = 0
    max: int = 3


class Tracking(View):
    """The job's run in MLflow."""

    run_id: str = ""
    url: str = ""


class Urls(View):
    """Addresses of the job: REST and page."""

    self: str = ""
    page: str = ""


class Spent(View):
    """The time of one attempt, or several, by use, in seconds."""

    wall_s: Real = 0.0
    compute_s: Real = 0.0
    exposed_communication_s: Real = 0.0
    idle_s: Real = 0.0
    recovery_s: Real = 0.0


class Totals(Spent):
    """The cost of a job so far, over all its attempts.

    Attributes:
        recoveries: how often members were lost and the others went on.
        steps_lost: committed steps that had to be trained again, because a later attempt started from an earlier step.
    """

    attempts: int = 0
    generations: int = 0
    recoveries: int = 0
    steps_lost: int = 0


class Result(View):
    """The outcome of a succeeded job. Times in seconds. Times, generations, recoveries and lost steps are those of all
    attempts together.

    Attributes:
        steps_lost: committed steps that had to be trained again, because a later attempt started from an earlier step.
        staleness: the number of gradients by how many updates came between pulling their weights and applying them:
            none, 1, ..., 15, more. Empty if workers do not lease items.
        skipped_updates: steps whose gradient overflowed with `precision: fp16`, so that they changed no weight.
    """

    steps: Whole
    samples: Whole
    loss: Real | None
    scores: dict[str, Real] = {}
    generations: Whole
    reproducible: Truth
    reproducible_why: str = ""
    weights_sha256: str
    weights_uri: str = ""
    run_id: str = ""
    wall_s: Real
    compute_s: Real
    exposed_communication_s: Real
    idle_s: Real
    recovery_s: Real
    ledger_uri: str = ""
    trace_uri: str = ""
    checkpoint_uri: str = ""
    staleness: list[Whole] = []
    skipped_updates: Whole = 0
    attempts: Whole = 1
    recoveries: Whole = 0
    steps_lost: Whole = 0


class MetricValues(View):
    """The values of a metric of a job: the newest value and its step, the lowest and the highest. A value that was not
    a finite number counts for none of them."""

    last: float
    min: float
    max: float
    step: int


class JobView(View):
    """A job as `GET /jobs/{id}` shows it.

    Attributes:
        metrics: what the metrics that a list was asked for came to; left out where it was asked for none.
        surplus: where workers above `workers.min` come from on this cluster, in words; empty if there are none and
            none are requested.
    """

    id: str
    name: str
    project: str
    labels: dict[str, str]
    owner: str
    spec: dict[str, Any]
    state: State
    pending_reason: Why | None
    reason: Why | None
    attempt: int
    generation: int
    world_size: int
    progress: Progress
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    failures: Failures
    totals: Totals = Totals()
    surplus: str = ""
    result: Result | None
    tracking: Tracking
    urls: Urls
    metrics: Annotated[dict[str, MetricValues] | None, Field(exclude_if=lambda value: value is None)] = None


class JobPage(View):
    """A page of jobs."""

    items: list[JobView]
    next_cursor: str | None


class Facets(View):
    """The attributes of the newest jobs of a list, by which it can be filtered, sorted and shown.

    Attributes:
        jobs: how many jobs were looked at, the newest that match.
        labels: the values of each label.
        params: the names of parameters whose values are no lists and no mappings.
    """

    jobs: int
    owners: list[str]
    projects: list[str]
    labels: dict[str, list[str]]
    params: list[str]
    metrics: list[str]


class GroupValues(View):
    """The values of a metric of a group of jobs: the lowest and the highest value of all, the newest of the newest job
    that has one, and how many have one."""

    last: float
    min: float
    max: float
    jobs: int


class JobGroup(View):
    """The jobs with the same value of a label or parameter.

    Attributes:
        value: None for the jobs without one.
        filter: the `label` or `param` with which a list has these jobs.
    """

    value: str | None
    filter: str
    jobs: int
    metrics: dict[str, GroupValues]


class JobGroups(View):
    """Jobs in groups, the greatest first, those without the value last. `more`: there are groups beyond these."""

    groups: list[JobGroup]
    more: bool


class EventView(View):
    """Something that happened: job.<state>, worker.joined, worker.left, worker.lost, generation.formed, recovered,
    exchange.chosen (`algorithm`, `ways`, `costs`: which schedule sums which buckets), warning (`about`, `message`,
    `hint`: something that the job asked for and does not get, or that will fail)."""

    seq: int
    type: str
    at: datetime
    attempt: int
    generation: int
    data: dict[str, Any]


class WorkerView(View):
    """A worker or server of a running job. `shards` is [start, stop) of the logical shards it owns, `address` that
    of its node.

    What its process and all that this has started use was measured a few seconds ago; null: not yet, or not there.
    `cpu_percent` is of one core.
    """

    id: str
    role: str
    rank: Whole | None
    pid: Whole
    node: str
    state: str
    generation: Whole
    shards: tuple[Whole, Whole]
    cpu_percent: Real | None = None
    memory_bytes: Whole | None = None
    gpu_memory_bytes: Whole | None = None
    address: str = ""


class MetricPoint(View):
    """One value of one metric at one settled step."""

    step: int
    value: float
    at: datetime
    generation: int


class ComparedJob(View):
    """A job whose curves are compared, as a legend names it."""

    id: str
    name: str
    project: str
    state: State
    started_at: datetime | None


class ComparedCurve(View):
    """One metric of one job, by columns: `times` are Unix seconds. A value that is not a number is null."""

    job: str
    name: str
    steps: list[int]
    times: list[float]
    values: list[float | None]


class Comparison(View):
    """Curves of several jobs. `left_out` are those that do not exist, or that the caller may not read."""

    jobs: list[ComparedJob]
    curves: list[ComparedCurve]
    left_out: list[str]


class LogLine(View):
    """One line printed by a worker or the supervisor."""

    seq: int
    at: datetime
    worker: str
    level: str
    line: str


class Finding(View):
    """One wrong key: its JSON pointer, the value given, and what is allowed."""

    pointer: str
    value: Any = None
    allowed: str = ""
    message: str = ""


class Problem(View):
    """An error body (RFC 9457, application/problem+json)."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str
    code: str
    hint: str = ""
    errors: list[Finding] = []
    request_id: str = ""
