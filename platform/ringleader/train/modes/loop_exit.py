"""Leaving a loop by `break`: all members agree on it with the word of a step that nobody makes.

Servers, workers without a slice and workers that took over a peer's state cannot know that the others have left: they
say that they follow. A worker that has seen the same committed state and goes on is an error.
"""

from torch import Tensor

from ringleader.train.generation.control_word import LoopStance
from ringleader.train.generation.member import Member


class LoopExit:
    """This member's stance on leaving the running loop."""

    def __init__(self, member: Member) -> None:
        self._member = member
        self._seen = -1
        self._sees_all = False

    def begin(self) -> None:
        """Begin a loop on this member, maybe in its middle."""
        self._seen, self._sees_all = -1, False

    def see_all(self) -> None:
        """Have the program's lines see the end of every transaction of this loop."""
        self._sees_all = True

    @property
    def sees_all(self) -> bool:
        """Whether the program's lines see the end of every transaction of the running loop."""
        return self._sees_all

    def committed(self, *, turns: bool) -> None:
        """Record a committed transaction; `turns`: the loop body ran for it here, and so sees its result."""
        # In heals: a member that takes over a peer's state after this has not seen what the others broke on.
        self._seen = self._member.progress.heals if turns else -1

    @property
    def saw(self) -> bool:
        """Whether the loop body saw the result of the last transaction here, and could leave before this one."""
        begins = self._member.progress.calls.offset == 0
        return begins or self._sees_all or self._seen == self._member.progress.heals

    def stance(self, *, leaves: bool, turns: bool) -> LoopStance:
        """This member's stance for the word of the next transaction. `leaves`: the loop body has left here; `turns`: it
        has turns in that transaction."""
        member = self._member
        if leaves:
            return LoopStance.LEAVES
        if member.serves:
            # It holds the gradient of a step that nobody left before.
            return LoopStance.STAYS if member.ahead else LoopStance.FOLLOWS
        return LoopStance.STAYS if self._sees_all or (turns and self.saw) else LoopStance.FOLLOWS

    def server_is_ahead(self, reduced: Tensor) -> bool:
        """Whether a server has made the step of that word already: what it publishes are the weights behind it."""
        plan = self._member.generation.plan
        stances = self._member.layout.stances(reduced, world=len(plan.members))
        return LoopStance.STAYS in stances[plan.world :]
