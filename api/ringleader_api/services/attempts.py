"""The end of an attempt: another one while the budget lasts, else the end of the job."""

from datetime import datetime

from sqlalchemy.orm import Session

from ringleader.wire.states import RETRIED, State
from ringleader.wire.views import Why
from ringleader_api.services.checkpoints import checkpoints_of
from ringleader_api.services.views import failures_spent
from ringleader_api.store import move
from ringleader_api.store.tables import Job

TRUE_STATES = frozenset({State.STARTING, State.RUNNING, State.RECOVERING})


def attempt_failed(session: Session, job: Job, why: Why, *, at: datetime, who: str) -> None:
    """Queue the next attempt if the failure is the cluster's and the budget allows; else stop as failed.

    A failed attempt costs one of `max_failures`, or what it has already spent itself if that is more.
    """
    spent, budget = failures_spent(job), job.spec["max_failures"]
    if why.code not in RETRIED or spent >= budget:
        move(session, job, State.STOPPING, at=at, who=who, why=why, target=State.FAILED)
        return
    spent = job.failures_before + max(1, job.failures_reported)
    _follow(session, job, why, spent, f"{spent} of {budget} failures are spent.", at=at, who=who)


def attempt_uprooted(session: Session, job: Job, why: Why, *, at: datetime, who: str) -> None:
    """Queue the next attempt: the node or the cluster under this one is gone, which is no failure of the job. What
    the attempt had spent stays spent."""
    hint = "Its node or the whole cluster was lost: no failure is spent."
    _follow(session, job, why, failures_spent(job), hint, at=at, who=who)


def _follow(session: Session, job: Job, why: Why, spent: int, hint: str, *, at: datetime, who: str) -> None:
    job.failures_before = spent
    job.failures_reported = 0
    message = f"attempt {job.attempt} ended ({why.message}); attempt {job.attempt + 1} follows"
    move(session, job, State.QUEUED, at=at, who=who, why=Why(code="retrying", message=message, hint=hint))


def paused_behind(session: Session, job: Job, why: Why) -> Why:
    """`why` a job is paused, and from where it goes on where that is not the step to which it had come."""
    newest = next(iter(checkpoints_of(session, job.id)), None)
    step = newest.step if newest else 0
    if job.step <= step:
        return why
    begins = f"step {step}, its newest checkpoint" if newest else "the beginning: it has no checkpoint"
    message = f"{why.message}; step {job.step} was not saved, and resuming goes on from {begins}"
    return why.model_copy(update={"message": message})
