"""The boundaries at which the committed state is copied for a checkpoint: the same for all members."""

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ringleader.checkpoint.manifest import CheckpointPosition
from ringleader.checkpoint.parts import CheckpointPart
from ringleader.elastic.plan import Plan
from ringleader.train.generation.committed_state import CommittedState
from ringleader.train.generation.comparing.member_comparison import MemberComparison
from ringleader.train.generation.context import MemberContext
from ringleader.train.generation.saving.cadence import CheckpointVote
from ringleader.train.generation.saving.saver import CheckpointSaver


class CheckpointCopies:
    """One member's copies.

    Attributes:
        agreed: the members have voted, by time, for a copy at the running boundary.
    """

    def __init__(
        self,
        context: MemberContext,
        state: CommittedState,
        comparison: MemberComparison,
        saver: CheckpointSaver,
    ) -> None:
        self._context = context
        self._state = state
        self._comparison = comparison
        self._saver = saver
        self._expects = True
        self._alone = False
        self._ended = -1
        self._demanded = False
        self.agreed = False

    def demand(self) -> bool:
        """Have the state copied at the next boundary, for the program. Returns whether there is a place for it."""
        self._demanded = self._saver.on
        return self._demanded

    @property
    def wish(self) -> CheckpointVote:
        """The vote that this member sends with its word. One without a part to save follows the others."""
        context = self._context
        if self._demanded:
            return CheckpointVote.DEMANDS
        if not self._saver.on or self._part() is None:
            return CheckpointVote.FOLLOWS
        # The last server with a part has it copied behind the step that runs: hence one more.
        at_once = self._alone and self._saver.would_secure(context.progress.step + 1)
        return CheckpointVote.WANTS if at_once else self._saver.wish

    @property
    def due(self) -> bool:
        """Whether a copy is due at the next boundary, by steps or by what the members have agreed on."""
        context = self._context
        return self._saver.on and (
            self.agreed or self._saver.cadence.due(context.progress.boundary, context.progress.step)
        )

    @property
    def wanted(self) -> bool:
        """Whether one is due or this member wants one: for modes that have to ask for a boundary inside a loop."""
        return self.due or self.wish >= CheckpointVote.WANTS

    def hear(self, reduced: Tensor, plan: Plan) -> None:
        """Count the members' votes of a transaction."""
        wishes = self._context.layout.wishes(reduced, world=len(plan.members))
        asked = CheckpointVote.WANTS in wishes and CheckpointVote.OBJECTS not in wishes
        self.agreed = asked or CheckpointVote.DEMANDS in wishes

    def agree(self, wanted: bool) -> None:
        """Record what the members have agreed on without votes: one of them decides for all."""
        self.agreed = wanted

    def committed(self) -> None:
        """Copy the state if a checkpoint is due: all that is applied is committed and published."""
        context = self._context
        due, self.agreed = self.due, False
        # Before anything that may break: whoever joins next counts from this boundary too.
        context.progress.pass_boundary()
        if due:
            self._before_saving()
            self.save()
            self._demanded = False
        elif self._expects and self._saver.nears(context.progress.step):
            self._expect()

    def begin(self) -> None:
        """Forget, as a generation begins, what the one before agreed on."""
        self._expects = True
        self.agreed = self._alone = False

    def begun(self, plan: Plan) -> None:
        """Save at once, as the generation stands, what only one member holds after a loss: a worker copies it before
        the next step, a server behind it. Raises ExchangeBroken."""
        context, lost = self._context, plan.cause == "lost"
        if lost and plan.servers:
            self._alone = context.rules.holds_alone(plan)
        elif lost and len(plan.members) == 1 and self._saver.would_secure(context.progress.step):
            context.inside.gather()
            self.save(settled=True)  # the only member stands at this step, so nothing takes it back

    def pause(self) -> None:
        """Save the boundary of a pause, the only purpose of its generation. The supervisor's deadline for the pause
        bounds the wait. Raises ExchangeBroken."""
        context, coordinator = self._context, self._context.coordinator
        if self._saver.on:
            self._before_saving()
            self._saver.insist(self.save, coordinator.interrupted, cancelled=coordinator.plan_pending)
        # A barrier: nobody leaves the generation while another member still saves.
        context.generation.exchange.all_reduce(torch.zeros(1, dtype=torch.float64))

    def rest(self) -> None:
        """Save what a group too small to go on still holds, the only purpose of its generation. Returns once it is
        written, or once an interruption or a newer plan ends the wait. Raises ExchangeBroken."""
        context, coordinator = self._context, self._context.coordinator

        def over() -> bool:
            return coordinator.interrupted() or coordinator.plan_pending()

        # A server that is ahead has not got the state of the step that the others stand at.
        ahead = torch.tensor([context.ahead], dtype=torch.float64)
        if not context.generation.exchange.all_reduce(ahead).any() and self._saver.on:
            self._before_saving()
            context.inside.gather()
            self._saver.insist(partial(self.save, settled=True), given_up=over, cancelled=over)
        # A barrier, as in `pause`.
        context.generation.exchange.all_reduce(torch.zeros(1, dtype=torch.float64))

    def end(self, look: Callable[[], None]) -> None:
        """Save the state with which the job ends, for jobs that begin with it: once a generation, where all of it is
        still held. What is written before it is waited for, with a bound; so is this, by the end of the run.

        Args:
            look: called now and then; what it raises ends the wait.
        """
        context = self._context
        plan = context.generation.plan
        if self._ended == plan.generation or not self._saver.asked_for or not context.rules.holds_all(plan):
            return
        self._ended = plan.generation
        # Before the wait for a file system: nobody waits in an exchange for that.
        self._state.before_saving()
        self._saver.written(look)
        self.save(settled=True, final=True)

    def _before_saving(self) -> None:
        """Make members alike at the boundary that all are about to copy. Raises ExchangeBroken."""
        self._comparison.before_saving()
        self._state.before_saving()

    def save(self, *, settled: bool = False, final: bool = False) -> None:
        """Copy the part that this member writes. For `settled` see `SavedPart`, for `final` `CheckpointPosition`."""
        context = self._context
        plan = context.generation.plan
        since = time.perf_counter()
        part = self._part()
        if part is not None:
            position = CheckpointPosition(
                context.progress.step, context.progress.transactions, plan.attempt, plan.generation, final
            )
            self._saver.save(self._state_of(part), part, position, settled=settled)
        whole = part is not None and part.count == 1
        self._saver.cadence.copied(context.progress.step, time.perf_counter() - since, whole=whole)
        self._alone = False

    def _part(self) -> CheckpointPart | None:
        return self._context.rules.saved_part(self._context.generation)

    def _state_of(self, part: CheckpointPart) -> dict[str, Any]:
        """The state that this member writes: all, or the part that it alone updates."""
        return self._state.saved() if part.state == 0 else self._state.saved_part()

    def _expect(self) -> None:
        """Have memory for the copy prepared: after the generation's first step the state has its final size."""
        context = self._context
        self._expects = False
        part = self._part()
        if part is not None and context.rules.commits_together:
            self._saver.expect(self._state_of(part), part)
