"""The next act for an admitted job, decided from its row and whether its supervisor lives. Pure."""

from dataclasses import dataclass
from datetime import datetime

from ringleader.wire.states import Reason, State
from ringleader.wire.views import Why

TEARDOWN_S = 15.0
"""The seconds beyond its grace after which a supervisor is released that has not said how it ended."""

PLACES_S = 60.0
"""The seconds that an attempt may lack places: those it was promised may have gone, with a node or to others."""
SILENT, FROZEN = "supervisor_silent", "supervisor_frozen"
"""The codes of a running job's `pending_reason` for a supervisor that posts nothing."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Time limits, in seconds.

    Attributes:
        vanish_after_s: a supervisor that was not listed for so long is gone.
        start_timeout_s: an attempt may take so long until it trains.
        silent_after_s: a supervisor that was heard and posts nothing for so long is asked whether it lives.
        frozen_after_s: one that does not answer then either, whenever it is asked, is given up after so long.
    """

    vanish_after_s: float = 1.0
    start_timeout_s: float = 300.0
    silent_after_s: float = 15.0
    frozen_after_s: float = 60.0


@dataclass(frozen=True, slots=True)
class Silence:
    """The silence of a supervisor, as of this round.

    Attributes:
        for_s: it has posted nothing for so long.
        ask: it is time to ask the cluster about it.
        broken: it has posted since the last look.
    """

    for_s: float = 0.0
    ask: bool = False
    broken: bool = False


@dataclass(frozen=True, slots=True)
class Facts:
    """The part of a job's row that decides its next act.

    Attributes:
        launched: the backend has confirmed the attempt's supervisor.
        outcome: the supervisor has said how the attempt ended.
        wanted, sized: (min, max) workers asked for, and what the supervisor was last told.
        pausing: it is stopped to be paused.
        limit_s: what the attempts before this one have left of the job's running time.
        ran_s: for how long this one has run, as its supervisor told last.
        heard_at: when the supervisor posted last, by the clock of whoever took it; None: it has not yet.
        trouble: the code of what is told of its supervisor while it runs.
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
    stopping_at: datetime | None
    grace_s: float
    limit_s: float | None = None
    ran_s: float = 0.0
    heard_at: datetime | None = None
    trouble: str = ""


@dataclass(frozen=True, slots=True)
class StartAttempt:
    """Ask the backend for the attempt's supervisor."""


@dataclass(frozen=True, slots=True)
class AdoptAttempt:
    """Confirm the supervisor, which is there although nobody noted it."""


@dataclass(frozen=True, slots=True)
class ResizeAttempt:
    """Send the new bounds to the supervisor."""

    workers_min: int
    workers_max: int


@dataclass(frozen=True, slots=True)
class LoseAttempt:
    """Give up the attempt, which is over without an outcome: try again, or fail the job."""

    why: Why


@dataclass(frozen=True, slots=True)
class RecallAttempt:
    """Queue the job again at no cost to its budget: the attempt has found no room."""


@dataclass(frozen=True, slots=True)
class StopJob:
    """End the job as failed."""

    why: Why


@dataclass(frozen=True, slots=True)
class CancelAttempt:
    """Ask the supervisor to end within its grace."""


@dataclass(frozen=True, slots=True)
class PauseAttempt:
    """Ask the supervisor to save what the attempt holds and to end, within its grace."""


@dataclass(frozen=True, slots=True)
class ReleaseAttempt:
    """Free everything the attempt holds."""


@dataclass(frozen=True, slots=True)
class FinishJob:
    """Move the job to its stored target: nothing of the attempt is left."""


@dataclass(frozen=True, slots=True)
class AskCluster:
    """Ask the cluster whether the silent supervisor answers, then `judge`."""


@dataclass(frozen=True, slots=True)
class ReportTrouble:
    """Report a problem with the supervisor while the job runs on; None: it posts again."""

    why: Why | None


Act = (
    AskCluster
    | ReportTrouble
    | StartAttempt
    | AdoptAttempt
    | ResizeAttempt
    | LoseAttempt
    | RecallAttempt
    | StopJob
    | CancelAttempt
    | PauseAttempt
    | ReleaseAttempt
    | FinishJob
)


def next_act(
    job: Facts,
    *,
    alive: bool,
    placed: bool,
    missing_s: float,
    lasting_s: float,
    silence: Silence,
    limits: Limits,
) -> Act | None:
    """The one next act for an admitted job, or None.

    Args:
        alive: the backend lists this attempt's supervisor.
        placed: its gang has places, or nobody knows.
        missing_s: for how long it has not.
        lasting_s: for how long the job has been starting, running or stopping, at least.
    """
    # First: a job that is to end needs none of what follows, whatever its supervisor does.
    if job.state is State.STOPPING:
        return _stopping(job, alive, lasting_s)
    # Also where the supervisor lives: one that trains nothing holds its gang's places for nobody.
    if job.state is State.STARTING and lasting_s > limits.start_timeout_s:
        return LoseAttempt(_why("it did not start training within {:.0f} s", limits.start_timeout_s))
    if not job.launched and (alive or job.state is State.STARTING):
        return AdoptAttempt() if alive else StartAttempt()
    if not alive:  # it may have gone before anybody confirmed it
        return (
            LoseAttempt(_why("its supervisor disappeared from the cluster"))
            if missing_s >= limits.vanish_after_s
            else None
        )
    if job.state is State.STARTING and not placed and lasting_s > PLACES_S:
        return RecallAttempt()
    return _running(job, silence, lasting_s)


def judge(job: Facts, *, answers: bool, silent_s: float, unanswered_s: float, limits: Limits) -> Act | None:
    """The act for a silent supervisor, now that it has been asked.

    Args:
        silent_s: for how long it has posted nothing.
        unanswered_s: since the first of the questions that it has not answered. It may have been silent long before.
    """
    # One that answers is left alone, however long it is silent: its workers train, its records wait in its spool, and
    # whatever keeps its posts from us would keep those of the next attempt. One that does not answer is frozen. Its
    # workers have ended themselves by `frozen_after_s`, so nothing trains any more and nothing but it is lost.
    # Only after it was reported frozen: one missed answer alone never ends an attempt.
    if not answers and job.trouble == FROZEN and unanswered_s >= limits.frozen_after_s:
        return LoseAttempt(
            _why("its supervisor froze: it sent no report and gave no answer for {:.0f} s", unanswered_s)
        )
    why = _silent(silent_s) if answers else _frozen(silent_s, limits)
    return None if job.trouble == why.code else ReportTrouble(why)


def _running(job: Facts, silence: Silence, lasting_s: float) -> Act | None:
    # Its supervisor's own clock or ours, whichever is more: a supervisor may report nothing for long.
    ran_s = max(job.ran_s, lasting_s) if job.state is not State.STARTING else 0.0
    if job.limit_s is not None and ran_s >= job.limit_s:
        return StopJob(_overdue())
    if silence.ask:
        return AskCluster()
    if silence.broken and job.trouble in (SILENT, FROZEN):
        return ReportTrouble(None)
    # No call to a frozen supervisor: it would hang until its deadline, and hold up the round.
    if job.sized != job.wanted and job.trouble != FROZEN:
        return ResizeAttempt(*job.wanted)
    return None


def _stopping(job: Facts, alive: bool, lasting_s: float) -> Act | None:
    # Before the outcome: what its supervisor had to say is of no use once it is gone, and nothing is left to release.
    if not alive:
        return FinishJob()
    # Its own end is in, or it has overstayed its grace: nothing it could still say is waited for.
    if job.outcome or lasting_s > job.grace_s + TEARDOWN_S:
        return ReleaseAttempt()
    if job.cancel_sent:
        return None
    return PauseAttempt() if job.pausing else CancelAttempt()


def _why(message: str, *values: object) -> Why:
    return Why(
        code=Reason.PLATFORM_ERROR,
        message=message.format(*values),
        hint="Check the job's events and logs; Ray's own logs say why a process ended.",
    )


def _overdue() -> Why:
    return Why(
        code=Reason.MAX_RUNTIME,
        message="the job has used up max_runtime_s",
        hint="Raise max_runtime_s and submit again.",
    )


def _silent(silent_s: float) -> Why:
    return Why(
        code=SILENT,
        message=f"its supervisor is running, but no report from it has arrived for {silent_s:.0f} s",
        hint="Training continues, and the reports wait on the disk of the supervisor's node. Check whether that node "
        "can reach the address of this API.",
    )


def _frozen(silent_s: float, limits: Limits) -> Why:
    return Why(
        code=FROZEN,
        message=f"its supervisor has sent no report for {silent_s:.0f} s and does not answer",
        hint=f"After {limits.frozen_after_s:.0f} s without an answer it is ended, and the next attempt starts from "
        "the newest checkpoint.",
    )
