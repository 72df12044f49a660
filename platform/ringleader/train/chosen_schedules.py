"""Which schedules sum a generation's buckets, told where it is not what was told before."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ringleader.train.generation.member import Member


class ChosenSchedules:
    """One member's; rank 0 tells."""

    def __init__(self, group: "Member") -> None:
        self._group = group
        self._told: dict[str, Any] | None = None

    def tell(self) -> None:
        """A generation is under way."""
        group = self._group
        assert group.seat is not None
        assert group.exchange is not None
        chosen = group.exchange.chosen() if group.seat.rank == 0 else None
        if chosen is not None and chosen != self._told:
            self._told = chosen
            group.reporter.tell("exchange.chosen", group.seat.plan.generation, chosen)
