"""Steps of training that the job file leaves out (`data.skip`), numbered as in a job that leaves none out."""

from bisect import bisect_right
from collections.abc import Sequence

Ranges = Sequence[tuple[int, int]]
"""First and last step of each range, counted from 1, as charts and the row ledger do."""


class KeptSteps:
    """The steps of a stretch of training that are not left out.

    Args:
        steps: how many there are without `skip`.
        before: the steps before the stretch.
    """

    def __init__(self, steps: int, before: int, skip: Ranges) -> None:
        self.whole = steps
        gaps = ((max(0, first - 1 - before), min(steps, last - before)) for first, last in sorted(skip))
        # Of each run of kept steps: how many kept ones are before it, and where it begins.
        self._counts, self._begins = [0], [0]
        end = kept = 0
        for low, high in gaps:
            if low >= high or high <= end:
                continue
            kept += max(0, low - end)
            end = high
            self._counts.append(kept)
            self._begins.append(end)
        self._kept = kept + steps - end

    def __len__(self) -> int:
        return self._kept

    def place(self, offset: int) -> int:
        """The place of a kept step among all."""
        run = bisect_right(self._counts, offset) - 1
        return self._begins[run] + offset - self._counts[run]


class StepNumbers:
    """The numbers that the steps of a program's loops would have, were none left out.

    They follow from the program's loops in their order and from how many steps each of them committed, so they are the
    same on every member, whenever it came.
    """

    def __init__(self, skip: Ranges) -> None:
        self._skip = skip
        self._before = 0
        self._last: tuple[int, KeptSteps] | None = None

    def begin(self, number: int, steps: int, ended: Sequence[int]) -> KeptSteps:
        """The steps of the loop of call `number` that are kept; the loops before it have ended.

        Args:
            steps: of a whole pass.
            ended: for each call that has ended, the steps that were committed then.
        """
        if self._last is not None:
            last, kept = self._last
            self._before += _passed(kept, ended[last] - (ended[last - 1] if last else 0))
        kept = KeptSteps(steps, self._before, self._skip)
        self._last = number, kept
        return kept


def _passed(kept: KeptSteps, committed: int) -> int:
    """The steps of a loop that are over when so many are committed: those left out behind the last one belong to it,
    unless the program left the loop before its end."""
    if committed >= len(kept):
        return kept.whole
    return kept.place(committed - 1) + 1 if committed else 0
