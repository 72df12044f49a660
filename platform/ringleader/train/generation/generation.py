"""A generation on one member: its plan, this member's rank, and the exchange among its members."""

from dataclasses import dataclass

from ringleader.comm.transports import Transport
from ringleader.elastic import Plan
from ringleader.exchange import Exchange
from ringleader.train.ports import Seat


@dataclass(frozen=True, slots=True)
class Generation:
    """A generation in which this member takes part, from the opening of its exchange until the member leaves it.

    Attributes:
        rank: this member's, workers first.
        exchange: among its members; closed with the generation.
        transport: to the other members; None where there are none.
    """

    plan: Plan
    rank: int
    exchange: Exchange
    transport: Transport | None

    @classmethod
    def of(cls, seat: Seat, exchange: Exchange) -> "Generation":
        return cls(seat.plan, seat.rank, exchange, seat.transport)

    @property
    def number(self) -> int:
        return self.plan.generation

    @property
    def groups(self) -> tuple[tuple[int, ...], ...]:
        """Ranks by node, where the transport has looked for that."""
        return self.transport.groups if self.transport is not None else ()

    @property
    def server(self) -> int:
        """This member's number among the servers; negative for a worker."""
        return self.rank - self.plan.world

    @property
    def serves(self) -> bool:
        """Whether this member is a server."""
        return self.server >= 0
