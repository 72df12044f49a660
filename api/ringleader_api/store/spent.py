"""The time accounts of several attempts, as rows hold them."""

from typing import Any

from ringleader.wire.views import Spent

MOST_S = 1e12
"""The bound on times that a job's own processes report; negative ones count as 0: sums have to stay numbers."""


def together(*parts: dict[str, Any] | None) -> Spent:
    """The sum of the accounts that are known."""
    told = [Spent.model_validate(part) for part in parts if part]
    sums = {name: sum(max(0.0, getattr(one, name)) for one in told) for name in Spent.model_fields}
    return Spent(**{name: min(value, MOST_S) for name, value in sums.items()})


def at_least(told: dict[str, Any] | None, wall_s: float) -> dict[str, Any]:
    """The account, raised to at least so many seconds; nobody knows what became of those that were not reported."""
    spent = together(told)
    return spent.model_copy(update={"wall_s": max(spent.wall_s, wall_s)}).model_dump()
