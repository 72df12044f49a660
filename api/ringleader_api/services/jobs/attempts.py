"""The end of an attempt: another one while the budget lasts, else the end of the job."""

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy.orm import Session

from ringleader.wire.states import RETRIED, State
from ringleader.wire.views import Why
from ringleader_api.services.jobs.checkpoints import checkpoints_of
from ringleader_api.store import move
from ringleader_api.store.spent import failures_spent, settle
from ringleader_api.store.tables import Job

TRUE_STATES = frozenset({State.STARTING, State.RUNNING, State.RECOVERING})


def attempt_failed(session: Session, job: Job, why: Why, *, at: datetime, who: str) -> None:
    """Queue the next attempt if the cluster caused the failure and the budget allows; else stop the job as failed.

    A failed attempt costs one of `max_failures`, or what it has already spent itself if that is more. Steps give back
    what was spent before, see `failures_spent`.
    """
    spent, budget = failures_spent(job), job.spec["max_failures"]
    if why.code not in RETRIED or spent >= budget:
        move(session, job, State.STOPPING, at=at, who=who, why=why, target=State.FAILED)
        return
    # At least one: the failures that the attempt has reported itself are in `spent` already.
    spent += max(1, job.failures_reported) - job.failures_reported
    _follow(session, job, why, spent, f"Failures spent: {spent} of {budget} (max_failures).", at=at, who=who)


def attempt_uprooted(session: Session, job: Job, why: Why, *, at: datetime, who: str) -> None:
    """Queue the next attempt: the node or the cluster under this one was lost, which is no failure of the job. Failures
    that the attempt had spent stay spent."""
    hint = "Its node or the whole cluster was lost; this does not count against max_failures."
    _follow(session, job, why, failures_spent(job), hint, at=at, who=who)


def _follow(session: Session, job: Job, why: Why, spent: int, hint: str, *, at: datetime, who: str) -> None:
    settle(job, spent)
    message = (
        f"attempt {job.attempt} ended ({why.message.removesuffix('.')}); attempt {job.attempt + 1} follows"
    )
    if (unsaved := _unsaved(session, job)) is not None:
        message = (
            f"{message}, starting from {unsaved}; {_steps(job.step - unsaved.step)} will be trained again"
        )
    move(session, job, State.QUEUED, at=at, who=who, why=Why(code="retrying", message=message, hint=hint))


def paused_behind(session: Session, job: Job, why: Why) -> Why:
    """The reason `why` a job is paused; it names the step to resume from if the newest one was not saved."""
    unsaved = _unsaved(session, job)
    if unsaved is None:
        return why
    message = f"{why.message.removesuffix('.')}; step {job.step} was not saved, and resuming continues from {unsaved}"
    return why.model_copy(update={"message": message})


@dataclass(frozen=True, slots=True)
class _Beginning:
    """The step with which the next attempt will begin."""

    step: int
    saved: bool

    def __str__(self) -> str:
        return (
            f"step {self.step}, the newest checkpoint"
            if self.saved
            else "step 0, because there is no checkpoint"
        )


def _unsaved(session: Session, job: Job) -> _Beginning | None:
    """The step from which the job goes on, if it lies behind the one it had reached; None otherwise."""
    newest = next(iter(checkpoints_of(session, job.id)), None)
    found = _Beginning(newest.step if newest else 0, newest is not None)
    return found if job.step > found.step else None


def _steps(count: int) -> str:
    return f"{count} step" if count == 1 else f"{count} steps"
