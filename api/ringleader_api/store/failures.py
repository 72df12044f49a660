"""The failure budget: spent by the cluster's faults, given back by committed steps."""

from ringleader.elastic.state import GIVES_BACK
from ringleader_api.store.tables import Job


def failures_spent(job: Job) -> int:
    """The failures of ended attempts, less those that the present one's steps have given back, plus those it has
    reported.

    Only steps to which no attempt had come before count: one that ends each time at the same place gives nothing back.
    """
    given_back = max(0, job.step - job.furthest) // GIVES_BACK
    # Only those before are lowered: the supervisor reports its own less what its steps have given back.
    return max(0, job.failures_before - given_back) + job.failures_reported


def settle(job: Job, spent: int) -> None:
    """Close the account of the attempt, which is over: so many failures are spent now."""
    job.furthest = max(job.furthest, job.step)
    job.failures_before, job.failures_reported = spent, 0
