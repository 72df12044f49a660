"""The schedule `ring`: reduce-scatter and all-gather round the ring, 2(P-1) hops, 2(P-1)/P of the bucket per rank.

Not canonical: a span is added up in the order in which it travels. Patarasuk and Yuan, "Bandwidth optimal all-reduce
algorithms for clusters of workstations", 2009.
"""

from collections.abc import Iterator

from ringleader.comm.schedules.schedule import (
    PARTIALS,
    RESULTS,
    Add,
    Part,
    Receive,
    Schedule,
    Send,
    Step,
    Zero,
    chunks,
    even_spans,
    never,
    size,
)


def steps(part: Part) -> Iterator[Step]:
    yield from _local_sum(part)
    if part.world > 1:
        yield from _reduce_scatter(part)
        yield from _all_gather(part)


def sent(part: Part) -> int:
    """Every span but the one behind in the first half, every span but the one ahead's in the second."""
    spans = even_spans(part.length, part.world)
    if part.world == 1:
        return 0
    scattered = size(spans[(part.rank + 1) % part.world])
    gathered = size(spans[(part.rank + 2) % part.world])
    return 2 * part.length - scattered - gathered


def _local_sum(part: Part) -> Iterator[Step]:
    """All own rows into row 0; a rank without one takes part with zeros."""
    whole = (0, part.length)
    if not part.rows[part.rank]:
        yield Zero(0, whole)
    for row in range(1, len(part.rows[part.rank])):
        yield Add(0, row, whole)


def _reduce_scatter(part: Part) -> Iterator[Step]:
    """Hop s passes on the span s behind this rank's own; it arrives with the sums of all ranks behind."""
    world, rank = part.world, part.rank
    ahead, behind = (rank + 1) % world, (rank - 1) % world
    cut = [list(chunks(span, part.chunk)) for span in even_spans(part.length, world)]
    lanes = max(len(pieces) for pieces in cut)
    for chunk in cut[rank]:
        yield Send(ahead, 0, chunk, PARTIALS)
    for hop in range(world - 1):
        arriving = cut[(rank - hop - 1) % world]
        slots = [-1 - ((hop % 2) * lanes + k) for k in range(len(arriving))]
        for slot, chunk in zip(slots, arriving, strict=True):
            yield Receive(behind, slot, chunk, PARTIALS)
        for slot, chunk in zip(slots, arriving, strict=True):
            yield Add(0, slot, chunk)
            if hop < world - 2:
                yield Send(ahead, 0, chunk, PARTIALS)


def _all_gather(part: Part) -> Iterator[Step]:
    """Hop s passes on the result that arrived at hop s-1, at first the own one."""
    world, rank = part.world, part.rank
    ahead, behind = (rank + 1) % world, (rank - 1) % world
    cut = [list(chunks(span, part.chunk)) for span in even_spans(part.length, world)]
    for hop in range(world - 1):
        for chunk in cut[(rank - hop) % world]:
            yield Receive(behind, 0, chunk, RESULTS)
    for hop in range(world - 1):
        for chunk in cut[(rank + 1 - hop) % world]:
            yield Send(ahead, 0, chunk, RESULTS)


RING = Schedule("ring", canonical=never, steps=steps, sent=sent)
