"""The schedules that sum a generation's buckets, reported as an event when they change."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ringleader.train.generation.member import Member


class ChosenSchedules:
    """One member's report of its chosen schedules; rank 0 alone sends it."""

    def __init__(self, member: "Member") -> None:
        self._member = member
        self._told: dict[str, Any] | None = None

    def tell(self) -> None:
        """Report the schedules of a generation that is under way, if they differ from the last report."""
        member = self._member
        chosen = member.generation.exchange.chosen() if member.generation.rank == 0 else None
        if chosen is not None and chosen != self._told:
            self._told = chosen
            member.reporter.tell("exchange.chosen", member.generation.number, chosen)
