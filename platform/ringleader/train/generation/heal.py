"""The way of a member to the newest committed state: from a peer, as a generation begins."""

import torch
from torch.nn import Parameter

from ringleader.elastic import Plan
from ringleader.train.between_calls.sections import ProgramSections
from ringleader.train.generation.committed_state import CommittedState
from ringleader.train.generation.context import MemberContext
from ringleader.train.generation.environment_check import EnvironmentCheck
from ringleader.train.generation.exchange_layout import ExchangeLayout
from ringleader.train.generation.server_handover import hand_over, lacks
from ringleader.train.generation.starting.attempt_start import AttemptStart


class Healing:
    """One member's exchange of state with peers. Called from the training thread."""

    def __init__(
        self,
        context: MemberContext,
        *,
        state: CommittedState,
        laying: ExchangeLayout,
        sections: ProgramSections,
        machines: EnvironmentCheck,
        start: AttemptStart,
    ) -> None:
        self._context = context
        self._state = state
        self._laying = laying
        self._sections = sections
        self._machines = machines
        self._start = start

    def heal(self, former: tuple[str, ...]) -> None:
        """Send committed state as a donor and take it as a receiver, in the plan's order. Raises ExchangeBroken.

        Args:
            former: the members of the generation before, if this member was in it.
        """
        context, generation = self._context, self._context.generation
        plan, me = generation.plan, generation.plan.members[generation.rank]
        self._start.begin(plan, me)
        self._exchange(plan, me, former)
        if me not in [receiver for receiver, _ in plan.heals]:
            context.rules.stay(context.progress)
        # Rounds are laid before the first of them: a joiner's program has yet to make the optimizers they go by.
        if not self._laying.outer:
            self._laying.lay()
        if context.rules.has_parts(plan):
            if plan.backups:
                hand_over(generation, context.transfer, self._sections, lacking=context.progress.lacks_part)
                context.progress.hold_part()
            self._publish_if_lacking()
        # Behind the heal, which brings what earlier generations have found.
        self._machines.meet(generation.exchange, plan, generation.rank)

    def _exchange(self, plan: Plan, me: str, former: tuple[str, ...]) -> None:
        progress, generation = self._context.progress, self._context.generation
        payloads: dict[int, torch.Tensor] = {}
        for receiver, donor in plan.heals:
            if donor == me:
                since = self._lacks_since(receiver, former)
                # Packed once for all receivers that lack the same: it copies the whole state.
                payloads[since] = payloads[since] if since in payloads else self._state.payload(since)
                generation.exchange.send_state(plan.rank_of(receiver), payloads[since])
            elif receiver == me:
                received = generation.exchange.receive_state(plan.rank_of(donor))
                keep = self._own_part(plan, donor)
                with self._start.compared(plan, plan.rank_of(donor)):
                    rest = self._state.receive(received, keep)
                updated = rest["changed"] or plan.start_transaction > 0
                if not keep and lacks(plan, generation.rank, donor, updated=updated):
                    progress.lack_part()

    def _lacks_since(self, receiver: str, former: tuple[str, ...]) -> int:
        """The call from which on a receiver lacks boundaries: a member of the generation before is behind by a
        transaction at most, and by a loop that this member has left and that is not over yet."""
        return max(0, self._sections.count - 2) if receiver in former else 0

    def _own_part(self, plan: Plan, donor: str) -> list[Parameter]:
        """The parameters of which the donor lacks the newest state: a server's own share, once it has applied a step,
        and all where the donor is a worker, which is ahead by an evaluation at most and has no optimizer state."""
        context = self._context
        if not context.progress.has_updates:
            return []
        served = context.serves and plan.rank_of(donor) < plan.world
        return context.part or (context.held.ever_trained(context.parameters) if served else [])

    def _publish_if_lacking(self) -> None:
        """Publish the servers' weights to everybody where a member lacks some and all servers are at the same step.

        Where a server is ahead, everybody else has all the weights of the step before. Where nobody lacks any, what
        servers hold is not sent: lines of the program may have changed it on one of them, which the comparison of
        members finds only where the others still have their own.
        """
        context, generation = self._context, self._context.generation
        progress = context.progress
        apart = context.rules.is_apart(progress)
        said = torch.zeros(2, len(generation.plan.members), dtype=torch.float64)
        said[:, generation.rank] = torch.tensor([context.ahead, progress.lacks_weights or apart])
        ahead, lacking = generation.exchange.all_reduce(said.view(-1)).view(2, -1)
        if lacking.any() and not ahead.any():
            context.publish()
            context.call_back()
