"""The expenses of the attempts of a job: time, and failures of its budget, which committed steps give back."""

from typing import Any

from ringleader.elastic.state import GIVES_BACK
from ringleader.wire.views import Spent
from ringleader_api.store.tables import Job

MOST_S = 1e12
"""The bound on times that a job's own processes report; negative ones count as 0: sums have to stay numbers."""


def together(*parts: dict[str, Any] | None) -> Spent:
    """The sum of the time accounts that are known."""
    told = [Spent.model_validate(part) for part in parts if part]
    sums = {name: sum(max(0.0, getattr(one, name)) for one in told) for name in Spent.model_fields}
    return Spent(**{name: min(value, MOST_S) for name, value in sums.items()})


def at_least(told: dict[str, Any] | None, wall_s: float) -> dict[str, Any]:
    """The account, raised to at least so many seconds."""
    spent = together(told)
    # Only the wall time: nobody knows what became of the seconds that were not reported.
    return spent.model_copy(update={"wall_s": max(spent.wall_s, wall_s)}).model_dump()


def failures_spent(job: Job) -> int:
    """The failures of ended attempts, less those that the present one's steps have given back, plus those it has
    reported."""
    # Only steps to which no attempt had come before count: one that ends each time at the same place gives nothing
    # back.
    given_back = max(0, job.step - job.furthest) // GIVES_BACK
    # Only those before are lowered: the supervisor reports its own less what its steps have given back.
    return max(0, job.failures_before - given_back) + job.failures_reported


def settle(job: Job, spent: int) -> None:
    """Close the account of the attempt, which is over: so many failures are spent now."""
    job.furthest = max(job.furthest, job.step)
    job.failures_before, job.failures_reported = spent, 0
