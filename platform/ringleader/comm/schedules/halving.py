"""Halving and doubling in a block of 2^k members: the part shared by the schedules `halving_doubling` and
`binary_blocks`.

Members exchange halves of the vector with the neighbour first, then at distance 2, 4, ..., so that at every level the
sum of an aligned run of members meets that of the run beside it: the shape of the canonical tree. The all-gather takes
the same exchanges in reverse.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from ringleader.comm.schedules.primitives.order import holds
from ringleader.comm.schedules.schedule import (
    PARTIALS,
    RESULTS,
    Add,
    RankPart,
    Receive,
    Send,
    Span,
    Step,
    chunks,
    size,
)


@dataclass(frozen=True, slots=True)
class HalvingLevel:
    """One exchange of halves.

    Attributes:
        partner: the rank at the other end.
        keep, give: the half that this rank goes on with, and the partner's.
        mine, theirs: whether this side's and the other side's members hold anything.
    """

    partner: int
    keep: Span
    give: Span
    mine: bool
    theirs: bool


@dataclass(frozen=True, slots=True)
class HalvingBlock:
    """2^k members in rank order; each stands for some ranks, the first of which takes part."""

    members: tuple[tuple[int, ...], ...]

    def levels(self, part: RankPart) -> list[HalvingLevel]:
        """The exchanges of this part's rank, which has to be one that takes part, from the neighbour outwards."""
        me = [member[0] for member in self.members].index(part.rank)
        count = len(self.members)
        lanes, levels, distance = range(count), [], 1
        while distance < count:
            middle = len(lanes) // 2
            # Halves of lanes, not of elements: all members cut at the same places whatever the length.
            low, high = lanes[:middle], lanes[middle:]
            keep, give = (high, low) if me & distance else (low, high)
            # The members that have met so far: a side has something to give if any of them holds rows.
            start = me // distance * distance
            levels.append(
                HalvingLevel(
                    self.members[me ^ distance][0],
                    self._span(part, keep),
                    self._span(part, give),
                    self._holds(part, start, distance),
                    self._holds(part, start ^ distance, distance),
                )
            )
            lanes, distance = keep, distance * 2
        return levels

    def lane(self, member: int) -> int:
        """The number of the span that a member ends with, of 2^k: its own number with the bits in reverse."""
        bits = len(self.members).bit_length() - 1
        return sum((member >> bit & 1) << (bits - 1 - bit) for bit in range(bits))

    def span(self, part: RankPart, member: int) -> Span:
        lane = self.lane(member)
        return self._span(part, range(lane, lane + 1))

    def _span(self, part: RankPart, lanes: range) -> Span:
        count = len(self.members)
        return lanes.start * part.length // count, lanes.stop * part.length // count

    def _holds(self, part: RankPart, start: int, count: int) -> bool:
        return any(holds(part, member) for member in self.members[start : start + count])


def reduce_scatter(part: RankPart, levels: list[HalvingLevel]) -> Iterator[Step]:
    """Leave the block's sum over its own span with every member."""
    for level in levels:
        # Receives come first: over one connection notice of them would queue behind all that is sent before.
        yield from awaited(part, level.partner, level.keep, mine=level.mine, theirs=level.theirs)
        yield from _send(level.partner, level.give, part, PARTIALS, level.mine)
        yield from added(part, level.keep, mine=level.mine, theirs=level.theirs)


def all_gather(part: RankPart, levels: list[HalvingLevel]) -> Iterator[Step]:
    """Leave all results with every member."""
    for level in reversed(levels):
        for chunk in chunks(level.give, part.chunk):
            # Over a half that this rank sent as a sum: it is overwritten only after the partner has had what was there.
            yield Receive(level.partner, 0, chunk, RESULTS)
        yield from _send(level.partner, level.keep, part, RESULTS, True)


def scattered(levels: list[HalvingLevel]) -> int:
    """Elements sent by `reduce_scatter`."""
    return sum(size(level.give) for level in levels if level.mine)


def gathered(levels: list[HalvingLevel]) -> int:
    """Elements sent by `all_gather`."""
    return sum(size(level.keep) for level in levels)


def take(part: RankPart, peer: int, span: Span, *, mine: bool, theirs: bool) -> Iterator[Step]:
    """Add a peer's sum over the span to row 0, or put it there where this rank has nothing yet."""
    yield from awaited(part, peer, span, mine=mine, theirs=theirs)
    yield from added(part, span, mine=mine, theirs=theirs)


def awaited(part: RankPart, peer: int, span: Span, *, mine: bool, theirs: bool) -> Iterator[Step]:
    """The first half of `take`, which does not wait."""
    for slot, chunk in enumerate(chunks(span, part.chunk) if theirs else ()):
        yield Receive(peer, -1 - slot if mine else 0, chunk, PARTIALS)


def added(part: RankPart, span: Span, *, mine: bool, theirs: bool) -> Iterator[Step]:
    """The second half of `take`."""
    for slot, chunk in enumerate(chunks(span, part.chunk) if mine and theirs else ()):
        yield Add(0, -1 - slot, chunk)


def _send(peer: int, span: Span, part: RankPart, channel: int, wanted: bool) -> Iterator[Step]:
    for chunk in chunks(span, part.chunk) if wanted else ():
        yield Send(peer, 0, chunk, channel)
