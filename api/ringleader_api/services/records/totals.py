"""A job over all its attempts: its cost (repeated steps, recoveries, generations, time), and whether it gives the same
bits again."""

from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from ringleader.wire.findings import DIFFERS, ELSEWHERE, why_of
from ringleader.wire.views import Result, Spent, Totals
from ringleader_api.store.moves import MOST_GENERATIONS
from ringleader_api.store.spent import together
from ringleader_api.store.tables import Event, Job

BEGINS_WITH = frozenset({"checkpoint.restored", "checkpoint.none"})
"""The events that name the step with which a later attempt begins."""
RECOVERED = "recovered"
MOST = 1 << 53
"""The largest number believed: event data is written by the job's own process."""


def totals(job: Job) -> Totals:
    """The totals so far; those of the present attempt as its supervisor has reported them."""
    spent = together(job.spent_before, job.spending)
    return Totals(
        **spent.model_dump(),
        attempts=job.attempt,
        generations=job.generations_before + job.generation,
        recoveries=job.recoveries,
        steps_lost=job.steps_lost,
    )


def counted(job: Job, kind: str, data: dict[str, Any]) -> dict[str, Any]:
    """Count an event of the present attempt; returns its data, with the steps the job has lost by it."""
    if kind == RECOVERED:
        job.recoveries += 1
        job.steps_lost = min(MOST, job.steps_lost + _whole(data.get("steps_lost")))
    if kind not in BEGINS_WITH or job.attempt < 2:
        return data
    begins = _whole(data.get("step"))
    lost = max(0, job.reached - begins)
    job.steps_lost = min(MOST, job.steps_lost + lost)
    job.reached = min(job.reached, begins)  # told twice it is counted once
    return {**data, "steps_lost": lost}


def over_all_attempts(session: Session, job: Job, told: Result) -> Result:
    """The result of the attempt that succeeded, with the cost of those before it and what their workers have found."""
    own = Spent.model_validate(told.model_dump(include=set(Spent.model_fields)))
    job.spending = longest(job.spending, own)
    job.generation = max(job.generation, min(told.generations, MOST_GENERATIONS))
    return told.model_copy(update=totals(job).model_dump() | _found(session, job, told))


def longest(before: dict[str, Any] | None, told: Spent) -> dict[str, Any]:
    """An attempt's account, the newest of the two."""
    now = together(told.model_dump())
    # By its time, which does not go back: posts may overtake each other.
    return before if before is not None and before["wall_s"] > now.wall_s else now.model_dump()


def _found(session: Session, job: Job, told: Result) -> dict[str, Any]:
    """The fields of the result that differ from those told, where a worker has found that the program differs."""
    if not told.reproducible and told.reproducible_why != ELSEWHERE:
        return {}
    # A worker that alone had found it may be gone: those that have finished, in this attempt or a later one that went
    # on from others' checkpoint, do not know of it.
    query = select(Event.data).where(Event.job_id == job.id, Event.type == DIFFERS).order_by(Event.seq)
    why = why_of(session.scalars(query))
    return {"reproducible": False, "reproducible_why": why} if why else {}


def _whole(told: object) -> int:
    whole = isinstance(told, int) and not isinstance(told, bool) and 0 <= told <= MOST
    return told if whole else 0  # type: ignore[return-value]
