"""The vote on fingerprints that members give of what should be equal on all of them: which is right, and who differs.

A fingerprint is a whole number that a float64 holds exactly; 0 stands for none given.
"""

from collections import Counter
from collections.abc import Sequence

EXACT_BYTES = 6
"""Bytes of a fingerprint: as many as a float64 holds exactly, and two entries of a word."""

AGAIN = 1
"""The bit of a fingerprint that is set where its member has run lines again."""


def number_of(digest: bytes, *, again: bool) -> int:
    """The fingerprint of a digest of EXACT_BYTES, never 0."""
    return (int.from_bytes(digest, "little") & ~AGAIN | again) or 2 * AGAIN


def differ(told: Sequence[int], *, but: int = AGAIN) -> bool:
    """Whether the fingerprints given differ in more than these bits: by default, that of having run lines again."""
    return len({value | but for value in told if value}) > 1


def right_of(told: Sequence[int]) -> tuple[int, bool]:
    """The fingerprint that is right, and whether that is certain.

    Right is who ran all lines for the first time; of those, and where there is nobody, what most have; of as many, the
    first.
    """
    firsts = [value for value in told if value and not value & AGAIN]
    counts = Counter(value | AGAIN for value in firsts or told if value)
    most = max(counts.values())
    right = next(value for value in firsts or told if value and counts[value | AGAIN] == most)
    return right, bool(firsts) and len(counts) == 1


def differing(told: Sequence[int], right: int) -> list[int]:
    """The positions of those that gave another fingerprint than the right one."""
    return [place for place, value in enumerate(told) if value and (value ^ right) & ~AGAIN]
