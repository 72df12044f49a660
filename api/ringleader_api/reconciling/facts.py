"""A job's row as the facts that decide what is done next."""

from datetime import datetime, timedelta

from ringleader.wire.states import State
from ringleader_api.scheduling import Facts
from ringleader_api.services.attempts import TRUE_STATES
from ringleader_api.services.claims import allowed
from ringleader_api.store.tables import Job

FOREVER_S = 100 * 365 * 86_400.0
"""What a longer limit of running time counts for: a job file may name one that no date can hold."""
PAUSE_GRACE_S = 600.0
"""How long a step, and the writing of a checkpoint, may take. After that the job is paused as its last one left it."""


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
        attempt_at=job.attempt_at or job.queued_at,
        due_at=_due_at(job),
        stopping_at=job.stopping_at,
        grace_s=PAUSE_GRACE_S if pausing else job.grace_s,
        heard_at=job.heard_at,
        trouble=job.pending_reason["code"] if job.pending_reason else "",
    )


def _due_at(job: Job) -> datetime | None:
    limit_s = job.spec["max_runtime_s"]
    if limit_s is None or job.running_since is None or job.state not in TRUE_STATES:
        return None
    return job.running_since + timedelta(seconds=min(FOREVER_S, max(0.0, limit_s - job.ran_s)))
