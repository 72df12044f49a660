"""The parameters that are trained: those whose gradients travel.

At first they are those that are trainable then. What the program freezes or unfreezes between two loops leaves them or
comes in with the first transaction of the next loop, in which all members agree on it; the step is made behind that. So
what is frozen is neither sent nor held, and a joiner, or an attempt from a checkpoint, goes by what was agreed.
"""

import torch
from torch.nn import Parameter

from ringleader.errors import CallMismatch, StepMisuse
from ringleader.train.generation.agreement import BRANCH_ON
from ringleader.train.generation.context import MemberContext

Agreed = tuple[tuple[int, ...], int]


class TrainedParameters:
    """One member's trained parameters. The agreed ones are healed and checkpointed.

    Attributes:
        settled: the set cannot change: items and tokens are on their way while the program's lines run.
    """

    def __init__(self, context: MemberContext) -> None:
        self.settled = not context.rules.commits_together
        self._context = context
        self._first: tuple[int, ...] | None = None
        self._numbers: tuple[int, ...] | None = None
        self._call = -1
        self._ended_with: frozenset[int] | None = None
        self._thawed: frozenset[int] = frozenset()
        self._frozen: frozenset[int] = frozenset()
        self._idle: list[tuple[str, Parameter]] = []

    @property
    def first(self) -> tuple[int, ...]:
        """The numbers of the parameters that were trainable at the program's first session call: the same on every
        member, whenever it came in."""
        if self._first is None:
            self._first = tuple(sorted(self._trainable()))
            self._look_at_idle()
        return self._first

    @property
    def numbers(self) -> tuple[int, ...]:
        """The numbers of the parameters that are trained, ascending."""
        return self.first if self._numbers is None else self._numbers

    @property
    def parameters(self) -> list[Parameter]:
        """The parameters that are trained."""
        return [self._context.parameters[number] for number in self.numbers]

    def left(self) -> None:
        """Note what is trainable as a loop ends: changes from here on are those of the lines behind it. What a body has
        left frozen may be trained by its next turn."""
        self._ended_with = self._trainable()

    def begin(self) -> None:
        """Note, as a loop begins on this member, what the lines before it have frozen and unfrozen.

        Raises:
            StepMisuse: no parameter is left to train.
        """
        now = self._trainable()
        before = frozenset(self.first) if self._ended_with is None else self._ended_with
        self._thawed, self._frozen = now - before, before - now
        if not self._wanted():
            raise StepMisuse(
                "no parameter of the models is trainable when this loop begins: all have requires_grad=False.",
                hint="Call requires_grad_(True) before the loop for the parameters to train.",
            )

    def may_change(self, call: int) -> bool:
        """Whether the loop of that call may begin with an agreement: its first transaction alone, and once."""
        return not self._context.progress.calls.offset and self._call != call

    @property
    def outdated(self) -> bool:
        """Whether the lines before this loop have frozen or unfrozen parameters, as far as this member knows."""
        return self._wanted() != self.numbers

    def agree(self) -> tuple[int, ...]:
        """Agree with all members on the numbers of the parameters to train. Raises ExchangeBroken.

        Raises:
            CallMismatch: some have unfrozen a parameter, and others have not.
        """
        generation = self._context.generation
        members = generation.plan.members
        # Each member writes a row of its own, so that the sum says who wants what, exactly.
        said = torch.zeros(len(members), len(self._context.parameters), dtype=torch.float64)
        said[generation.rank, list(self._wanted())] = 1.0
        told = generation.exchange.all_reduce(said.view(-1)).view(said.shape)
        for number in (told.min(dim=0).values < told.max(dim=0).values).nonzero().flatten().tolist():
            if number not in self.numbers:
                unfroze, not_so = (int(told[:, number].argmax()), int(told[:, number].argmin()))
                raise CallMismatch(
                    f"the parameter {self._name(number)!r} was unfrozen on rank {unfroze} "
                    f"({members[unfroze]}), but not on rank {not_so} ({members[not_so]}).",
                    hint=BRANCH_ON,
                )
        # Freezing needs everybody: what one member still trains stays in the set.
        return tuple(told.any(dim=0).nonzero().flatten().tolist())

    def go_by(self, numbers: tuple[int, ...], call: int) -> None:
        """Take over the numbers that all members agreed on at the begin of call `call`."""
        self._numbers, self._call = numbers, call
        self._look_at_idle()

    def state(self) -> Agreed:
        return self.numbers, self._call

    def restore(self, state: Agreed) -> None:
        self.go_by(tuple(state[0]), state[1])

    def check_reached(self) -> None:
        """Check that no parameter outside of the exchange has a gradient.

        Raises:
            StepMisuse: a parameter was unfrozen where nobody else learns of it.
        """
        for name, parameter in self._idle:
            if parameter.grad is not None:
                raise StepMisuse(
                    f"the parameter {name!r} was unfrozen inside a loop, which other members do "
                    f"not know of: its gradient is not exchanged.",
                    hint="Call requires_grad_(True) between two loops, or before the first one. Parameters that a body "
                    "freezes and unfreezes must be trainable when the loop begins.",
                )

    def check_settled(self) -> None:
        """Check that no optimizer is to train what was frozen at first, where the set cannot change.

        Raises:
            StepMisuse: naming such a parameter.
        """
        held = self._context.held
        mine = {p for optimizer, _ in held.optimizers for g in optimizer.param_groups for p in g["params"]}
        late = [name for name, parameter in self._idle if parameter.requires_grad and parameter in mine]
        if late and self.settled:
            raise StepMisuse(
                f"the parameter {late[0]!r} (one of {len(late)}) was frozen at the first session call, where the "
                f"trained parameters are fixed with {self._context.rules.spoken}, and cannot be trained now.",
                hint="Leave it trainable, keep it out of the optimizer until then, and call optimizer.add_param_group "
                "between two loops. It can be unfrozen with sync: ring, local_sgd, or synchronous servers.",
            )

    def _wanted(self) -> tuple[int, ...]:
        return tuple(sorted((frozenset(self.numbers) | self._thawed) - self._frozen))

    def _trainable(self) -> frozenset[int]:
        return frozenset(number for number, p in enumerate(self._context.parameters) if p.requires_grad)

    def _look_at_idle(self) -> None:
        trained = frozenset(self.numbers)
        named = enumerate(self._context.held.spoken_parameters.items())
        self._idle = [entry for number, entry in named if number not in trained]
        self._context.held.set_idle(parameter for _, parameter in self._idle)

    def _name(self, number: int) -> str:
        return list(self._context.held.spoken_parameters)[number]
