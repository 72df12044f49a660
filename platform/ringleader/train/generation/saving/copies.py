"""The boundaries at which the committed state is copied for a checkpoint: the same for all members."""

import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ringleader.checkpoint.manifest import CheckpointPosition
from ringleader.elastic.plan import Plan
from ringleader.train.generation.saving.cadence import CheckpointVote

if TYPE_CHECKING:
    from ringleader.train.generation.member import Member


class CheckpointCopies:
    """One member's copies.

    Attributes:
        agreed: the members have voted, by time, for a copy at the running boundary.
    """

    def __init__(self, member: "Member") -> None:
        self._member = member
        self._expects = True
        self._alone = False
        self._ended = -1
        self.agreed = False

    @property
    def wish(self) -> CheckpointVote:
        """The vote that this member sends with its word. One without a part to save follows the others."""
        member = self._member
        if not member.saver.on or member.healing.part_to_save() is None:
            return CheckpointVote.FOLLOWS
        # The last server with a part has it copied behind the step that runs: hence one more.
        at_once = self._alone and member.saver.would_secure(member.progress.step + 1)
        return CheckpointVote.WANTS if at_once else member.saver.wish

    @property
    def due(self) -> bool:
        """Whether a copy is due at the next boundary, by steps or by what the members have agreed on."""
        member = self._member
        return member.saver.on and (
            self.agreed or member.saver.cadence.due(member.progress.boundary, member.progress.step)
        )

    @property
    def wanted(self) -> bool:
        """Whether one is due or this member wants one: for modes that have to ask for a boundary inside a loop."""
        return self.due or self.wish is CheckpointVote.WANTS

    def hear(self, reduced: Tensor, plan: Plan) -> None:
        """Count the members' votes of a transaction."""
        wishes = self._member.layout.wishes(reduced, world=len(plan.members))
        self.agreed = CheckpointVote.WANTS in wishes and CheckpointVote.OBJECTS not in wishes

    def committed(self) -> None:
        """Copy the state if a checkpoint is due: all that is applied is committed and published."""
        member = self._member
        due, self.agreed = self.due, False
        # Before anything that may break: whoever joins next counts from this boundary too.
        member.progress.pass_boundary()
        if due:
            member.comparison.before_saving()
            self.save()
        elif self._expects and member.saver.nears(member.progress.step):
            self._expect()

    def begin(self) -> None:
        """Forget, as a generation begins, what the one before agreed on."""
        self._expects = True
        self.agreed = self._alone = False

    def begun(self, plan: Plan) -> None:
        """Save at once, as the generation stands, what only one member holds after a loss: a worker copies it before
        the next step, a server behind it. Raises ExchangeBroken."""
        member, lost = self._member, plan.cause == "lost"
        if lost and plan.servers:
            left = plan.servers < member.spec.sync.server_count
            copies = member.spec.sync.servers_are_copies
            self._alone = left and (
                plan.servers == 1 if copies else any(len(servers) == 1 for servers in plan.held_by)
            )
        elif lost and len(plan.members) == 1 and member.saver.would_secure(member.progress.step):
            member.gather_loop_state()
            self.save(settled=True)  # the only member stands at this step, so nothing takes it back

    def pause(self) -> None:
        """Save the boundary of a pause, the only purpose of its generation. The supervisor's deadline for the pause
        bounds the wait. Raises ExchangeBroken."""
        member, coordinator = self._member, self._member.coordinator
        if member.saver.on:
            member.comparison.before_saving()
            member.saver.insist(self.save, coordinator.interrupted, cancelled=coordinator.plan_pending)
        # A barrier: nobody leaves the generation while another member still saves.
        member.generation.exchange.all_reduce(torch.zeros(1, dtype=torch.float64))

    def rest(self) -> None:
        """Save what a group too small to go on still holds, the only purpose of its generation. Returns once it is
        written, or once an interruption or a newer plan ends the wait. Raises ExchangeBroken."""
        member, coordinator = self._member, self._member.coordinator

        def over() -> bool:
            return coordinator.interrupted() or coordinator.plan_pending()

        # A server that is ahead has not got the state of the step that the others stand at.
        ahead = torch.tensor([member.ahead], dtype=torch.float64)
        if not member.generation.exchange.all_reduce(ahead).any() and member.saver.on:
            member.comparison.before_saving()
            member.gather_loop_state()
            member.saver.insist(partial(self.save, settled=True), given_up=over, cancelled=over)
        # A barrier, as in `pause`.
        member.generation.exchange.all_reduce(torch.zeros(1, dtype=torch.float64))

    def end(self, look: Callable[[], None]) -> None:
        """Save the state with which the job ends, for jobs that begin with it: once a generation, where all of it is
        still held. What is written before it is waited for, with a bound; so is this, by the end of the run.

        Args:
            look: called now and then; what it raises ends the wait.
        """
        member = self._member
        plan = member.generation.plan
        if self._ended == plan.generation or not member.saver.asked_for or not self._whole(plan):
            return
        self._ended = plan.generation
        member.saver.written(look)
        self.save(settled=True, final=True)

    def _whole(self, plan: Plan) -> bool:
        """Whether the members hold the whole state: who is lost behind the last step is not replaced."""
        sync = self._member.spec.sync
        if not sync.server_count:
            return True
        return plan.servers > 0 and (sync.servers_are_copies or all(plan.held_by))

    def save(self, *, settled: bool = False, final: bool = False) -> None:
        """Copy the part that this member writes. For `settled` see `SavedPart`, for `final` `CheckpointPosition`."""
        member = self._member
        plan = member.generation.plan
        since = time.perf_counter()
        part = member.healing.part_to_save()
        if part is not None:
            position = CheckpointPosition(
                member.progress.step, member.progress.transactions, plan.attempt, plan.generation, final
            )
            member.saver.save(member.healing.state_of(part), part, position, settled=settled)
        whole = part is not None and part.count == 1
        member.saver.cadence.copied(member.progress.step, time.perf_counter() - since, whole=whole)
        self._alone = False

    def _expect(self) -> None:
        """Have memory for the copy prepared: after the generation's first step the state has its final size."""
        member = self._member
        self._expects = False
        part = member.healing.part_to_save()
        if part is not None and not (member.spec.sync.leased or member.spec.sync.circulates):
            member.saver.expect(member.healing.state_of(part), part)
