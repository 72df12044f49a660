"""The state of a ring's tokens when a generation begins, and the items that are computed again. Pure.

A token carries one span of the weights round the members, and the list of the items whose move it holds. A member that
has computed an item keeps its move pending for every token that lacks it, until that token comes by. Only whoever holds
the token adds to it, so copies of one token differ by age alone: of two, the one with the higher version holds all that
the other holds.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from ringleader.train.modes.items import ItemSet

ABSENT = -2
"""The version that stands for a member to whom tokens do not come."""


@dataclass(frozen=True, slots=True)
class TokenCopy:
    """A member's knowledge of one token.

    Attributes:
        version: items that had been added when it last held the token; -1: it never held it; ABSENT: it never will.
        items: which these are, in the running loop.
        owed: items whose move is pending at this member.
    """

    version: int
    items: ItemSet
    owed: frozenset[int]


@dataclass(frozen=True, slots=True)
class RegeneratedToken:
    """A token as it is regenerated.

    Attributes:
        source: the rank whose copy is the newest.
        items: what that copy holds.
        covered: the same, and what is pending at members: nobody computes these for this span any more.
    """

    source: int
    version: int
    items: ItemSet
    covered: ItemSet


def regenerate(copies: Sequence[TokenCopy]) -> RegeneratedToken:
    """Regenerate a token from its newest copy.

    Args:
        copies: of every member, by rank.

    Raises:
        ValueError: an item would be added twice.
    """
    # Equal versions are equal copies: every member comes to the lowest rank that has one.
    source = max(range(len(copies)), key=lambda rank: (copies[rank].version, -rank))
    newest = copies[source]
    covered = newest.items.copy()
    for rank, copy in enumerate(copies):
        for item in sorted(copy.owed):
            if not covered.add(item):
                raise ValueError(f"rank {rank} owes a token item {item}, which it holds or another owes, too")
    return RegeneratedToken(source, newest.version, newest.items, covered)


def lacking(regenerated: Sequence[RegeneratedToken], item: int) -> tuple[int, ...]:
    """The spans for which an item's move has still to be computed."""
    return tuple(span for span, token in enumerate(regenerated) if item not in token.covered)


@dataclass(frozen=True, slots=True)
class ComputeRound:
    """The items that are computed at once, by one worker or by several.

    Attributes:
        offset: of the batch in the loop.
        shards: whose items these are, ascending.
        spans: that lack them.
    """

    offset: int
    shards: tuple[int, ...]
    spans: tuple[int, ...]


def rounds(
    regenerated: Sequence[RegeneratedToken], shards: Sequence[int], total: int, steps: int, *, together: bool
) -> Iterator[ComputeRound]:
    """The items of `todo`, one at a time, or all those of a batch `together` that the same spans lack."""
    for offset, batch in groupby(todo(regenerated, shards, total, steps), key=lambda item: item[0]):
        lacking_by: dict[object, list[int]] = {}
        spans_of: dict[object, tuple[int, ...]] = {}
        for _, shard, spans in batch:
            key: object = spans if together else shard
            lacking_by.setdefault(key, []).append(shard)
            spans_of[key] = spans
        for key, members in lacking_by.items():
            yield ComputeRound(offset, tuple(members), spans_of[key])


def todo(
    regenerated: Sequence[RegeneratedToken], shards: Sequence[int], total: int, steps: int
) -> Iterator[tuple[int, int, tuple[int, ...]]]:
    """The items that a member has to compute, in the order of steps: (offset of the batch, shard, spans that lack it).

    Args:
        shards: those that the member owns.
        total: logical shards of a batch.
        steps: batches of the loop.
    """
    # Below the lowest floor no span lacks an item.
    first = min(token.covered.floor for token in regenerated) // total
    for offset in range(first, steps):
        for shard in shards:
            spans = lacking(regenerated, offset * total + shard)
            if spans:
                yield offset, shard, spans
