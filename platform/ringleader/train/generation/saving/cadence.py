"""The cadence of checkpoints: every so many steps, and before more than so many seconds of work are at risk."""

from collections.abc import Callable
from enum import IntEnum

SHARE = 100
"""Where checkpoints go by time, the next one comes after at least this many times the last copy's pause."""
WRITING_SHARE = 2
"""It also comes after at least this many times the seconds that writing the last one took."""


class CheckpointVote(IntEnum):
    """A member's vote on a checkpoint behind its current step: one is made where a member wants it and none objects, or
    where the program demands it."""

    OBJECTS = 0
    FOLLOWS = 1
    WANTS = 2
    DEMANDS = 3


class CheckpointCadence:
    """One member's cadence. Its clock alone decides nothing: members send each other their votes with the step.

    Args:
        every_steps, every_s: as in the job file; None turns the one off.
        clock: monotonic seconds.
    """

    def __init__(self, every_steps: int | None, every_s: float | None, clock: Callable[[], float]) -> None:
        self._every_steps = every_steps
        self._every_s = every_s
        self._clock = clock
        self._since_s: float | None = None
        self._least_s = 0.0
        self._secured = 0

    @property
    def asked_for(self) -> bool:
        """Whether the job has checkpoints, by steps or by time."""
        return self._every_steps is not None or self._every_s is not None

    def due(self, before: int, step: int) -> bool:
        """Whether a checkpoint is due by steps, where the transaction before ended at step `before`."""
        every = self._every_steps
        # Not `step % every == 0`: a round commits several steps, and may pass a multiple without ending at
        # it.
        return every is not None and step // every > before // every

    def nears(self, step: int) -> bool:
        """Whether the next checkpoint is closer than the one before, by steps or by time."""
        every = self._every_steps
        by_steps = every is not None and step % every * 2 >= every
        return by_steps or (self._every_s is not None and self._elapsed_s * 2 >= self._every_s)

    def wish(self, *, busy: bool) -> CheckpointVote:
        """This member's vote, by time.

        Args:
            busy: the checkpoint before is still being written.
        """
        # An objection bounds the cost: another copy now would exceed its share of training.
        if self._every_s is None or busy or self._elapsed_s < self._least_s:
            return CheckpointVote.OBJECTS
        # Clocks differ, and all have to save behind the same step: so this is a vote.
        return CheckpointVote.WANTS if self._elapsed_s >= self._every_s else CheckpointVote.FOLLOWS

    def begin_at(self, step: int) -> None:
        """Begin with a checkpoint of that step: up to it no work is at risk."""
        self._secured = step

    def at_risk(self, step: int) -> bool:
        """Whether steps were made since the last whole copy, in a job that has checkpoints by time."""
        return self._every_s is not None and step > self._secured

    def copied(self, step: int, pause_s: float, *, whole: bool) -> None:
        """Record a copy of `step`, for which training waited `pause_s` seconds.

        Args:
            whole: this member copied all of it. Where others write a part and one of them is lost, it may never become
                a checkpoint.
        """
        self._since_s, self._least_s = self._clock(), SHARE * pause_s
        if whole:
            self._secured = step

    def written(self, took_s: float) -> None:
        """Record that the copy's files were written, in `took_s` seconds."""
        self._least_s = max(self._least_s, WRITING_SHARE * took_s)

    @property
    def _elapsed_s(self) -> float:
        """Seconds since the last copy, or since the first call of this."""
        now = self._clock()
        if self._since_s is None:
            self._since_s = now
        return now - self._since_s
