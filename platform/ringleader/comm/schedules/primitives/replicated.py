"""Sums that end at several roots: each collects what its region holds, then the roots sum among themselves.

Among the roots it goes as in `direct`: each owns a span, collects the regions' partial sums of it, completes the tree
and sends the result to the other roots. With n elements, R roots, each on a node of its own with its whole region, and
m partial sums a region, (R-1)/R·(m+1)·n leave a node: with m = 1 what an all-reduce between one rank a node moves.
Handing a root's row out stays inside its region.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from ringleader.comm.schedules.primitives import relayed
from ringleader.comm.schedules.primitives.partial import Collection, Source
from ringleader.comm.schedules.primitives.relayed import Relay
from ringleader.comm.schedules.schedule import (
    PARTIALS,
    RESULTS,
    RankPart,
    Receive,
    Send,
    Span,
    Step,
    chunks,
    even_spans,
)
from ringleader.comm.tree import TreeNode


def push(part: RankPart, regions: Sequence[Relay]) -> Iterator[Step]:
    """Leave the sum of everybody's rows in row 0 of every root.

    Args:
        regions: one relay per root; every rank is in one of them.
    """
    for region in regions:
        yield from relayed.push(part, region)
    roots = [region.root for region in regions]
    if part.rank in roots:
        held = [relayed.places(part, region) for region in regions]
        yield from _among_roots(part, roots, held)


def pull(part: RankPart, regions: Sequence[Relay]) -> Iterator[Step]:
    """Copy the row 0 of its region's root into everybody's."""
    for region in regions:
        yield from relayed.pull(part, region)


def _among_roots(part: RankPart, roots: list[int], held: list[tuple[TreeNode, ...]]) -> Iterator[Step]:
    me = roots.index(part.rank)
    spans = even_spans(part.length, len(roots))
    # Starting behind this root, so that not all send to the same one first.
    others = [(k + me) % len(roots) for k in range(1, len(roots))]
    rows: list[tuple[TreeNode, ...]] = [()] * part.world
    rows[part.rank] = held[me]
    foreign = [(node, _from(roots[k])) for k in others for node in held[k]]
    mine = list(chunks(spans[me], part.chunk))
    own = Collection(replace(part, rows=tuple(rows)), foreign, mine)
    yield from own.open()
    for k in others:
        for piece in chunks(spans[k], part.chunk):
            for row in range(len(held[me])):
                yield Send(roots[k], row, piece, PARTIALS)
    for k in others:
        for piece in chunks(spans[k], part.chunk):
            # Into memory that was sent from: a result comes only after its owner has got all sums.
            yield Receive(roots[k], 0, piece, RESULTS)
    for number, piece in enumerate(mine):
        yield from own.complete(number)
        for k in others:
            yield Send(roots[k], 0, piece, RESULTS)


def _from(rank: int) -> Source:
    def source(_: Span) -> int:
        return rank

    return source
