"""A member's whole committed state: what registered objects hold, and the rest, for peers and for checkpoints."""

from collections.abc import Sequence
from typing import Any, Protocol

from torch import Tensor
from torch.nn import Parameter

from ringleader.train.between_calls.sections import ProgramSections
from ringleader.train.between_calls.variables import ProgramVariables
from ringleader.train.generation.context import MemberContext
from ringleader.train.generation.exchange_layout import ExchangeLayout


class CarriedPart(Protocol):
    """A part of a member whose state goes with the committed state, in one entry."""

    def state(self) -> Any: ...

    def restore(self, state: Any, /) -> None:
        """Take over a peer's state, or that of a checkpoint."""


class CommittedState:
    """One member's committed state. Called from the training thread."""

    def __init__(
        self,
        context: MemberContext,
        laying: ExchangeLayout,
        sections: ProgramSections,
        variables: ProgramVariables,
    ) -> None:
        self._context = context
        self._laying = laying
        self._sections = sections
        self._variables = variables
        self._parts: dict[str, CarriedPart] = {}

    def carry(self, **parts: CarriedPart) -> None:
        """Carry these parts too, each under its name. They are restored in this order."""
        self._parts |= parts

    def whole(self) -> dict[str, Any]:
        """All of it, between two loops: the live objects' own tensors."""
        return self._context.transfer.state(self.rest({}))

    def briefed(self) -> dict[str, Any]:
        """All but the boundaries of calls, which the briefing of a joiner has told."""
        return self._context.transfer.state(self.rest({}, since=self._sections.count))

    def before_saving(self) -> None:
        """Make alike, among members who write parts of one state, what they hold beside what is compared. Raises
        ExchangeBroken."""
        context = self._context
        if context.rules.commits_together and not context.generation.plan.servers:
            self._sections.keep_common()

    def saved(self) -> dict[str, Any]:
        """All of it, as a checkpoint holds it."""
        return self._context.transfer.state(self.rest(self._context.inside.newest()))

    def saved_part(self) -> dict[str, Any]:
        """The part that this server alone updates, as a checkpoint holds it."""
        context = self._context
        return context.transfer.state_of(context.part or []) | {"boundaries": self._sections.states()}

    def payload(self, since: int) -> Tensor:
        """(n,) uint8 of all of it, sealed for a peer that has the boundaries of calls before `since`."""
        context = self._context
        plan, inside = context.generation.plan, context.inside
        given = {} if plan.start_transaction else inside.given
        rest = self.rest((inside.live() if plan.backups else {}) or given, since)
        return context.transfer.payload(rest, context.generation.exchange.seal)

    def receive(self, payload: Tensor, keep: Sequence[Parameter] = ()) -> dict[str, Any]:
        """Take over a peer's state, all but the parameters in `keep` with their optimizer states.

        Returns what no registered object holds."""
        context = self._context
        rest = context.transfer.restore(payload, context.generation.exchange.seal, keep)
        self.restore(rest, whole=not keep)
        return rest

    def rest(self, inside: dict[str, Any], since: int = 0) -> dict[str, Any]:
        """The position of this member, and all else that no registered object holds.

        Args:
            inside: the position inside the running loop.
            since: boundaries of calls from this number on are included.
        """
        context = self._context
        return {
            "inside": inside,
            "place": self._sections.place,
            "boundaries": self._sections.state(since),
            "variables": self._variables.state(since),
            **context.progress.state(),
            "records": context.reporter.state(),
            **self._laying.state(),
            "scaling": context.scaling.state_dict() if context.scaling else {},
            # Callbacks that wait for weights of other servers: whoever takes this state runs them with this member.
            **({"owed": context.held.owed} if context.held.owed else {}),
            **({"left": True} if context.held.left else {}),
            **{name: part.state() for name, part in self._parts.items()},
        }

    def restore(self, rest: dict[str, Any], *, whole: bool) -> None:
        """Take a peer's position; not `whole` where this server kept the part that it alone updates."""
        context, progress = self._context, self._context.progress
        # The step that the peers applied holds this worker's coded gradients: what they lost is owed.
        self._laying.owe(steps=rest["step"] - progress.step)
        new, leased = progress.lacks_part, context.rules.leased
        progress.restore(rest, whole=whole, leased=leased)
        self._sections.restore(rest.get("boundaries", (0, [])))  # checkpoints of before have none
        self._variables.restore(rest.get("variables", {}))
        self._sections.healed(rest.get("place", -1))
        if new or not (context.serves and leased):  # there server 0's records are nowhere else
            context.reporter.restore(rest["records"])
        for name, part in self._parts.items():
            if name in rest:  # nor some of these
                part.restore(rest[name])
        # Behind the trained parameters, by whose numbers it is laid.
        self._laying.restore(rest)
        context.held.owe_callbacks(rest.get("owed"))
        if context.scaling:
            context.scaling.load_state_dict(rest["scaling"])
        context.inside.restore(rest["inside"])
        context.buffers.adopt()
