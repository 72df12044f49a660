"""What lines between two steps, in a loop over `session.steps`, make of kept objects.

It is no part of the committed state before the next step commits: whoever takes over a member's state at that step runs
the lines itself, on what the step's commit left. So a member that gives or takes state has that live meanwhile.
"""

import copy
from typing import Any

from ringleader.train.state.progress import Progress
from ringleader.train.state.training_state import TrainingState


class StepLines:
    """One member's kept objects, as the lines behind the newest step, or phase, have made them here."""

    def __init__(self, held: TrainingState, progress: Progress) -> None:
        self._held = held
        self._progress = progress
        self._made: dict[str, dict[str, Any]] | None = None
        self._call, self._stands = -1, (-1, 0)
        self._live = (0, 0)

    def record(self) -> None:
        """Record what is live: the lines are over, or at an evaluation."""
        self._made, self._stands = self._held.kept.copies(self._made or {}), self._progress.stands
        self._call = self._progress.calls.next - 1
        self._live = self._mark

    def take_over(self) -> None:
        """Take what a peer has given of these lines for what they have made: the two stand at the same one."""
        if self._counts and self._live != self._mark:
            self.record()

    def forget(self) -> None:
        """Forget it: the loop is over, and lines between session calls begin."""
        self._made = None

    def put_aside(self) -> None:
        """Make what the step's commit left live."""
        if self._counts:
            self._held.kept.rewind()

    def take_up(self) -> None:
        """Make what the lines have made live again, where something else is, if no newer step has committed."""
        if self._counts and self._live != self._mark:
            self._held.kept.put(copy.deepcopy(self._made or {}))
            self._live = self._mark

    @property
    def _counts(self) -> bool:
        # Where the loop is over its end is committed, with what its last lines have made.
        over = self._progress.calls.is_finished(self._call)
        return self._made is not None and self._stands == self._progress.stands and not over

    @property
    def _mark(self) -> tuple[int, int]:
        """Differs once kept objects were given another state."""
        return self._held.kept.rewinds, self._progress.heals
