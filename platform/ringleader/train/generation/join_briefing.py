"""What a worker is told of the program before it has a seat: the calls that are over for all members, and what the
lines behind them began with. It runs those lines while the group trains on.

Nothing of it can be taken back: when a step commits, all members have begun its call, so that all know the end of the
calls before it, and the lines between them have been run.
"""

from dataclasses import dataclass
from math import inf
from time import monotonic
from typing import TYPE_CHECKING, Any

from ringleader.train.between_calls.session_calls import FinishedCall

if TYPE_CHECKING:
    from ringleader.train.generation.member import Member


NEAR_S = 0.1
"""Lines that take no longer than this, as those before did, the others may wait for."""

IDLE_ROUNDS = 2
"""So often in a row it is told of no fewer calls than before, then it chases no more: where lines take longer than a
loop the others are always one call ahead."""


@dataclass(frozen=True, slots=True)
class JoinBriefing:
    """A member's, at a commit. What it refers to does not change any more, so any thread may send it.

    Attributes:
        until: the call that runs; all calls before it are over for every member.
        left: the numbers of loops that the program's body left.
        boundaries: of the calls before `until`.
        variables: what the program's variables were at the begins of calls, and what was found.
        trained: which parameters are, by the last agreement.
    """

    until: int
    finished: tuple[FinishedCall, ...]
    left: tuple[int, ...]
    boundaries: tuple[tuple[Any, ...], ...]
    variables: dict[str, Any]
    trained: tuple[tuple[int, ...], int]

    @classmethod
    def of(cls, group: "Member") -> "JoinBriefing":
        """That of a member whose transaction has just committed."""
        calls = group.calls
        until = max(0, calls.next - 1)
        return cls(
            until=until,
            finished=tuple(calls.finished[:until]),
            left=tuple(sorted(number for number in calls.left if number < until)),
            boundaries=tuple(group.sections.state()[1][:until]),
            variables=group.sections.variables.state(),
            trained=group.trained.state(),
        )

    def since(self, known: int) -> dict[str, Any]:
        """What somebody lacks who knows the calls before `known`."""
        seen = {number: texts for number, texts in self.variables["seen"].items() if number >= known}
        return {
            "until": self.until,
            "finished": self.finished[known:],
            "left": self.left,
            "boundaries": (known, list(self.boundaries[known:])),
            "variables": self.variables | {"seen": seen},
            "trained": self.trained,
        }


class CatchUp:
    """How a worker without a seat comes up with the others, who go on meanwhile: told of calls that are over, it runs
    the lines behind them and asks again, until what is left costs little, or does not become less. It takes that along
    to its seat.

    Attributes:
        begun: it has run lines on the states of places in the program.
        runs: it has been told of lines, and runs them.
    """

    def __init__(self, group: "Member") -> None:
        self._group = group
        self.begun = self.runs = False
        self._since = self._line_s = inf
        self._from = self._fewest = self._idle_rounds = 0

    def arrive(self) -> None:
        """The program has come to a call of which nothing is known, or shall go no further: how long did lines take?"""
        if self.runs:
            ran = max(1, self._group.calls.next - 1 - self._from)
            self.runs, self._line_s = False, (monotonic() - self._since) / ran

    def hear(self, told: dict[str, Any]) -> bool:
        """Know what `JoinBriefing.since` gave. Returns whether nothing is left to run before its seat."""
        group = self._group
        group.calls.finished += told["finished"]
        group.calls.left |= set(told["left"])
        group.sections.restore(told["boundaries"])
        group.sections.variables.restore(told["variables"])
        group.trained.restore(told["trained"])
        here = group.calls.next - 1
        count = len(group.calls.finished) - here
        if self._near(count):
            return True
        group.sections.run_until(len(group.calls.finished))
        self.begun = self.runs = True
        self._since, self._from = monotonic(), here
        return False

    def _near(self, count: int) -> bool:
        """Whether no more than so many calls are over as the others may wait for."""
        if count <= 0 or count * self._line_s <= NEAR_S:
            return True
        less = not self._fewest or count < self._fewest
        self._fewest = count if less else self._fewest
        self._idle_rounds = 0 if less else self._idle_rounds + 1
        return self._idle_rounds >= IDLE_ROUNDS
