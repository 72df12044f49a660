"""What an admitted job needs next, from its row and whether its supervisor lives. Pure."""

from dataclasses import dataclass
from datetime import datetime

from ringleader.wire.states import Reason, State
from ringleader.wire.views import Why

TEARDOWN_S = 15.0
"""What a supervisor gets beyond its grace before it is released without having said how it ended."""


PLACES_S = 60.0
"""How long an attempt may be without places: what it was promised may have gone, with a node or to others."""


@dataclass(frozen=True, slots=True)
class Facts:
    """The part of a job's row that decides what is done next.

    Attributes:
        launched: the backend has confirmed the attempt's supervisor.
        outcome: the supervisor has said how the attempt ended.
        wanted, sized: (min, max) workers asked for, and what the supervisor was last told.
        pausing: it is stopped to be paused.
        due_at: when the running time over all attempts is used up.
    """

    job_id: str
    attempt: int
    state: State
    launched: bool
    outcome: bool
    cancel_sent: bool
    pausing: bool
    wanted: tuple[int, int]
    sized: tuple[int, int] | None
    attempt_at: datetime
    due_at: datetime | None
    stopping_at: datetime | None
    grace_s: float


@dataclass(frozen=True, slots=True)
class Start:
    """Ask the backend for the attempt's supervisor."""


@dataclass(frozen=True, slots=True)
class Adopt:
    """The supervisor is there although nobody confirmed it: confirm it."""


@dataclass(frozen=True, slots=True)
class Resize:
    """Tell the supervisor the new bounds."""

    workers_min: int
    workers_max: int


@dataclass(frozen=True, slots=True)
class Lose:
    """The attempt is over without an outcome: try again or fail."""

    why: Why


@dataclass(frozen=True, slots=True)
class Recall:
    """The attempt has found no room: queue the job again, at no cost to its budget."""


@dataclass(frozen=True, slots=True)
class Stop:
    """End the job as failed."""

    why: Why


@dataclass(frozen=True, slots=True)
class Cancel:
    """Ask the supervisor to end within its grace."""


@dataclass(frozen=True, slots=True)
class Pause:
    """Ask the supervisor to save what the attempt holds and to end, within its grace."""


@dataclass(frozen=True, slots=True)
class Release:
    """Free everything the attempt holds."""


@dataclass(frozen=True, slots=True)
class Finish:
    """Nothing of the attempt is left: move to the stored target."""


Act = Start | Adopt | Resize | Lose | Recall | Stop | Cancel | Pause | Release | Finish


def next_act(
    job: Facts,
    *,
    alive: bool,
    placed: bool,
    missing_s: float,
    now: datetime,
    vanish_after_s: float,
    start_timeout_s: float,
) -> Act | None:
    """The one next thing to do for an admitted job, or None.

    Args:
        alive: the backend lists this attempt's supervisor.
        placed: its gang has places, or nobody knows.
        missing_s: for how long it has not.
    """
    if job.state is State.STOPPING:
        return _stopping(job, alive, now)
    waited_s = (now - job.attempt_at).total_seconds()
    if job.state is State.STARTING and waited_s > start_timeout_s:
        return Lose(_why("it did not start training within {:.0f} s", start_timeout_s))
    if not job.launched:
        return Adopt() if alive else Start()
    if not alive:
        return Lose(_why("its supervisor vanished")) if missing_s >= vanish_after_s else None
    if job.state is State.STARTING and not placed and waited_s > PLACES_S:
        return Recall()
    return _running(job, now)


def _running(job: Facts, now: datetime) -> Act | None:
    if job.due_at is not None and now >= job.due_at:
        return Stop(_overdue())
    if job.sized != job.wanted:
        return Resize(*job.wanted)
    return None


def _stopping(job: Facts, alive: bool, now: datetime) -> Act | None:
    if not alive:
        return Finish()
    waited_s = (now - (job.stopping_at or now)).total_seconds()
    if job.outcome or waited_s > job.grace_s + TEARDOWN_S:
        return Release()
    if job.cancel_sent:
        return None
    return Pause() if job.pausing else Cancel()


def _why(message: str, *values: object) -> Why:
    return Why(
        code=Reason.PLATFORM_ERROR,
        message=message.format(*values),
        hint="See the job's events and logs; the cluster's own logs say why a process ended.",
    )


def _overdue() -> Why:
    return Why(
        code=Reason.MAX_RUNTIME,
        message="the job has used up max_runtime_s",
        hint="Raise max_runtime_s and submit again.",
    )
