"""What can happen to an attempt. Every event carries the time it was seen, in seconds of one monotonic clock."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Waiting:
    """There is no place on the cluster yet for a worker that was asked for."""

    worker: str
    now: float


@dataclass(frozen=True, slots=True)
class Placed:
    """A worker that had to wait has a place and is starting."""

    worker: str
    now: float


@dataclass(frozen=True, slots=True)
class Parked:
    """A worker waits for a plan.

    Attributes:
        generation: the one it leaves, 0 before its first.
        applied: transactions it has applied (steps and evaluations).
        step: global steps it has applied; negative for a server that has not got its part of the state: it is new.
        why: empty at a planned boundary, before its first plan, and where a shadow has the state of that boundary.
        followed: the number of the last pair in which it followed a member, 0 before any.
        astray: what a shadow holds otherwise than the member that it followed to this boundary.
        call: the number of the session call to which its program has come.
        caught_up: a shadow has run the program's lines up to the call of whom it asked, and there is nothing to follow.
    """

    worker: str
    generation: int
    applied: int
    step: int
    why: str
    now: float
    followed: int = 0
    astray: str = ""
    call: int = 0
    caught_up: bool = False


@dataclass(frozen=True, slots=True)
class CaughtUp:
    """A worker that shadows a member has applied all that the member has. `pair`: the number of theirs."""

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
"""The cause of a loss that nothing in the worker brought about."""


@dataclass(frozen=True, slots=True)
class Lost:
    """A worker's process is gone for certain."""

    worker: str
    cause: str
    now: float


@dataclass(frozen=True, slots=True)
class Explained:
    """Why a worker that was lost before had died: the cluster tells it later than the death itself."""

    worker: str
    cause: str
    now: float


@dataclass(frozen=True, slots=True)
class Evict:
    """A worker lives but must go: it is frozen or makes no progress. `since`: its last sign of that, where known."""

    worker: str
    cause: str
    now: float
    since: float | None = None


@dataclass(frozen=True, slots=True)
class Stalled:
    """A worker beats but has made no progress in `phase` for `since_s`. It is told, not acted on: see Evict."""

    worker: str
    phase: str
    since_s: float
    now: float


@dataclass(frozen=True, slots=True)
class Slow:
    """A worker computes slower than the others.

    Attributes:
        step_s, others_s: seconds of own computing for one step's equal share: its own, and the others' median.
        evict: it shall leave at the next boundary, for a new one.
    """

    worker: str
    step_s: float
    others_s: float
    evict: bool
    now: float


@dataclass(frozen=True, slots=True)
class Raised:
    """The training function raised at (step, slice); its worker is done."""

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
    """A worker passed the final barrier; `digest` is the SHA-256 of its weights."""

    worker: str
    digest: str
    now: float


@dataclass(frozen=True, slots=True)
class Resize:
    """The job shall have between `min` and `max` workers."""

    min: int
    max: int
    now: float


@dataclass(frozen=True, slots=True)
class Drain:
    """The machine of a worker or server goes away at `deadline`; `why` says how that is known."""

    worker: str
    deadline: float
    now: float
    why: str = ""


@dataclass(frozen=True, slots=True)
class Cancel:
    """The attempt shall end at the next boundary, at the latest after `grace_s`."""

    grace_s: float
    now: float


@dataclass(frozen=True, slots=True)
class Pause:
    """The attempt shall end at the next boundary, with a checkpoint of it; at the latest after `grace_s`, without."""

    grace_s: float
    now: float


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed.

    Attributes:
        patience_s: how long an interrupted member may take to park at the present pace.
        unhurried: workers for which that does not count: in start-up, a first step or an evaluation.
        saving_s: how long a step and the writing of a checkpoint have taken so far, at most.
    """

    now: float
    patience_s: float
    unhurried: frozenset[str] = frozenset()
    saving_s: float = 0.0


@dataclass(frozen=True, slots=True)
class WorkerFound:
    """What a supervisor that came back found of one worker.

    Attributes:
        process: here; gone for certain (`cause`); silent: it does not answer; none: it never got one.
        generation: the newest plan that the worker has, 0 without any.
        parked: what it says while it waits for the plan after that; None while it does not.
    """

    worker: str
    process: Literal["here", "gone", "silent", "none"]
    generation: int = 0
    parked: Parked | None = None
    cause: str = "died"


@dataclass(frozen=True, slots=True)
class Returned:
    """The supervisor is a new process: what it wrote down, it has; what was said meanwhile, and what the one before it
    did not get to say, is lost.

    Attributes:
        start: the number of this start of the supervisor.
        found: each worker that was written down.
    """

    start: int
    found: tuple[WorkerFound, ...]
    now: float


Event = (
    Waiting
    | Placed
    | Parked
    | CaughtUp
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
