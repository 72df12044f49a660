"""The messages between supervisor, workers and control plane over Ray. No torch in here: the supervisor starts fast."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from ringleader.accounts import RunAs
from ringleader.checkpoint.manifest import SavedPart
from ringleader.comm.timeline import TimelineStretch
from ringleader.elastic.events import ParkReport
from ringleader.elastic.instructions import Role
from ringleader.spec import JobSpec
from ringleader.wire.artifacts import SavedArtifact
from ringleader.wire.views import Spent

NAMESPACE = "ringleader"
WORKER_THREADS = 8
"""Threads of a worker's actor: one trains, the others take the supervisor's calls."""
WORKING = frozenset({"forward", "backward"})
"""The phases in which a training thread works by itself on its part of a step; in the others it waits for other
members, or no deadline runs but that of `OWN`."""
OWN = frozenset({"update", "between"})
"""The phases in which it works by itself beside that: an update with what happens once a step, and the program's own
code behind a step or between two session calls. They have a deadline only while others wait."""
BEAT_S = 0.2
GONE_S = 10.0
"""The seconds within which the warm pool or a supervisor answers a call; past them it counts as gone or away."""
AWAY_S = 30.0
"""The silence of its supervisor after which a worker ends itself: one that was killed is back long before."""
PACKAGE = "package"


@dataclass(frozen=True, slots=True)
class AttemptLaunch:
    """Everything an attempt starts from. Ray's control store keeps it for as long as the attempt lives, because
    the actor may be restarted with it: so it holds no secret of the job, only the token that asks for them.

    Attributes:
        package: the packed working directory, where the job has one; beside the spool once `set_down`.
        ingest_url: where settled records are posted, with `ingest_token`.
        home: RINGLEADER_HOME; spools and artifacts lie below it.
        api_gone_s: the silence of the control plane after which the attempt gives up.
        run_as: the account under which the job's program runs; None: the stack's own.
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
        """The folder below which the job's program writes; apart from the home where it has another account."""
        return Path(self.home) if self.run_as is None else self.run_as.folder

    @property
    def artifacts(self) -> Path:
        return Path(self.home) / "jobs" / self.job_id / "artifacts"

    @property
    def left(self) -> Path:
        """The folder in which members leave artifacts; that of `artifacts` unless they have another account."""
        return self.open_home / "jobs" / self.job_id / "artifacts"

    @property
    def ledgers(self) -> Path:
        """The folder with the row ledgers of all attempts so far."""
        return self.artifacts.parent / "ledger"

    @property
    def checkpoints(self) -> str:
        """The URI of the job's checkpoint folder."""
        uri = self.spec.checkpoint.uri or str(self.open_home / "checkpoints")
        return f"{uri.rstrip('/')}/{self.job_id}"

    @property
    def spool(self) -> Path:
        return spool_of(Path(self.home), self.job_id, self.attempt)

    def set_down(self) -> "AttemptLaunch":
        """Write the package to a file and return a copy without it."""
        if self.package is None:
            return self
        self.spool.mkdir(parents=True, exist_ok=True, mode=0o700)
        # Complete before it has its name: the control plane may die while it writes, and start the attempt again.
        partial = self.spool / f"{PACKAGE}.partial"
        partial.write_bytes(self.package)
        partial.replace(self.spool / PACKAGE)
        # Ray keeps only small arguments for an actor that it may restart.
        return replace(self, package=None)

    def packed(self) -> bytes | None:
        """The package's bytes, from memory or from its file; None without one."""
        path = self.spool / PACKAGE
        return path.read_bytes() if self.package is None and path.exists() else self.package

    @property
    def scratch(self) -> Path:
        """The folder of the private folders of this attempt's workers, one a worker, on each node."""
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
    """The process of a worker. `life`: the descriptor that `death_watch.own` returned there, -1 for none."""

    pid: int
    node: str
    host: str
    life: int = -1


@dataclass(frozen=True, slots=True)
class ParkMessage:
    """A worker's wait for a plan, with the process that sent it."""

    worker: str
    identity: ProcessIdentity
    report: ParkReport


@dataclass(frozen=True, slots=True)
class MemberTask:
    """Everything a process needs to be a member of one attempt."""

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
        """The name under which this attempt's members meet in the store."""
        return attempt_name(self.job_id, self.attempt)


@dataclass(frozen=True, slots=True)
class PrintedLine:
    """One printed line.

    Attributes:
        at: seconds since the epoch.
        before: the session call before which it stands in the program, where all members print the same, see
            `PrintedOnce`; None where a call, another thread or the platform printed it.
        number: its place among the lines of its level before that call.
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
    """An event that a worker reports."""

    kind: str
    generation: int
    data: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Attendance:
    """A worker's answer to a supervisor that looks for it.

    Attributes:
        busy: it was given its task.
        generation: the newest plan that it has.
        park_message: the message with which it waits for the next plan; None while it does not wait.
    """

    identity: ProcessIdentity
    busy: bool
    generation: int = 0
    park_message: ParkMessage | None = None


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """A sign of life from a worker's control thread, with what became settled since the last one that was heard.

    Attributes:
        number: that of its records (from `metrics` on). What was not acknowledged is sent again under the same number.
        park_message: its park message while it waits for a plan: the one sent when it parked may have been lost.
        moves: grows whenever the training thread gets on.
        spent: the time since the training function was called, by what it was spent on.
        worked, worked_s: pieces of steps computed since the generation's first commit, and how long that took
            without waiting for others.
        healed_ago_s, committed_ago_s: seconds since the generation's first work and first commit; sent once.
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
    park_message: ParkMessage | None = None
    healed_ago_s: float | None = None
    committed_ago_s: float | None = None
    metrics: tuple[SettledMetrics, ...] = ()
    rows: tuple[SettledRows, ...] = ()
    events: tuple[WorkerEvent, ...] = ()
    stretches: tuple[TimelineStretch, ...] = ()
    saved: tuple[SavedPart, ...] = ()
    artifacts: tuple[SavedArtifact, ...] = ()
    lines: tuple[PrintedLine, ...] = ()
    lines_dropped: int = 0

    @property
    def records(self) -> bool:
        """Whether it brings anything but printed lines."""
        return bool(
            self.metrics or self.rows or self.events or self.stretches or self.saved or self.artifacts
        )

    def without_records(self) -> "Heartbeat":
        """The sign of life alone, where its records and lines came in already."""
        return replace(
            self,
            metrics=(),
            rows=(),
            events=(),
            stretches=(),
            saved=(),
            artifacts=(),
            lines=(),
            lines_dropped=0,
        )


@dataclass(frozen=True, slots=True)
class SecretsAnswer:
    """The supervisor's answer to a worker that asks for the job's secrets. `refused`: why it gets none, for good."""

    # Not in the repr: a traceback or a log would show them.
    values: dict[str, str] = field(default_factory=dict, repr=False)
    refused: str = ""


@dataclass(frozen=True, slots=True)
class IndexAnswer:
    """The supervisor's answer to a worker that asks for an index of files.

    Attributes:
        state: "made", and here is the `index`; "makes", another node's worker is making it; "make", and hand it over;
            "own", make it for this node alone.
    """

    state: Literal["made", "makes", "make", "own"]
    index: bytes = field(default=b"", repr=False)


@dataclass(frozen=True, slots=True)
class RunEnded:
    """The end of a worker's run. `result`: the fields of `train.run.WorkerResult`, where it finished."""

    kind: Literal["finished", "dismissed", "raised", "failed"]
    reason: str = ""
    message: str = ""
    hint: str = ""
    step: int = -1
    shard: int = -1
    result: dict[str, Any] = field(default_factory=dict)
