"""The schedules that sum a generation's buckets, reported as an event when they change."""

from typing import Any

from ringleader.train.generation.context import MemberContext


class ChosenSchedules:
    """One member's report of its chosen schedules; rank 0 alone sends it."""

    def __init__(self, context: MemberContext) -> None:
        self._context = context
        self._told: dict[str, Any] | None = None

    def tell(self) -> None:
        """Report the schedules of a generation that is under way, if they differ from the last report."""
        context = self._context
        chosen = context.generation.exchange.chosen() if context.generation.rank == 0 else None
        if chosen is not None and chosen != self._told:
            self._told = chosen
            context.reporter.tell("exchange.chosen", context.generation.number, chosen)
