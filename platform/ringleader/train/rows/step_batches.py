"""The batches of one step's slices, loaded once for all its phases."""

import copy
from collections.abc import Iterator
from itertools import count
from typing import Any


class StepBatches:
    """One member's batches of the running step."""

    def __init__(self) -> None:
        self._loaded: Iterator[Any] | None = None
        self._offset = -1
        self._batches: list[Any] = []

    def of(self, loaded: Iterator[Any], offset: int, *, last: bool) -> Iterator[Any]:
        """The batches for one phase of the step at `offset`, in the order of its slices.

        Args:
            loaded: gives those of all slices that come next, once.
            last: no other phase follows. Until then a phase gets copies: its body may change a batch in place, which a
                worker that takes over that slice for the next phase has not seen.
        """
        if self._loaded is not loaded or self._offset != offset:
            self._loaded, self._offset, self._batches = loaded, offset, []
        for number in count():
            if number == len(self._batches):
                self._batches.append(next(loaded))
            batch = self._batches[number]
            yield batch if last else copy.deepcopy(batch)
