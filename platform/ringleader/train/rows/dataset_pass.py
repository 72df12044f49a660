"""One pass over a dataset, as the program's loop iterates over it."""

from collections.abc import Callable, Iterator
from typing import Any


class DatasetPass(Iterator[Any]):
    """The iterator that `session.batches` returns. A loop over it holds its turns itself, so they end with the loop, by
    `break` too, whatever else holds this: a progress bar, a variable.

    Args:
        turns: makes the turns of one pass.
    """

    def __init__(self, turns: Callable[[], Iterator[Any]]) -> None:
        self._make = turns
        self._turns: Iterator[Any] | None = None

    def __iter__(self) -> Iterator[Any]:
        return self._make() if self._turns is None else self._turns

    def __next__(self) -> Any:
        if self._turns is None:
            self._turns = self._make()
        return next(self._turns)
