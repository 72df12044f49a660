"""The state changes of jobs, made here alone: over a legal edge, in one transaction with their event."""

from datetime import datetime
from typing import Any

from sqlalchemy.orm import Session

from ringleader.wire.states import EDGES, State
from ringleader.wire.views import Why
from ringleader_api.problems import Conflict
from ringleader_api.store.listed import duration_s
from ringleader_api.store.spent import failures_spent, settle, together
from ringleader_api.store.tables import Event, Job

MOST_GENERATIONS = (1 << 31) - 1
"""The most generations that the column holds: the number is reported by a job's own process."""


class IllegalMove(Conflict):
    """There is no such edge in `wire.states.EDGES`."""

    code = "illegal_move"

    def __init__(self, job_id: str, before: State, to: State) -> None:
        allowed = ", ".join(sorted(EDGES[before])) or "no other state: it has ended"
        super().__init__(
            f"job {job_id} cannot go from {before} to {to}.",
            hint=f"From {before} it can go to {allowed}.",
        )


def move(
    session: Session,
    job: Job,
    to: State,
    *,
    at: datetime,
    who: str,
    why: Why | None = None,
    target: State | None = None,
) -> None:
    """Move `job` to state `to` and write its event.

    Args:
        who: who decided it: user, scheduler, supervisor, reconciler.
        why: for `queued` what it waits for; for `stopping` and ends the reason of the end.
        target: for `stopping` only: the end it will reach.

    Raises:
        IllegalMove: there is no such edge.
    """
    before = job.state
    if to not in EDGES[before]:
        raise IllegalMove(job.id, before, to)
    if (target is not None) != (to is State.STOPPING) or (target is not None and target not in EDGES[to]):
        raise ValueError(f"moving to {to} with target {target}")
    job.state = to
    job.version += 1
    _mark(job, before, to, at)
    data: dict[str, Any] = {"who": who, "from": before.value}
    if target is not None:
        job.target = target
        data["target"] = target.value
    _explain(job, to, why, data)
    record(session, job, f"job.{to.value}", at, data)


def retarget(
    session: Session, job: Job, target: State, *, at: datetime, who: str, why: Why | None = None
) -> None:
    """Give a job that was about to be paused another end.

    Raises:
        IllegalMove: it is not on its way to a pause, or there is no such edge.
    """
    if job.state is not State.STOPPING or job.target is not State.PAUSED or target not in EDGES[job.state]:
        raise IllegalMove(job.id, job.state, target)
    # `cancel_sent` anew: the supervisor was told to save, and is now told of the other end.
    job.target, job.stopping_at, job.cancel_sent = target, at, False
    job.version += 1
    data: dict[str, Any] = {"who": who, "from": State.STOPPING.value, "target": target.value}
    _explain(job, State.STOPPING, why, data)
    record(session, job, "job.stopping", at, data)


def stay_paused(session: Session, job: Job, *, at: datetime, who: str, why: Why) -> None:
    """Keep a job paused that was to be queued again once it has released everything, with the reason of this pause."""
    job.preempted = False
    job.version += 1
    data: dict[str, Any] = {"who": who, "from": State.STOPPING.value, "target": State.PAUSED.value}
    _explain(job, State.STOPPING, why, data)
    record(session, job, "job.stopping", at, data)


def record(
    session: Session,
    job: Job,
    kind: str,
    at: datetime,
    data: dict[str, Any],
    *,
    generation: int | None = None,
) -> None:
    """Append an event to the job's own numbering."""
    # No number is given twice: whoever writes an event has the job's row locked.
    job.event_seq += 1
    session.add(
        Event(
            job_id=job.id,
            seq=job.event_seq,
            type=kind,
            at=at,
            attempt=job.attempt,
            generation=job.generation if generation is None else generation,
            data=data,
        )
    )


def _explain(job: Job, to: State, why: Why | None, data: dict[str, Any]) -> None:
    job.pending_reason = why.model_dump() if why and to is State.QUEUED else None
    if why is not None:
        data["reason"] = why.model_dump()
        if to in (State.STOPPING, State.PAUSED) or to.ended:
            job.reason = why.model_dump()
    if to is State.QUEUED:
        job.reason = None


def _mark(job: Job, before: State, to: State, at: datetime) -> None:
    """Set the times and counts that depend on a move."""
    if to is State.STARTING:
        job.attempt_at = at
        job.heard_at = job.outcome_at = job.stopping_at = job.sized_min = job.sized_max = None
        job.launched = job.cancel_sent = False
        # Before the next attempt trains: steps up to here that it repeats are lost ones.
        job.reached = max(job.reached, job.step)
        job.generations_before = min(MOST_GENERATIONS, job.generations_before + job.generation)
        job.generation = 0
        job.spent_before = together(job.spent_before, job.spending).model_dump()
        job.spending = None
    # Not after a recovery, which is part of the running time.
    if to is State.RUNNING and before is State.STARTING:
        job.running_since = at
        job.started_at = job.started_at or at
    if to is State.QUEUED:
        job.queued_at = at
    if to is State.STOPPING:
        job.stopping_at = at
    if not to.holds and job.running_since is not None:  # what it tells while it stops counts too
        job.ran_s += together(job.spending).wall_s
        job.running_since = None
    if not to.holds:
        job.world_size = 0
        job.workers = []
    if to is State.PAUSED:  # what the attempt has spent stays spent
        settle(job, failures_spent(job))
    if to.ended:
        job.finished_at = at
        job.duration_s = duration_s(job.started_at, at)
