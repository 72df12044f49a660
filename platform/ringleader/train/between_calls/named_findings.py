"""Findings by name: what makes other bits, said once in the log and for good in the result."""

from collections.abc import Iterable, Sequence

from ringleader.train.generation.context import MemberContext

NAMED = 5
"""The number of findings that are named; the others are counted."""


class NamedFindings:
    """One kind of findings: of this member, of its donors and of earlier attempts.

    Args:
        sentence: what is wrong, and the cure; `{}` stands for the names.
    """

    def __init__(self, context: MemberContext, sentence: str) -> None:
        self._context = context
        self._sentence = sentence
        self._names: list[str] = []

    def __contains__(self, name: str) -> bool:
        return name in self._names

    @property
    def why_other_bits(self) -> str:
        """The sentence with the first names and the number of the others; empty where nothing was found."""
        names, more = sorted(self._names)[:NAMED], len(self._names) - NAMED
        told = ", ".join(names) + (f" and {more} more" if more > 0 else "")
        return self._sentence.format(told) if names else ""

    def add(self, *names: str) -> None:
        """Add what was found here. The first member says it in its log, where it is news."""
        if not self._take(names):
            return
        generation = self._context.current
        if generation is not None and generation.rank == 0:
            print(f"ringleader: the weights will not be reproducible: {self.why_other_bits}")

    def state(self) -> list[str]:
        return list(self._names)

    def restore(self, state: Sequence[str]) -> None:
        """Take over others' findings; this member's own stay."""
        self._take(state)

    def _take(self, names: Iterable[str]) -> bool:
        """Returns whether any of them is new."""
        new = [name for name in dict.fromkeys(names) if name not in self._names]
        self._names += new
        return bool(new)
