"""The pace of a job: how many steps it has settled per second lately, and how long the others will take."""

from collections import deque
from dataclasses import dataclass, field

from ringleader.wire.states import State
from ringleader.wire.views import JobView

WINDOW_S = 60.0
LEAST_S = 3.0
LEAST_STEPS = 2
"""Less than this says nothing: settled steps arrive several at once."""

_MOVES = (State.RUNNING, State.RECOVERING)


@dataclass(slots=True)
class Pace:
    """Steps by the time of the looks at them, over the last minute."""

    looks: deque[tuple[float, int]] = field(default_factory=deque)

    def look(self, now_s: float, view: JobView) -> None:
        """Take in a look at the job. One that waits, or goes back to a checkpoint, begins anew."""
        step = view.progress.step
        # Time before the first step that was seen to settle is no measure of a step.
        if view.state not in _MOVES or (self.looks and not self.looks[0][1] < step >= self.looks[-1][1]):
            self.looks.clear()
        if view.state in _MOVES:
            self.looks.append((now_s, step))
        # By the second look: the first one is needed as long as no other is as old as the window.
        while len(self.looks) > 1 and self.looks[1][0] <= now_s - WINDOW_S:
            self.looks.popleft()

    @property
    def steps_per_s(self) -> float | None:
        """None: not known."""
        if not self.looks:
            return None
        (since_s, first), (until_s, last) = self.looks[0], self.looks[-1]
        if last - first < LEAST_STEPS or until_s - since_s < LEAST_S:
            return None
        return (last - first) / (until_s - since_s)


def left_s(view: JobView, steps_per_s: float | None) -> float | None:
    """The time for the steps that are left, at this pace; None where the number of steps or the pace is not known."""
    total = view.progress.total_steps
    if total is None or steps_per_s is None or view.state is not State.RUNNING:
        return None
    return max(0, total - view.progress.step) / steps_per_s


def rate(per_s: float) -> str:
    """In as many digits as one looks at."""
    return f"{per_s:.2g}" if per_s < 10 else f"{per_s:,.0f}"
