"""The comparison of named texts between members: one number for all of them goes with a word, and where members give
different ones a table tells which texts differ."""

import hashlib
from collections.abc import Mapping, Sequence
from math import inf

import torch

from ringleader.train.generation.generation import Generation

SLOTS = 1 << 15
"""Entries of a member's row in the table, by hashes of names. Two names that share one are both reported."""


def number_of(texts: Mapping[str, str]) -> int:
    """A number below 2**48 for named texts; 0 where there are none."""
    return number_of_text(repr(sorted(texts.items()))) if texts else 0


def number_of_text(text: str) -> int:
    """A number for a text, from 1 to 2**48 - 1, which two entries of a word hold, and a float64 exactly."""
    return int.from_bytes(hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=6).digest()) or 1


class TextComparison:
    """The comparison among members of these ranks. All members make one together.

    Args:
        mine: this member's texts by name; of a member of another rank none.

    Raises:
        ExchangeBroken
    """

    def __init__(self, generation: Generation, mine: Mapping[str, str], ranks: Sequence[int]) -> None:
        self._ranks = ranks
        self._slots = {name: number_of_text(name) % SLOTS for name in mine}
        said = torch.zeros(len(generation.plan.members), SLOTS, dtype=torch.float64)
        for name, slot in self._slots.items():
            said[generation.rank, slot] += number_of_text(name + mine[name])
        self._told = generation.exchange.all_reduce(said)[list(ranks)]

    @property
    def differing(self) -> list[str]:
        """This member's names whose texts are others elsewhere. That a member has none is no difference."""
        most, least = (
            self._told.max(dim=0).values,
            self._told.masked_fill(self._told == 0, inf).min(dim=0).values,
        )
        return [name for name, slot in self._slots.items() if most[slot] != least[slot]]

    @property
    def not_everywhere(self) -> set[str]:
        """This member's names that others of those ranks do not have."""
        return {name for name, slot in self._slots.items() if not self._told[:, slot].all()}

    def first(self, name: str) -> int:
        """The first rank of those that have this name."""
        return self._ranks[int(self._told[:, self._slots[name]].nonzero()[0])]
