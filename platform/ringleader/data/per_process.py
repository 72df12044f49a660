"""A value that each process makes for itself: open files and threads are neither pickled nor shared over a fork."""

import os
from collections.abc import Callable
from typing import Any, Generic, TypeVar

Value = TypeVar("Value")


class PerProcess(Generic[Value]):
    """The value of this process, made when it is first asked for.

    Args:
        make: makes one; it is pickled in place of the value.
    """

    # Without a `__dict__`: who looks for the generators of a data set does not look into its blocks.
    __slots__ = ("_made", "_make")

    def __init__(self, make: Callable[[], Value]) -> None:
        self._make = make
        self._made: tuple[int, Value] | None = None

    def get(self) -> Value:
        """The value of this process."""
        made = self._made
        if made is None or made[0] != os.getpid():
            made = self._made = os.getpid(), self._make()
        return made[1]

    def __reduce__(self) -> tuple[Any, ...]:
        return PerProcess, (self._make,)
