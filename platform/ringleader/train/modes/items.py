"""The set of a loop's applied items. An item is one logical shard's rows of one batch, numbered offset * L + shard."""

from collections.abc import Iterable, Iterator

import numpy as np


class ItemSet:
    """A growing set of item numbers: all below `floor`, and some beyond. Stays small where items come nearly in order.

    Attributes:
        floor: every number below it is in the set, `floor` itself is not.
    """

    __slots__ = ("_beyond", "floor")

    def __init__(self, floor: int = 0, beyond: Iterable[int] = ()) -> None:
        self.floor = floor
        self._beyond: set[int] = set()
        for number in beyond:
            self.add(number)

    def add(self, number: int) -> bool:
        """Add an item. Returns False where it was there."""
        if number in self:
            return False
        self._beyond.add(number)
        while self.floor in self._beyond:
            self._beyond.remove(self.floor)
            self.floor += 1
        return True

    def update(self, other: "ItemSet") -> None:
        """Add all items of the other set."""
        for number in range(self.floor, other.floor):
            self.add(number)
        for number in other._beyond:
            self.add(number)

    def without(self, numbers: Iterable[int]) -> "ItemSet":
        """A set of the same items but these."""
        left_out = {number for number in numbers if number in self}
        floor = min([self.floor, *left_out])
        inside = (number for number in range(floor, self.floor) if number not in left_out)
        return ItemSet(floor, [*inside, *(self._beyond - left_out)])

    @property
    def end(self) -> int:
        """The lowest number above every item in the set."""
        return max(self._beyond, default=self.floor - 1) + 1

    def beyond(self, other: "ItemSet") -> list[int]:
        """The items in this set that are not in the other, ascending."""
        numbers = (*range(other.floor, self.floor), *sorted(self._beyond))
        return [number for number in numbers if number not in other]

    def missing(self, end: int) -> Iterator[int]:
        """The numbers below `end` that are not in the set, ascending."""
        return (number for number in range(self.floor, end) if number not in self._beyond)

    def __contains__(self, number: int) -> bool:
        return number < self.floor or number in self._beyond

    def __len__(self) -> int:
        return self.floor + len(self._beyond)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ItemSet) and (self.floor, self._beyond) == (other.floor, other._beyond)

    __hash__ = None  # type: ignore[assignment]

    def __and__(self, other: "ItemSet") -> "ItemSet":
        """The items in both sets."""
        low, high = sorted((self, other), key=lambda items: items.floor)
        # Between the two floors the other set has every number.
        return ItemSet(low.floor, (number for number in low._beyond if number in high))

    def copy(self) -> "ItemSet":
        return ItemSet(self.floor, self._beyond)

    def encode(self) -> np.ndarray:
        """(1 + beyond,) int64 to send to a peer."""
        return np.array([self.floor, *sorted(self._beyond)], dtype=np.int64)

    @classmethod
    def decode(cls, sent: np.ndarray) -> "ItemSet":
        floor, *beyond = (int(number) for number in sent)
        return cls(floor, beyond)
