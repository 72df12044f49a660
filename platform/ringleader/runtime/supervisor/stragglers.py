"""The detector of stragglers: a worker's own computing against the others' median. Times come in from outside."""

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median

WINDOW_S = 5.0
LEAST = 3
"""The pieces that each worker has to have computed for a window to be long enough."""
SLOW, FINE = 2.0, 1.5
"""Multiples of the others' median: above the first a worker is slow, below the second it is so no more."""
WINDOWS = 2
"""The number of windows running that make a worker slow."""


@dataclass(frozen=True, slots=True)
class Straggler:
    """A worker whose equal share of a step takes `step_s` of its own time, and the others' median `others_s`."""

    worker: str
    step_s: float
    others_s: float


@dataclass(slots=True)
class _Work:
    """One worker's computing in this generation: seconds and pieces, now and when the window began."""

    seconds: float = 0.0
    pieces: int = 0
    seconds_before: float = 0.0
    pieces_before: int = 0

    @property
    def done(self) -> int:
        return self.pieces - self.pieces_before

    @property
    def cost_s(self) -> float:
        return (self.seconds - self.seconds_before) / self.done

    def reach(self, seconds: float, pieces: int) -> None:
        self.seconds, self.pieces = seconds, pieces

    def begin(self) -> None:
        self.seconds_before, self.pieces_before = self.seconds, self.pieces


class StragglerDetector:
    """A comparison over windows of some seconds. Waiting for others is in nobody's time, so one slow worker makes no
    other one slow. `take` and `look` on one thread."""

    def __init__(self) -> None:
        self._generation = 0
        self._began = 0.0
        self._work: dict[str, _Work] = {}
        self._above: dict[str, int] = {}

    def take(self, worker: str, *, generation: int, worked_s: float, worked: int, now: float) -> None:
        """Note that `worker` has computed `worked` pieces of steps in `worked_s` in this generation."""
        if generation > self._generation:
            self._generation, self._began, self._work = generation, now, {}
        if generation < self._generation:
            return
        work = self._work.setdefault(worker, _Work())
        # The generation's first step does not count: once it is over the worker counts from 0 again.
        if worked < work.pieces or worked_s < work.seconds:
            self._work[worker] = work = _Work()
        work.reach(worked_s, worked)

    def look(self, now: float, shares: Mapping[str, float]) -> list[Straggler]:
        """The workers found slow now, each once until it has been fine again.

        Args:
            shares: of the workers that compute: their part of a step, or 1 for each where they lease items.
        """
        work = {w: self._work.get(w, _Work()) for w in shares}
        if now - self._began < WINDOW_S or len(work) < 2 or any(w.done < LEAST for w in work.values()):
            return []
        costs = {worker: work[worker].cost_s / shares[worker] for worker in work}
        self._began = now
        for one in work.values():
            one.begin()
        self._above = {worker: above for worker, above in self._above.items() if worker in costs}
        equal = sum(shares.values()) / len(shares)
        return [found for worker in costs if (found := self._judge(worker, costs, equal))]

    def _judge(self, worker: str, costs: Mapping[str, float], equal: float) -> Straggler | None:
        # Without its own: of two workers the slow one would be half of the median.
        others = median(cost for other, cost in costs.items() if other != worker)
        above = self._above.get(worker, 0)
        if costs[worker] > SLOW * others:
            self._above[worker] = above + 1
        # Between the two bounds a slow worker stays slow, so that it is not found anew again and again.
        elif above < WINDOWS or costs[worker] < FINE * others:
            self._above[worker] = 0
        # Only in the window that makes it slow: each is named once.
        if above + 1 != WINDOWS or self._above[worker] != WINDOWS:
            return None
        return Straggler(worker, costs[worker] * equal, others * equal)
