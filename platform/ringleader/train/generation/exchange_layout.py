"""The layout of a member's exchange: buckets and tables of the parameters that are trained, or the outer step's.

An exchange is opened over nothing, as a joiner does not know what is trained before it has healed. It is laid then, or,
where rounds are the transaction, before the first one; and once more whenever that changes.
"""

from typing import TYPE_CHECKING

from torch.nn import Parameter

from ringleader.comm.buckets import Buckets
from ringleader.exchange import Coding, Exchange, open_exchange
from ringleader.exchange.local_sums import reusable
from ringleader.train.modes.local_sgd.outer_step import OuterStep
from ringleader.train.ports import Seat
from ringleader.train.state.parameters.sparse import ROWS_TRAVEL, make_dense, refuse_optimizers, tables_of

if TYPE_CHECKING:
    from ringleader.train.generation.member import Member


class ExchangeLayout:
    """One member's layout. Outlives generations.

    Attributes:
        coding: how gradients are coded, from the first exchange on; None where they are not.
    """

    def __init__(self, member: "Member") -> None:
        self.coding: Coding | None = None
        self._member = member
        self._opened = self._laid = False
        self._parameters: list[Parameter] | None = None
        self._tables: tuple[tuple[int, ...], dict[int, str]] | None = None
        self._dense: set[Parameter] = set()
        self._outer: OuterStep | None = None
        self._buckets: Buckets | None = None
        self._counted_bytes = 0

    @property
    def parameters(self) -> list[Parameter]:
        """Every parameter, frozen ones too; `TrainedParameters` knows which of them are trained."""
        if self._parameters is None:
            self._parameters = self._member.held.parameters
        return self._parameters

    @property
    def tables(self) -> dict[int, str]:
        """The names of the trained parameters whose gradients travel as rows, by number."""
        member, numbers = self._member, self._member.trained.numbers
        # By identity, which costs nothing at every step: the tuple is replaced as a whole where it changes.
        if self._tables is None or self._tables[0] is not numbers:
            travel = member.spec.sync.architecture in ROWS_TRAVEL
            found = tables_of(member.held.models, member.held.spoken_parameters, numbers) if travel else {}
            self._tables = numbers, found
        return self._tables[1]

    @property
    def outer(self) -> OuterStep | None:
        """The outer step, where a round of several batches is the transaction."""
        kind = self._member.spec.sync.outer_step
        if self._outer is None and kind is not None and self.parameters:
            self._outer = OuterStep(self._member.held, self.parameters, self._member.spec.shards, kind)
        return self._outer

    @property
    def outdated(self) -> bool:
        """Whether optimisers have other parameters than those that rounds were laid for in this generation."""
        outer = self.outer if self._laid else None
        return outer is not None and outer.outdated(self._member.trained.numbers)

    @property
    def exchanged(self) -> list[Parameter]:
        """The parameters whose gradients are summed."""
        return [] if self._member.spec.sync.circulates else self._member.trained.parameters

    def open(self, seat: Seat) -> Exchange:
        """Open a generation's exchange, over nothing yet."""
        member = self._member
        sync = member.spec.sync
        self._laid = False
        self.settle()
        parameters = [] if self.outer is not None or sync.circulates else self.parameters
        return open_exchange(
            architecture=sync.architecture,
            algorithm=sync.algorithm or "auto",
            same_bits=member.same_bits,
            plan=seat.plan,
            rank=seat.rank,
            transport=seat.transport,
            parameters=parameters,
            word_length=member.layout.length,
            buckets=None,
            coding=self.coding,
            timeline=member.timeline,
            leased=sync.leased,
            active=(),
            # Servers share these out behind the others, so that an owner never changes.
            later=[number for number in range(len(parameters)) if number not in member.trained.first],
        )

    def settle(self) -> None:
        """Fix, once, what follows from what is trainable at the first session call, whatever a joiner's lines freeze
        before it has a seat."""
        member, codec = self._member, self._member.spec.sync.codec
        if self._opened:
            return
        self._opened = True
        self._refuse_optimizers()
        self.make_dense()
        member.held.commit_kept()
        self.coding = None if codec == "none" else Coding(codec, list(member.held.named_parameters))
        # Both are worked out when first read: that has to be now.
        _ = member.trained.first, member.layout

    def lay(self) -> None:
        """Lay the exchange over what is trained. All members call this at the same point. Raises ExchangeBroken."""
        member, exchange = self._member, self._member.generation.exchange
        if member.spec.sync.circulates:
            return
        opened, parameters, active = exchange.buckets, self.parameters, member.trained.numbers
        owners = opened.owners
        if self.outer is not None:
            self.outer.lay(active)
            parameters = self.outer.carriers
            active, owners = tuple(range(len(parameters))), (0,) * len(parameters)
        shared = opened.arena is not None
        self._buckets = reusable(self._buckets, parameters, owners, self.tables, shared=shared, active=active)
        exchange.lay(self._buckets)
        # The first generation that sends over links measures them; who joins later heals what it found.
        member.costs = exchange.measure(member.costs)
        exchange.go_by(member.costs)
        self._laid = True

    def lay_first(self) -> None:
        """Lay the exchange if this generation has not done so: at its opening a joiner's program has yet to make the
        optimisers that rounds go by."""
        if not self._laid:
            self.lay()
            self._member.choice.tell()

    def lay_anew(self) -> None:
        """Lay the exchange again: the trained parameters have changed, or the optimisers that train them."""
        self._refuse_optimizers()
        self._member.donations.void()
        self.lay()
        self._member.choice.tell()

    def make_dense(self) -> None:
        """Give all that a backward can reach dense gradients only, where rows do not travel."""
        if self._member.spec.sync.architecture not in ROWS_TRAVEL:
            # torch adds a hook each time: a second one would run as well.
            new = {p for p in self.parameters if p.requires_grad} - self._dense
            make_dense(new)
            self._dense |= new

    def own_weights(self) -> None:
        """Move weights out of memory that peers may be reading: the program is about to change them."""
        if self._buckets is not None:
            self._buckets.move_out()

    def bring_back(self) -> None:
        """Make memory of weights that the program holds show their values: it is about to run."""
        if self._buckets is not None:
            self._buckets.bring_back()

    def traffic(self) -> dict[str, float]:
        """The bytes of coded gradients and of rows that this worker sent since the last call; empty without either."""
        if self.coding is None and not self.tables:
            return {}
        coded = self.coding.wire_bytes if self.coding is not None else 0
        rows = self._buckets.tables.wire_bytes if self._buckets is not None else 0
        before, self._counted_bytes = self._counted_bytes, coded + rows
        return {"comm_bytes": float(self._counted_bytes - before)}

    def release(self) -> None:
        """Release the buckets at the end of training; weights stay."""
        if self._buckets is not None:
            self._buckets.bring_back()
            self._buckets.release()
            self._buckets = None

    def _refuse_optimizers(self) -> None:
        member = self._member
        refuse_optimizers(member.held.optimizers, member.tables, member.spec.sync.architecture)
