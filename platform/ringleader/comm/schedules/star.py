"""The two halves of a star: `push` sums a bucket at one rank in canonical order, `pull` hands its row 0 to all."""

from collections.abc import Iterator

from ringleader.comm.schedules.direct import owner_reduce
from ringleader.comm.schedules.schedule import RESULTS, RankPart, Receive, Send, Step, chunks


def push(part: RankPart, root: int) -> Iterator[Step]:
    """Leave the sum in the root's row 0; the others' rows stay as they are."""
    spans = [(0, part.length) if rank == root else (0, 0) for rank in range(part.world)]
    yield from owner_reduce(part, spans, listeners=range(0))


def pull(part: RankPart, root: int) -> Iterator[Step]:
    """Copy the root's row 0 into everybody's."""
    for chunk in chunks((0, part.length), part.chunk):
        if part.rank != root:
            yield Receive(root, 0, chunk, RESULTS)
            continue
        for peer in part.peers:
            yield Send(peer, 0, chunk, RESULTS)
