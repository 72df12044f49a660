"""Pushes to one rank and pulls from it that cross each node's link once, however many ranks live there.

Inside a node some ranks collect: each sums its equal lane of the bucket over the node's ranks, along the tree as far
as the node's rows go, and sends the partial sums to the root. Weights come back the same way: a lane to its collector,
which hands it to its node. With n elements and m partial sums that the rows of a node add up to (one where they are a
node of the tree), m·n leave that node in a push and n enter it in a pull; what the root's own node sends stays inside.

With one collector a node it is a server's aggregator, with all workers a ring's reduce-scatter and all-gather. Where
the root itself collects for its node, its ranks send to it directly.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

from ringleader.comm.schedules.primitives.partial import Collection, Source, joined
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
from ringleader.comm.tree import TreeNode, tree_over


@dataclass(frozen=True, slots=True)
class NodeRanks:
    """Ranks that live on one node, and those of them that collect: the root alone, or ranks other than the root."""

    ranks: tuple[int, ...]
    collectors: tuple[int, ...]

    def collector(self, piece: Span, length: int) -> int:
        """The rank in whose lane a piece lies."""
        lanes = even_spans(length, len(self.collectors))
        owners = zip(self.collectors, lanes, strict=True)
        return next(rank for rank, (start, stop) in owners if start <= piece[0] < stop)

    def others(self, *but: int) -> list[int]:
        return [rank for rank in self.ranks if rank not in but]


@dataclass(frozen=True, slots=True)
class Relay:
    """The paths between a root and some nodes; no rank belongs to two of them, and ranks in none take no part."""

    root: int
    ranks_by_node: tuple[NodeRanks, ...]

    def pieces(self, part: RankPart) -> list[Span]:
        """The bucket in messages."""
        n = part.length
        # Wherever a lane of any node ends, not of this one alone: both ends of a transfer have to cut alike.
        cuts = {0, n, *(stop for h in self.ranks_by_node for _, stop in even_spans(n, len(h.collectors)))}
        ends = sorted(cuts)
        return [piece for span in pairwise(ends) for piece in chunks(span, part.chunk)]

    def node_of(self, rank: int) -> NodeRanks | None:
        return next((node_ranks for node_ranks in self.ranks_by_node if rank in node_ranks.ranks), None)


def by_one(ranks: tuple[int, ...], root: int) -> NodeRanks:
    """The ranks of a node with one collector: the root at home, elsewhere the lowest rank, a worker where there is one,
    as servers are the last ranks."""
    return NodeRanks(ranks, (root if root in ranks else min(ranks),))


def by_workers(ranks: tuple[int, ...], root: int, workers: int) -> NodeRanks:
    """The ranks of a node with all its workers as collectors, ranks below `workers`; without any it is as `by_one`."""
    here = tuple(rank for rank in ranks if rank < workers)
    return NodeRanks(ranks, here) if here else by_one(ranks, root)


def push(part: RankPart, relay: Relay) -> Iterator[Step]:
    """Sum everybody's rows into the root's, as far as the tree goes over them: into row 0 alone where that is
    everything. Others' rows are used up."""
    here = relay.node_of(part.rank)
    if here is None:
        return
    pieces = relay.pieces(part)
    if part.rank == relay.root:
        yield from _collect(part, _at_root(part, relay), pieces, pass_to=None)
        return
    mine = [piece for piece in pieces if here.collector(piece, part.length) == part.rank]
    sending = _send_rows(part, here, pieces)
    foreign = _rows_of(part, here.others(part.rank, relay.root))
    yield from _collect(part, foreign, mine, pass_to=relay.root, meanwhile=sending)


def pull(part: RankPart, relay: Relay) -> Iterator[Step]:
    """Copy the root's row 0 into everybody's."""
    here = relay.node_of(part.rank)
    if here is None:
        return
    n, pieces = part.length, relay.pieces(part)
    if part.rank == relay.root:
        for piece in pieces:
            for peer in _listeners(relay, piece, n):
                yield Send(peer, 0, piece, RESULTS)
        return
    for piece in pieces:
        collector = here.collector(piece, n)
        # All receives come before the first send, which waits for its piece to arrive.
        yield Receive(relay.root if collector == part.rank else collector, 0, piece, RESULTS)
    for piece in pieces:
        if here.collector(piece, n) == part.rank:
            for peer in here.others(part.rank, relay.root):
                yield Send(peer, 0, piece, RESULTS)


def places(part: RankPart, relay: Relay) -> tuple[TreeNode, ...]:
    """The nodes whose sums lie in the root's rows after a push."""
    return joined(
        part.tree,
        (node for node_ranks in relay.ranks_by_node for r in node_ranks.ranks for node in part.rows[r]),
    )


def by_node(part: RankPart, ranks_by_node: tuple[NodeRanks, ...]) -> RankPart:
    """The part with leaves renumbered so that each node's rows add up to one node of the tree: for sums whose bits may
    depend on who holds what. Every rank holds one row at most."""
    # A power of two of leaves for each node: one node of the tree covers them, and no other's leaves.
    room = 1 << max(len(node_ranks.ranks) - 1 for node_ranks in ranks_by_node).bit_length()
    rows: list[tuple[TreeNode, ...]] = [()] * part.world
    for number, node_ranks in enumerate(ranks_by_node):
        for seat, rank in enumerate(node_ranks.ranks):
            if part.rows[rank]:
                rows[rank] = (TreeNode(0, number * room + seat),)
    present = frozenset(node.index for nodes in rows for node in nodes)
    tree = tree_over(len(ranks_by_node) * room, present)
    alone = tuple(tree.partials(node.index for node in nodes) for nodes in rows)
    return replace(part, rows=alone, tree=tree, groups=())


def _collect(
    part: RankPart,
    foreign: list[tuple[TreeNode, Source]],
    pieces: list[Span],
    *,
    pass_to: int | None,
    meanwhile: Iterable[Step] = (),
) -> Iterator[Step]:
    own = Collection(part, foreign, pieces)
    yield from own.open()
    # Once the receives are posted, and before anything is waited for: a collector waits for these rows.
    yield from meanwhile
    for k, piece in enumerate(pieces):
        if pass_to is None or own.results:
            yield from own.complete(k)
        if pass_to is not None:
            for _, row in own.results:
                yield Send(pass_to, row, piece, PARTIALS)


def _send_rows(part: RankPart, here: NodeRanks, pieces: list[Span]) -> Iterator[Step]:
    for piece in pieces:
        collector = here.collector(piece, part.length)
        if collector != part.rank:
            for row in range(len(part.rows[part.rank])):
                yield Send(collector, row, piece, PARTIALS)


def _at_root(part: RankPart, relay: Relay) -> list[tuple[TreeNode, Source]]:
    """The partial sums that reach the root: the rows of a node for which it collects alone, the joined sums of any
    other."""
    foreign: list[tuple[TreeNode, Source]] = []
    for node_ranks in relay.ranks_by_node:
        if node_ranks.collectors == (relay.root,):
            foreign += _rows_of(part, node_ranks.others(relay.root))
            continue
        sums = joined(part.tree, (n for r in node_ranks.others(relay.root) for n in part.rows[r]))
        foreign += [(node, _collector_of(node_ranks, part.length)) for node in sums]
    return foreign


def _rows_of(part: RankPart, ranks: list[int]) -> list[tuple[TreeNode, Source]]:
    return [(node, _always(rank)) for rank in ranks for node in part.rows[rank]]


def _listeners(relay: Relay, piece: Span, length: int) -> Iterator[int]:
    for node_ranks in relay.ranks_by_node:
        collector = node_ranks.collector(piece, length)
        if collector == relay.root:
            yield from node_ranks.others(relay.root)
        else:
            yield collector


def _always(rank: int) -> Source:
    return lambda _: rank


def _collector_of(node_ranks: NodeRanks, length: int) -> Source:
    return lambda piece: node_ranks.collector(piece, length)
