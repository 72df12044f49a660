"""What travels between supervisor, workers and control plane over Ray. No torch in here: the supervisor starts fast."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from ringleader.accounts import RunAs
from ringleader.checkpoint.manifest import SavedPart
from ringleader.comm.timeline import TimelineStretch
from ringleader.elastic.instructions import Role
from ringleader.spec import JobSpec
from ringleader.wire.views import Spent

NAMESPACE = "ringleader"
WORKER_THREADS = 8
"""Threads of a worker's actor: one trains, the others take the supervisor's words."""
WORKING = frozenset({"forward", "backward"})
"""What a training thread does by itself for its part of a step; in other phases it waits for others, or no deadline
runs but that of `OWN`."""
OWN = frozenset({"update", "between"})
"""What it does by itself beside that: an update with what happens once a step, and the program's own code behind a step
or between two session calls. That takes as long as it does, unless others wait."""
BEAT_S = 0.2
GONE_S = 10.0
"""Who keeps idle processes answers within this."""
AWAY_S = 30.0
"""A worker that hears nothing from its supervisor for so long ends itself: one that was killed is back long before."""
PACKAGE = "package"


@dataclass(frozen=True, slots=True)
class AttemptLaunch:
    """Everything an attempt starts from. Ray's control store keeps it as long as the attempt lives, for the actor may
    be started again with it: so it holds no secret of the job, only the token that asks for them.

    Attributes:
        package: the packed working directory, where the job has one; beside the spool once `set_down`.
        ingest_url: where settled records are posted, with `ingest_token`.
        home: RINGLEADER_HOME; spools and artifacts lie below it.
        api_gone_s: an attempt whose control plane never answered for so long gives up.
        run_as: under which account the job's program runs; None: the stack's own.
    """

    job_id: str
    attempt: int
    spec: JobSpec
    package: bytes | None
    ingest_url: str
    ingest_token: str
    home: Path
    api_gone_s: float = 86_400.0
    run_as: RunAs | None = None

    @property
    def name(self) -> str:
        return attempt_name(self.job_id, self.attempt)

    @property
    def open_home(self) -> Path:
        """Below it lies what the job's program writes: where that has another account, apart from the home."""
        return Path(self.home) if self.run_as is None else self.run_as.folder

    @property
    def artifacts(self) -> Path:
        return Path(self.home) / "jobs" / self.job_id / "artifacts"

    @property
    def left(self) -> Path:
        """Where members leave them."""
        return self.open_home / "jobs" / self.job_id / "artifacts"

    @property
    def ledgers(self) -> Path:
        """The rows of all attempts so far."""
        return self.artifacts.parent / "ledger"

    @property
    def checkpoints(self) -> str:
        """The URI of their folder."""
        uri = self.spec.checkpoint.uri or str(self.open_home / "checkpoints")
        return f"{uri.rstrip('/')}/{self.job_id}"

    @property
    def spool(self) -> Path:
        return spool_of(Path(self.home), self.job_id, self.attempt)

    def set_down(self) -> "AttemptLaunch":
        """With the package in a file: Ray keeps only small arguments for an actor that it may start again."""
        if self.package is None:
            return self
        self.spool.mkdir(parents=True, exist_ok=True, mode=0o700)
        partial = self.spool / f"{PACKAGE}.partial"
        partial.write_bytes(self.package)
        partial.replace(self.spool / PACKAGE)
        return replace(self, package=None)

    def packed(self) -> bytes | None:
        """The package, wherever it is."""
        path = self.spool / PACKAGE
        return path.read_bytes() if self.package is None and path.exists() else self.package

    @property
    def scratch(self) -> Path:
        """Private folders of the workers of this attempt, one a worker, on each node."""
        return self.open_home / "scratch" / f"{self.job_id}-a{self.attempt}"


def spool_of(home: Path, job_id: str, attempt: int) -> Path:
    """The folder of an attempt's records that are not posted yet."""
    return home / "spool" / f"{job_id}-a{attempt}"


def attempt_name(job_id: str, attempt: int) -> str:
    return f"job-{job_id}-a{attempt}"


def parse_name(name: str) -> tuple[str, int] | None:
    """The (job id, attempt) of a supervisor's actor name; None for other actors."""
    head, _, attempt = name.rpartition("-a")
    if not head.startswith("job-") or not attempt.isdigit():
        return None
    return head.removeprefix("job-"), int(attempt)


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """Which process a worker is. `life`: what `runtime.life.own` says there."""

    pid: int
    node: str
    host: str
    life: int = -1


@dataclass(frozen=True, slots=True)
class ParkMessage:
    """A worker waits for a plan: `train.seams.Parked` and who says it."""

    worker: str
    identity: ProcessIdentity
    generation: int
    applied: int
    step: int
    why: str
    followed: int = 0
    astray: str = ""
    call: int = 0
    caught_up: bool = False


@dataclass(frozen=True, slots=True)
class MemberTask:
    """What a process needs to be a member of one attempt."""

    job_id: str
    attempt: int
    worker: str
    role: Role
    spec: JobSpec
    artifacts: Path
    scratch: Path
    checkpoints: str
    run_as: RunAs | None = None

    @property
    def folder(self) -> Path:
        """This worker's private working directory."""
        return self.scratch / self.worker

    @property
    def prefix(self) -> str:
        """Under which this attempt's members meet."""
        return attempt_name(self.job_id, self.attempt)


@dataclass(frozen=True, slots=True)
class PrintedLine:
    """One printed line.

    Attributes:
        at: seconds since the epoch.
        before: the session call before which it stands in the program, where it is no call that printed it: all members
            print the same there, see `Told`.
        number: of such a line, among those of its level before that call.
    """

    at: float
    level: Literal["info", "error"]
    text: str
    before: int | None = None
    number: int = 0


@dataclass(frozen=True, slots=True)
class SettledMetrics:
    """All values of one settled step."""

    step: int
    generation: int
    values: dict[str, float]


@dataclass(frozen=True, slots=True)
class SettledRows:
    """The settled rows of one step: little-endian int32 shards and int64 rows."""

    step: int
    shards: bytes
    rows: bytes


@dataclass(frozen=True, slots=True)
class WorkerEvent:
    """An event that a worker tells."""

    kind: str
    generation: int
    data: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Attendance:
    """What a worker answers to a supervisor that looks for it.

    Attributes:
        busy: it was given its task.
        generation: the newest plan that it has.
        standing: with what it waits for the plan after that.
    """

    identity: ProcessIdentity
    busy: bool
    generation: int = 0
    standing: ParkMessage | None = None


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """A sign of life from a worker's control thread, with what became settled since the last one that was heard.

    Attributes:
        number: of what it brings (from `metrics` on). What was not heard is told again, under the same number.
        standing: with what it waits for a plan, while it does: what it said when it parked may not have been heard.
        moves: grows whenever the training thread gets on.
        spent: what became of the time since the training function was called.
        worked, worked_s: pieces of steps computed since the generation's first commit, and how long that took
            without waiting for others.
        healed_ago_s, committed_ago_s: how long ago the generation's first work and first commit were; told once.
        lines_dropped: printed lines that did not fit into the worker's memory.
    """

    worker: str
    identity: ProcessIdentity
    generation: int = 0
    step: int = 0
    total_steps: int | None = None
    epoch: int = 0
    phase: str = ""
    moves: int = 0
    worked: int = 0
    worked_s: float = 0.0
    spent: Spent | None = None
    number: int = 0
    standing: ParkMessage | None = None
    healed_ago_s: float | None = None
    committed_ago_s: float | None = None
    metrics: tuple[SettledMetrics, ...] = ()
    rows: tuple[SettledRows, ...] = ()
    events: tuple[WorkerEvent, ...] = ()
    stretches: tuple[TimelineStretch, ...] = ()
    saved: tuple[SavedPart, ...] = ()
    lines: tuple[PrintedLine, ...] = ()
    lines_dropped: int = 0

    @property
    def records(self) -> bool:
        """Whether it brings anything but printed lines."""
        return bool(self.metrics or self.rows or self.events or self.stretches or self.saved)


@dataclass(frozen=True, slots=True)
class SecretsAnswer:
    """The values of a job's secrets, as a worker is answered. `refused` is why it gets nothing, for good."""

    values: dict[str, str] = field(default_factory=dict, repr=False)
    refused: str = ""


@dataclass(frozen=True, slots=True)
class RunEnded:
    """How a worker's run ended. `result` is what `train.run.Finished` holds, where it finished."""

    kind: Literal["finished", "dismissed", "raised", "failed"]
    reason: str = ""
    message: str = ""
    hint: str = ""
    step: int = -1
    shard: int = -1
    result: dict[str, Any] = field(default_factory=dict)
