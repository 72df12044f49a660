"""A job's row, reduced to the facts that decide its next act."""

from ringleader.wire.states import State
from ringleader_api.reconciling.round_clock import Mark
from ringleader_api.scheduling import Facts
from ringleader_api.services.jobs.claims import allowed
from ringleader_api.store.spent import together
from ringleader_api.store.tables import Job

PAUSE_GRACE_S = 600.0
"""The time, in seconds, that a step and the writing of a checkpoint may take. After that the job is paused as its last
checkpoint left it."""


def facts_of(job: Job) -> Facts:
    pausing = job.target is State.PAUSED
    return Facts(
        job_id=job.id,
        attempt=job.attempt,
        state=job.state,
        launched=job.launched,
        outcome=job.outcome_at is not None,
        cancel_sent=job.cancel_sent,
        pausing=pausing,
        wanted=(job.spec["workers"]["min"], allowed(job)),
        sized=(job.sized_min, job.sized_max)
        if job.sized_min is not None and job.sized_max is not None
        else None,
        stopping_at=job.stopping_at,
        grace_s=PAUSE_GRACE_S if pausing else job.grace_s,
        limit_s=_limit_s(job),
        # Of this attempt alone: what earlier ones ran is taken off `limit_s` already.
        ran_s=together(job.spending).wall_s,
        heard_at=job.heard_at,
        trouble=job.pending_reason["code"] if job.pending_reason else "",
    )


def mark_of(facts: Facts) -> Mark:
    """The mark of the attempt's phase: it changes when the attempt begins to run, to stop, or to stop for another
    end."""
    if facts.state is State.STARTING:
        return "starting", None
    return ("stopping", facts.stopping_at) if facts.state is State.STOPPING else ("running", None)


def _limit_s(job: Job) -> float | None:
    limit_s = job.spec["max_runtime_s"]
    return None if limit_s is None else max(0.0, limit_s - job.ran_s)
