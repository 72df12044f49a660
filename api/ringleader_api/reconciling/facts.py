"""The rows that a round of the reconciler begins with, each reduced to the facts that decide its job's next act."""

from sqlalchemy import select

from ringleader.wire.states import State
from ringleader_api.reconciling.round_clock import Mark, Who
from ringleader_api.scheduling import Facts
from ringleader_api.services.jobs.claims import ADMITTED, allowed
from ringleader_api.store import Transactions
from ringleader_api.store.spent import together
from ringleader_api.store.tables import Job

PAUSE_GRACE_S = 600.0
"""The time, in seconds, that a step and the writing of a checkpoint may take. After that the job is paused as its last
checkpoint left it."""
Alive = set[Who]
"""The supervisors that live, by job and attempt."""


def admitted_jobs(store: Transactions) -> list[Facts]:
    query = select(Job).where(Job.state.in_(ADMITTED)).order_by(Job.id)
    with store.read() as session:
        return [facts_of(job) for job in session.scalars(query)]


def orphans(store: Transactions, alive: Alive) -> list[Who]:
    """The supervisors of attempts that are over. Those of jobs that this database does not know are not ours to end."""
    with store.read() as session:
        query = select(Job.id, Job.attempt, Job.state).where(Job.id.in_({job_id for job_id, _ in alive}))
        known = {job_id: (attempt, state) for job_id, attempt, state in session.execute(query)}
    found = []
    for job_id, attempt in sorted(alive):
        # An unknown job counts as running its present attempt, which leaves its supervisor alone.
        current, state = known.get(job_id, (attempt, State.RUNNING))
        if attempt != current or state not in ADMITTED:
            found.append((job_id, attempt))
    return found


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
