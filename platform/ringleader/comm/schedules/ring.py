"""The schedule `ring`: reduce-scatter and all-gather round the ring, 2(P-1) hops, 2(P-1)/P of the bucket per rank.

Not canonical: a span is added up in the order in which it travels. Patarasuk and Yuan, "Bandwidth optimal all-reduce
algorithms for clusters of workstations", 2009.
"""

from collections.abc import Iterator, Sequence

from ringleader.comm.schedules.schedule import (
    PARTIALS,
    RESULTS,
    Add,
    RankPart,
    Receive,
    Schedule,
    Send,
    Span,
    Step,
    Zero,
    chunks,
    even_spans,
    never,
    size,
)

AHEAD = 8
"""The number of chunks received ahead of the adding: with fewer, a late thread leaves the link idle."""


def steps(part: RankPart) -> Iterator[Step]:
    yield from _local_sum(part)
    if part.world > 1:
        yield from _round_the_ring(part)


def sent(part: RankPart) -> int:
    """All spans but the next rank's in the first half, and all but that of the rank after it in the second."""
    spans = even_spans(part.length, part.world)
    if part.world == 1:
        return 0
    scattered = size(spans[(part.rank + 1) % part.world])
    gathered = size(spans[(part.rank + 2) % part.world])
    return 2 * part.length - scattered - gathered


def _local_sum(part: RankPart) -> Iterator[Step]:
    """Add all own rows up in row 0; a rank without one takes part with zeros."""
    whole = (0, part.length)
    if not part.rows[part.rank]:
        yield Zero(0, whole)
    for row in range(1, len(part.rows[part.rank])):
        yield Add(0, row, whole)


def _round_the_ring(part: RankPart) -> Iterator[Step]:
    """Hop s passes on the span s behind this rank's own; it arrives with the sums of all ranks behind."""
    world, rank = part.world, part.rank
    ahead, behind = (rank + 1) % world, (rank - 1) % world
    cut = [list(chunks(span, part.chunk)) for span in even_spans(part.length, world)]
    arriving = [chunk for hop in range(1, world) for chunk in cut[(rank - hop) % world]]
    # The last hop's chunks complete this rank's span: they go on as results.
    done = len(arriving) - len(cut[(rank + 1) % world])
    for k, chunk in enumerate(arriving[:AHEAD]):
        yield Receive(behind, -1 - k, chunk, PARTIALS)
    for chunk in cut[rank]:
        yield Send(ahead, 0, chunk, PARTIALS)
    # Chunks of a hop leave while those of the hop before arrive, across the middle of the sum too, so that no link is
    # idle between two hops.
    for k, chunk in enumerate(arriving[:done]):
        yield from _add(behind, arriving, k)
        yield Send(ahead, 0, chunk, PARTIALS)
    yield from _receive_results(part, behind, cut)
    for k, chunk in enumerate(arriving[done:], done):
        yield from _add(behind, arriving, k)
        yield Send(ahead, 0, chunk, RESULTS)
    for hop in range(1, world - 1):
        for chunk in cut[(rank + 1 - hop) % world]:
            yield Send(ahead, 0, chunk, RESULTS)


def _add(behind: int, arriving: Sequence[Span], k: int) -> Iterator[Step]:
    """Add up chunk k, then start to receive the chunk that takes its slot."""
    slot = -1 - k % AHEAD
    yield Add(0, slot, arriving[k])
    if k + AHEAD < len(arriving):
        yield Receive(behind, slot, arriving[k + AHEAD], PARTIALS)


def _receive_results(part: RankPart, behind: int, cut: Sequence[Sequence[Span]]) -> Iterator[Step]:
    """Receive every span but the one that this rank completes."""
    for hop in range(part.world - 1):
        for chunk in cut[(part.rank - hop) % part.world]:
            # Into row 0, over sums that this rank sent: they have been received by then.
            yield Receive(behind, 0, chunk, RESULTS)


RING = Schedule("ring", canonical=never, steps=steps, sent=sent)
