"""The briefing of a worker that has no seat yet: the calls that are over for all members, and the state that the lines
behind them began with. It runs those lines while the group trains on.

Nothing of it can be taken back: when a step commits, all members have begun its call, so that all know the end of the
calls before it, and the lines between them have been run.
"""

from dataclasses import dataclass
from math import inf
from time import monotonic
from typing import Any

from ringleader.train.between_calls.sections import ProgramSections
from ringleader.train.between_calls.session_calls import FinishedCall, SessionCalls
from ringleader.train.between_calls.variables import ProgramVariables
from ringleader.train.device.compiled_calls import MetCall
from ringleader.train.state.parameters.trained import TrainedParameters
from ringleader.train.state.progress import Progress
from ringleader.train.state.training_state import TrainingState

NEAR_S = 0.1
"""Seconds of lines that the others may wait for, at the pace of those run so far."""

IDLE_ROUNDS = 2
"""Briefings in a row with no fewer calls than before, after which a worker chases no more: where lines take longer than
a loop the others are always one call ahead."""


@dataclass(frozen=True, slots=True)
class JoinBriefing:
    """A member's briefing at a commit. What it refers to never changes again, so any thread may send it.

    Attributes:
        until: the call that runs; all calls before it are over for every member.
        left: the numbers of loops that the program's body left.
        boundaries: those of the calls before `until`.
        variables: the program's variables at the begin of each call, and the findings.
        trained: the parameters that are trained, by the last agreement.
        compiled: for each compiled model, the calls that it has met.
    """

    until: int
    finished: tuple[FinishedCall, ...]
    left: tuple[int, ...]
    boundaries: tuple[tuple[Any, ...], ...]
    variables: dict[str, Any]
    trained: tuple[tuple[int, ...], int]
    compiled: tuple[tuple[MetCall, ...], ...] = ()

    @classmethod
    def of(
        cls,
        calls: SessionCalls,
        sections: ProgramSections,
        variables: ProgramVariables,
        trained: TrainedParameters,
        held: TrainingState,
    ) -> "JoinBriefing":
        """The briefing by a member whose transaction has just committed."""
        # Without the running call: a commit says that all members have begun it, and nothing of its end.
        until = max(0, calls.next - 1)
        return cls(
            until=until,
            finished=tuple(calls.finished[:until]),
            left=tuple(sorted(number for number in calls.left if number < until)),
            boundaries=tuple(sections.state()[1][:until]),
            variables=variables.state(),
            trained=trained.state(),
            compiled=tuple(calls.met() for calls in held.compiled),
        )

    def since(self, known: int) -> dict[str, Any]:
        """The part that a worker lacks which knows the calls before `known`."""
        seen = {number: texts for number, texts in self.variables["seen"].items() if number >= known}
        return {
            "until": self.until,
            "finished": self.finished[known:],
            "left": self.left,
            "boundaries": (known, list(self.boundaries[known:])),
            "variables": self.variables | {"seen": seen},
            "trained": self.trained,
            "compiled": self.compiled,
        }


class CatchUp:
    """The catching up of a worker without a seat, while the others train on. Briefed on calls that are over, it runs
    the lines behind them and asks again, until what is left costs little or does not become less. It runs that rest
    with its seat.

    Attributes:
        begun: it has run lines on recorded states.
        runs: it runs the lines that it was told of.
    """

    def __init__(
        self,
        progress: Progress,
        sections: ProgramSections,
        variables: ProgramVariables,
        trained: TrainedParameters,
    ) -> None:
        self._progress = progress
        self._sections = sections
        self._variables = variables
        self._trained = trained
        self.begun = self.runs = False
        # Infinite until lines were timed: before that none of them count as few.
        self._since = self._line_s = inf
        self._from = self._fewest = self._idle_rounds = 0

    def arrive(self) -> None:
        """Measure the lines just run: the program has come to a call of which nothing is known, or shall stop here."""
        if self.runs:
            # One at least: a program may arrive at once, with no call behind it.
            ran = max(1, self._progress.calls.next - 1 - self._from)
            self.runs, self._line_s = False, (monotonic() - self._since) / ran

    def hear(self, told: dict[str, Any]) -> bool:
        """Take over what `JoinBriefing.since` gave. Returns whether nothing is left to run before the worker's seat."""
        progress = self._progress
        progress.take_finished(told["finished"])
        for number in told["left"]:
            progress.leave_loop(number)
        self._sections.restore(told["boundaries"])
        self._variables.restore(told["variables"])
        self._trained.restore(told["trained"])
        here = progress.calls.next - 1
        count = len(progress.calls.finished) - here
        if self._near(count):
            return True
        self._sections.run_until(len(progress.calls.finished))
        self.begun = self.runs = True
        self._since, self._from = monotonic(), here
        return False

    def _near(self, count: int) -> bool:
        """Whether the others may wait for the lines of so many calls, or chasing them gains nothing more."""
        if count <= 0 or count * self._line_s <= NEAR_S:
            return True
        less = not self._fewest or count < self._fewest
        self._fewest = count if less else self._fewest
        self._idle_rounds = 0 if less else self._idle_rounds + 1
        return self._idle_rounds >= IDLE_ROUNDS
