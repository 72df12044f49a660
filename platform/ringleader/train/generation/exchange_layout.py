"""The layout of a member's exchange: buckets and tables of the parameters that are trained, or the outer step's.

An exchange is opened over nothing, as a joiner does not know what is trained before it has healed. It is laid then, or,
where rounds are the transaction, before the first one; and once more whenever that changes.
"""

from typing import Any

from torch.nn import Parameter

from ringleader.comm.buckets import Buckets
from ringleader.comm.simulator import ClusterCosts
from ringleader.exchange import Coding, Exchange, open_exchange
from ringleader.exchange.local_sums import reusable
from ringleader.train.generation.context import MemberContext
from ringleader.train.modes.local_sgd.outer_step import OuterStep
from ringleader.train.ports import Seat
from ringleader.train.state.parameters.sparse import make_dense, refuse_optimizers, tables_of
from ringleader.train.state.parameters.trained import TrainedParameters


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


class ExchangeLayout:
    """One member's layout. Outlives generations.

    Attributes:
        coding: how gradients are coded, from the first exchange on; None where they are not.
        costs: measured costs of links and additions; None until an exchange has had to choose by them.
    """

    def __init__(self, context: MemberContext, trained: TrainedParameters, choice: ChosenSchedules) -> None:
        self.coding: Coding | None = None
        self.costs: ClusterCosts | None = None
        self._context = context
        self._trained = trained
        self._choice = choice
        self._sums = context.rules.sums_gradients
        self._opened = self._laid = False
        self._tables: tuple[tuple[int, ...], dict[int, str]] | None = None
        self._dense: set[Parameter] = set()
        self._outer: OuterStep | None = None
        self._buckets: Buckets | None = None
        self._counted_bytes = 0

    @property
    def tables(self) -> dict[int, str]:
        """The names of the trained parameters whose gradients travel as rows, by number."""
        context, numbers = self._context, self._trained.numbers
        # By identity, which costs nothing at every step: the tuple is replaced as a whole where it changes.
        if self._tables is None or self._tables[0] is not numbers:
            held = context.held
            found = (
                tables_of(held.models, held.spoken_parameters, numbers) if context.rules.rows_travel else {}
            )
            self._tables = numbers, found
        return self._tables[1]

    @property
    def named_tables(self) -> dict[Parameter, str]:
        """The same names, by parameter."""
        return {self._context.parameters[number]: name for number, name in self.tables.items()}

    @property
    def outer(self) -> OuterStep | None:
        """The outer step, where a round of several batches is the transaction."""
        kind = self._context.spec.sync.outer_step
        if self._outer is None and kind is not None and self._context.parameters:
            self._outer = OuterStep(
                self._context.held, self._context.parameters, self._context.spec.shards, kind
            )
        return self._outer

    def due(self, call: int) -> bool:
        """Whether the loop of that call begins with an agreement on what is trained, as far as this member knows."""
        return self._trained.may_change(call) and (self._trained.outdated or self._outdated)

    @property
    def _outdated(self) -> bool:
        """Whether optimizers have other parameters than those that rounds were laid for in this generation."""
        outer = self.outer if self._laid else None
        return outer is not None and outer.outdated(self._trained.numbers)

    @property
    def exchanged(self) -> list[Parameter]:
        """The parameters whose gradients are summed."""
        return self._trained.parameters if self._sums else []

    def open(self, seat: Seat) -> Exchange:
        """Open a generation's exchange, over nothing yet."""
        context = self._context
        sync = context.spec.sync
        self._laid = False
        self.settle()
        parameters = context.parameters if self._sums and self.outer is None else []
        return open_exchange(
            architecture=sync.architecture,
            algorithm=sync.algorithm or "auto",
            same_bits=context.same_bits,
            plan=seat.plan,
            rank=seat.rank,
            transport=seat.transport,
            parameters=parameters,
            word_length=context.layout.length,
            buckets=None,
            coding=self.coding,
            timeline=context.timeline,
            leased=context.rules.leased,
            active=(),
            # Servers share these out behind the others, so that an owner never changes.
            later=[number for number in range(len(parameters)) if number not in self._trained.first],
        )

    def settle(self) -> None:
        """Fix, once, what follows from what is trainable at the first session call, whatever a joiner's lines freeze
        before it has a seat."""
        context, codec = self._context, self._context.spec.sync.codec
        if self._opened:
            return
        self._opened = True
        self._refuse_optimizers()
        self.make_dense()
        context.held.kept.commit()
        self.coding = None if codec == "none" else Coding(codec, list(context.held.named_parameters))
        # Both are worked out when first read: that has to be now.
        _ = self._trained.first, context.layout

    def lay(self) -> None:
        """Lay the exchange over what is trained. All members call this at the same point. Raises ExchangeBroken."""
        exchange = self._context.generation.exchange
        if not self._sums:
            return
        opened, parameters, active = exchange.buckets, self._context.parameters, self._trained.numbers
        owners = opened.owners
        if self.outer is not None:
            self.outer.lay(active)
            parameters = self.outer.carriers
            active, owners = tuple(range(len(parameters))), (0,) * len(parameters)
        shared = opened.arena is not None
        self._buckets = reusable(self._buckets, parameters, owners, self.tables, shared=shared, active=active)
        exchange.lay(self._buckets)
        # The first generation that sends over links measures them; who joins later heals what it found.
        self.costs = exchange.measure(self.costs)
        exchange.go_by(self.costs)
        self._laid = True

    def lay_first(self) -> None:
        """Lay the exchange if this generation has not done so: at its opening a joiner's program has yet to make the
        optimizers that rounds go by."""
        if not self._laid:
            self.lay()
            self._choice.tell()

    def lay_anew(self) -> None:
        """Lay the exchange again: the trained parameters have changed, or the optimizers that train them."""
        self._refuse_optimizers()
        self.lay()
        self._choice.tell()

    def make_dense(self) -> None:
        """Give all that a backward can reach dense gradients only, where rows do not travel."""
        if not self._context.rules.rows_travel:
            # torch adds a hook each time: a second one would run as well.
            new = {p for p in self._context.parameters if p.requires_grad} - self._dense
            make_dense(new)
            self._dense |= new

    def own_weights(self) -> None:
        """Move weights out of memory that peers may be reading: the program is about to change them."""
        if self._buckets is not None:
            self._buckets.weights.move_out()

    def bring_back(self) -> None:
        """Make memory of weights that the program holds show their values: it is about to run."""
        if self._buckets is not None:
            self._buckets.weights.bring_back()

    def traffic(self) -> dict[str, float]:
        """The bytes of coded gradients and of rows that this worker sent since the last call; empty without either."""
        if self.coding is None and not self.tables:
            return {}
        coded = self.coding.wire_bytes if self.coding is not None else 0
        rows = self._buckets.tables.wire_bytes if self._buckets is not None else 0
        before, self._counted_bytes = self._counted_bytes, coded + rows
        return {"comm_bytes": float(self._counted_bytes - before)}

    def state(self) -> dict[str, Any]:
        """What a peer or a checkpoint is given of it."""
        return {"costs": self.costs, "outer": self.outer.state_dict() if self.outer else {}}

    def restore(self, state: dict[str, Any]) -> None:
        """Take over what `state` gave. The trained parameters are those of the peer already."""
        self.costs = state["costs"]
        if self.outer:
            self.outer.load_state_dict(state["outer"], self._trained.numbers)

    def owe(self, steps: int) -> None:
        """Owe what coded gradients have lost, where peers applied so many steps that this member did not."""
        if self.coding is not None:
            self.coding.heal(steps=steps)

    def release(self) -> None:
        """Release the buckets at the end of training; weights stay."""
        if self._buckets is not None:
            self._buckets.weights.bring_back()
            self._buckets.release()
            self._buckets = None

    def _refuse_optimizers(self) -> None:
        context = self._context
        refuse_optimizers(context.held.optimizers, self.named_tables, context.rules.spoken)
