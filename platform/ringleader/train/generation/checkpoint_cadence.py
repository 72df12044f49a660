"""When a checkpoint is due: every so many steps, and before more than so many seconds of work are at risk."""

from collections.abc import Callable
from enum import IntEnum

SHARE = 100
"""A pause for a copy is at most one part in so many of training, where time says when there is one."""
WRITING_SHARE = 2
"""And so is the time in which files are written."""


class CheckpointVote(IntEnum):
    """What a member says about a checkpoint behind the step that it is at: one is made where somebody wants it and
    nobody objects."""

    OBJECTS = 0
    FOLLOWS = 1
    WANTS = 2


class CheckpointCadence:
    """One member's. Its clock alone decides nothing: members tell each other their wishes with the step.

    Args:
        every_steps, every_s: as in the job file; None: not by this.
        clock: seconds that never go back.
    """

    def __init__(self, every_steps: int | None, every_s: float | None, clock: Callable[[], float]) -> None:
        self._every_steps = every_steps
        self._every_s = every_s
        self._clock = clock
        self._since_s: float | None = None
        self._least_s = 0.0
        self.step = 0

    def due(self, before: int, step: int) -> bool:
        """Whether one is due by steps, where the transaction before ended at step `before`."""
        every = self._every_steps
        return every is not None and step // every > before // every

    def nears(self, step: int) -> bool:
        """Whether the next one is due in less time than has gone by since the one before."""
        every = self._every_steps
        by_steps = every is not None and step % every * 2 >= every
        return by_steps or (self._every_s is not None and self._elapsed_s * 2 >= self._every_s)

    def wish(self, *, busy: bool) -> CheckpointVote:
        """By time.

        Args:
            busy: the one before is being written.
        """
        if self._every_s is None or busy or self._elapsed_s < self._least_s:
            return CheckpointVote.OBJECTS
        return CheckpointVote.WANTS if self._elapsed_s >= self._every_s else CheckpointVote.FOLLOWS

    def at_risk(self, step: int) -> bool:
        """Whether there is work that time would have secured."""
        return self._every_s is not None and step > self.step

    def copied(self, step: int, pause_s: float, *, whole: bool) -> None:
        """One was copied of `step`; training waited so long.

        Args:
            whole: by this member. Where others write a part of it, and one of them is lost, it may never be one.
        """
        self._since_s, self._least_s = self._clock(), SHARE * pause_s
        if whole:
            self.step = step

    def written(self, took_s: float) -> None:
        """Its files are there."""
        self._least_s = max(self._least_s, WRITING_SHARE * took_s)

    @property
    def _elapsed_s(self) -> float:
        """Since the copy before, or since somebody asked first."""
        now = self._clock()
        if self._since_s is None:
            self._since_s = now
        return now - self._since_s
