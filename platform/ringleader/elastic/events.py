"""The events of an attempt. Each carries the time it was seen, in seconds of one monotonic clock."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Waiting:
    """The cluster has no place yet for a worker that was asked for."""

    worker: str
    now: float


@dataclass(frozen=True, slots=True)
class Placed:
    """A worker that had to wait has a place and is starting."""

    worker: str
    now: float


@dataclass(frozen=True, slots=True)
class ParkReport:
    """A worker's report while it waits for a plan.

    Attributes:
        generation: the one it leaves; 0 before its first.
        applied: transactions it has applied, steps and finished evaluations, as `Plan.start_step` counts them.
        step: global steps it has applied; for a server those in its part of the state, -1 while it lacks that part.
            Where items are leased, for display only.
        why: empty at a planned boundary, before the first plan, and where a follower has the state of that boundary;
            else the sentence of the broken exchange.
        followed: the number of the last pair in which it followed a member, 0 before any.
        astray: what differs from the state of the member that it followed to its boundary: it has to be healed.
        call: the number of the session call that its program has reached.
        caught_up: before its first seat it has run the program's lines up to the call of a member, and has nothing to
            follow.
        phases: phases of the next step that it has applied.
    """

    generation: int
    applied: int
    step: int
    why: str
    followed: int = 0
    astray: str = ""
    call: int = 0
    caught_up: bool = False
    phases: int = 0


@dataclass(frozen=True, slots=True)
class Parked:
    """A worker waits for a plan."""

    worker: str
    now: float
    report: ParkReport


@dataclass(frozen=True, slots=True)
class InSync:
    """A worker that follows a member has applied all that the member has. `pair`: the number of that pair."""

    worker: str
    now: float
    pair: int


@dataclass(frozen=True, slots=True)
class Seated:
    """A member has its plan and is connected to the others."""

    worker: str
    generation: int
    now: float


@dataclass(frozen=True, slots=True)
class Healed:
    """A member has the newest state and computes."""

    worker: str
    generation: int
    now: float


@dataclass(frozen=True, slots=True)
class Committed:
    """A member has applied `step` global steps."""

    worker: str
    generation: int
    step: int
    now: float


NODE_DIED = "node died"
"""The cause of a loss to which the worker itself contributed nothing."""


@dataclass(frozen=True, slots=True)
class Lost:
    """A worker's process is gone for certain."""

    worker: str
    cause: str
    now: float


@dataclass(frozen=True, slots=True)
class Explained:
    """The cause of an earlier loss, which the cluster tells later than the death itself."""

    worker: str
    cause: str
    now: float


@dataclass(frozen=True, slots=True)
class Evict:
    """A worker lives but must go: it is frozen or makes no progress. `since`: its last sign of life or progress, where
    known."""

    worker: str
    cause: str
    now: float
    since: float | None = None


@dataclass(frozen=True, slots=True)
class Stalled:
    """A worker sends heartbeats but has made no progress in `phase` for `since_s`. This is told, not acted on: see
    Evict."""

    worker: str
    phase: str
    since_s: float
    now: float


@dataclass(frozen=True, slots=True)
class Slow:
    """A straggler: a worker that computes slower than the others.

    Attributes:
        step_s, others_s: seconds of own computing for one step's equal share: its own, and the others' median.
        evict: whether it is to leave at the next boundary and be replaced.
    """

    worker: str
    step_s: float
    others_s: float
    evict: bool
    now: float


@dataclass(frozen=True, slots=True)
class Raised:
    """The training function raised at (step, slice), which ends its worker."""

    worker: str
    step: int
    slice: int
    traceback: str
    now: float


@dataclass(frozen=True, slots=True)
class Failed:
    """A worker ended for a reason that ends the attempt, in the words of `wire.states.Reason`."""

    worker: str
    reason: str
    message: str
    now: float
    hint: str = ""


@dataclass(frozen=True, slots=True)
class Finished:
    """A worker passed the final barrier; `digest` is the SHA-256 of its weights.

    Attributes:
        why: what of the program may make members differ, where they are to have the same bits; empty for nothing.
    """

    worker: str
    digest: str
    now: float
    why: str = ""


@dataclass(frozen=True, slots=True)
class Resize:
    """A request for between `workers_min` and `workers_max` workers."""

    workers_min: int
    workers_max: int
    now: float


@dataclass(frozen=True, slots=True)
class Drain:
    """A notice that the machine of a worker or server goes away at `deadline`; `why` says how that is known."""

    worker: str
    deadline: float
    now: float
    why: str = ""


@dataclass(frozen=True, slots=True)
class Cancel:
    """A request to end the attempt at the next boundary, at the latest after `grace_s`."""

    grace_s: float
    now: float


@dataclass(frozen=True, slots=True)
class Pause:
    """A request to end the attempt at the next boundary, with a checkpoint of it; at the latest after `grace_s`,
    without."""

    grace_s: float
    now: float


@dataclass(frozen=True, slots=True)
class Tick:
    """The passing of time.

    Attributes:
        patience_s: the time that an interrupted member may take to park at the present pace.
        unhurried: workers to which that does not apply: in start-up, a first step or an evaluation.
        saving_s: the most time that a step and the writing of a checkpoint have taken so far.
    """

    now: float
    patience_s: float
    unhurried: frozenset[str] = frozenset()
    saving_s: float = 0.0


@dataclass(frozen=True, slots=True)
class WorkerFound:
    """The state in which a returned supervisor found one worker.

    Attributes:
        process: here; gone for certain (`cause`); silent: it does not answer; none: it never got one.
        generation: the newest plan that the worker has, 0 without any.
        parked: its report while it waits for the plan after that; None while it does not.
    """

    worker: str
    process: Literal["here", "gone", "silent", "none"]
    generation: int = 0
    parked: Parked | None = None
    cause: str = "died"


@dataclass(frozen=True, slots=True)
class Returned:
    """The supervisor is a new process. It has what its predecessor wrote down; what was said meanwhile, and what its
    predecessor had still to say, is lost.

    Attributes:
        start: the number of this start of the supervisor.
        found: each worker that the predecessor wrote down.
    """

    start: int
    found: tuple[WorkerFound, ...]
    now: float


Event = (
    Waiting
    | Placed
    | Parked
    | InSync
    | Seated
    | Healed
    | Committed
    | Lost
    | Explained
    | Evict
    | Stalled
    | Slow
    | Raised
    | Failed
    | Finished
    | Resize
    | Drain
    | Cancel
    | Pause
    | Tick
    | Returned
)
