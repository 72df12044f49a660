"""A progress bar that shows nothing, as a generator of a library would be."""

from collections.abc import Iterator
from typing import Any


class tqdm:
    def __init__(self, iterable: Any, desc: str = "") -> None:
        self._iterable = iterable

    def __iter__(self) -> Iterator[Any]:
        yield from self._iterable

    def __len__(self) -> int:
        return len(self._iterable)
