"""Sums in shared memory: members post the addresses of their rows, and each completes its span in everybody's rows.

The schedule is `direct` without a message: rank r owns span r of every bucket, adds all partial sums of it along the
canonical tree, and writes the result into row 0 of every member, chunk by chunk while the chunk is in cache. Two flags
per member and bucket order the accesses: `ready` (my rows may be used) and `done` (my span is complete everywhere).

If servers own the buckets, workers `offer` rows and a server gathers them (or several that all need the sum, each a
span of it); then servers offer weights and everybody reads them. A slot is used for one of the two, always by the same
members.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ringleader.comm.schedules.schedule import RankPart, Span, chunks, even_spans, fold
from ringleader.comm.segments import WORD_BYTES, Address, Key, Segment
from ringleader.comm.transports.flags import Peers
from ringleader.comm.tree import TreeNode

LINE_WORDS = 8
READY, DONE, COUNT, ROWS = 0, 8, 16, 17
"""Words of a slot: the flags on cache lines of their own, then the number of rows and the address of each."""

ADDRESS_WORDS = 3
CHUNK_BYTES = 256 << 10
"""Bytes of each operand at a time: two of them fit a core's second-level cache."""

Operation = tuple[Callable[[Tensor], Any], Tensor]
Posts = dict[int, list[int]]
"""By rank: the number of rows, then their addresses."""


class Board:
    """One member's posts. `reduce` is called by every member once for each bucket of a step, in any order.

    Args:
        slots, rows: the number of buckets, and the most rows that a member has in one; the same for all members.
        publish: makes the board known to the other members.
        find: maps a segment of rank r; waits for that rank's board where the key is None.
    """

    def __init__(
        self,
        rank: int,
        peers: Peers,
        *,
        slots: int,
        rows: int,
        publish: Callable[[Key], None],
        find: Callable[[int, Key | None], Segment],
    ) -> None:
        self._rank = rank
        self._peers = peers
        self._find = find
        self._rows = rows
        # Whole cache lines, so that flags of two slots never share one.
        self._slot_words = -(-(ROWS + rows * ADDRESS_WORDS) // LINE_WORDS) * LINE_WORDS
        self._segment = Segment.create(max(1, slots) * self._slot_words * WORD_BYTES)
        self._words: dict[int, memoryview] = {rank: self._segment.words()}
        # Flags hold the turn and only grow, so nobody has to reset them between steps.
        self._turns = [0] * slots
        self._ready: dict[int, tuple[Any, list[list[Operation]]]] = {}
        publish(self._segment.key)

    def reduce(self, slot: int, part: RankPart, rows: Sequence[Tensor], addresses: Sequence[Address]) -> None:
        """Leave the sum of all members' rows in row 0 of every member.

        Args:
            rows: this member's (length,) rows, one for each node in `part.rows[rank]`, at least one.
            addresses: the addresses at which the others find them.

        Raises:
            ExchangeBroken: a peer left, died, or did not come before the deadline.
        """
        turn = self._turns[slot] = self._turns[slot] + 1
        mine, others = self._words[self._rank], part.peers
        base = self._post(slot, addresses)
        # Behind the addresses: x86-64 keeps the order of stores, so whoever sees the flag sees them too.
        mine[base + READY] = turn
        for peer in others:
            self._peers.wait(self._words_of(peer), base + READY, turn, peer)
        everybody = range(part.world)
        for chunk in self._operations(slot, part, everybody, lambda posts: self._plan(part, posts, rows)):
            # Before each chunk: nothing more is written into rows of a member that has left.
            self._peers.check_all(others)
            for act, operand in chunk:
                act(operand)
        # Each owner wrote one span of row 0: it is whole once everybody says so.
        mine[base + DONE] = turn
        for peer in others:
            self._peers.wait(self._words_of(peer), base + DONE, turn, peer)

    def offer(self, slot: int, addresses: Sequence[Address]) -> None:
        """Let peers read the memory at these addresses. It stays unchanged until all of them must have read it."""
        self._turns[slot] += 1
        base = self._post(slot, addresses)
        self._words[self._rank][base + READY] = self._turns[slot]

    def gather(self, slot: int, part: RankPart, into: Tensor) -> None:
        """Leave the canonical sum of the rows that peers offer in `into`, which is none of them.

        Raises:
            ExchangeBroken: a peer left, died, or did not come before the deadline.
        """
        self._turns[slot] += 1
        givers = [rank for rank in part.peers if part.rows[rank]]
        for peer in givers:
            self._peers.wait(self._words_of(peer), slot * self._slot_words + READY, self._turns[slot], peer)
        # No flag says that the rows have been read: givers change them only once they have the new weights.
        for chunk in self._operations(slot, part, givers, lambda posts: self._plan_gather(part, posts, into)):
            self._peers.check_all(givers)
            for act, operand in chunk:
                act(operand)

    def spread(self, slot: int, part: RankPart, into: tuple[Tensor, Address], owners: Sequence[int]) -> None:
        """Leave the canonical sum of the rows that peers offer in the memory of every owner. All owners call this, and
        each completes its span.

        Args:
            into: this owner's (length,) memory and the address at which the others find it; no row of the sum.

        Raises:
            ExchangeBroken: a peer left, died, or did not come before the deadline.
        """
        turn = self._turns[slot] = self._turns[slot] + 1
        base, mine = self._post(slot, [into[1]]), self._words[self._rank]
        mine[base + READY] = turn
        others = [rank for rank in owners if rank != self._rank]
        givers = [rank for rank in part.peers if part.rows[rank]]
        everybody = (*others, *givers)
        for peer in everybody:
            self._peers.wait(self._words_of(peer), base + READY, turn, peer)

        def plan(posts: Posts) -> list[list[Operation]]:
            return self._plan_spread(part, posts, into[0], owners)

        for chunk in self._operations(slot, part, everybody, plan):
            self._peers.check_all(everybody)
            for act, operand in chunk:
                act(operand)
        mine[base + DONE] = turn
        for peer in others:
            self._peers.wait(self._words_of(peer), base + DONE, turn, peer)

    def offered(self, slot: int, peer: int, length: int, dtype: torch.dtype) -> Tensor:
        """The (length,) memory that `peer` offers next in that slot. Raises ExchangeBroken like `gather`."""
        self._turns[slot] += 1
        base, words = slot * self._slot_words, self._words_of(peer)
        self._peers.wait(words, base + READY, self._turns[slot], peer)
        number, descriptor, offset = words[base + ROWS : base + ROWS + ADDRESS_WORDS].tolist()
        return self._find(peer, (number, descriptor)).tensor(offset, length, dtype)

    def close(self) -> None:
        self._segment.close()
        self._ready.clear()
        self._words.clear()

    def _post(self, slot: int, addresses: Sequence[Address]) -> int:
        """Post the addresses of this member's rows; returns the index of the slot's first word."""
        if len(addresses) > self._rows:
            raise ValueError(
                f"{len(addresses)} partial sums of one bucket; this board was made for {self._rows}"
            )
        base, words = slot * self._slot_words, self._words[self._rank]
        words[base + COUNT] = len(addresses)
        for k, address in enumerate(addresses):
            for j, word in enumerate(address):
                words[base + ROWS + k * ADDRESS_WORDS + j] = word
        return base

    def _words_of(self, rank: int) -> memoryview:
        words = self._words.get(rank)
        if words is None:
            words = self._words[rank] = self._find(rank, None).words()
        return words

    def _operations(
        self, slot: int, part: RankPart, ranks: Sequence[int], plan: Callable[[Posts], list[list[Operation]]]
    ) -> list[list[Operation]]:
        """The operations of this member in the slot, kept as long as no row of `ranks` has moved."""
        base = slot * self._slot_words
        # Copied out of the shared words: as a key these would change along with what they are compared with.
        posts = {r: self._words_of(r)[base + COUNT : base + self._slot_words].tolist() for r in ranks}
        key = (part.tree.present, posts)
        known = self._ready.get(slot)
        if known is None or known[0] != key:
            known = self._ready[slot] = (key, plan(posts))
        return known[1]

    def _plan(self, part: RankPart, posts: Posts, rows: Sequence[Tensor]) -> list[list[Operation]]:
        like = rows[0]
        everyones = [
            list(rows) if r == self._rank else self._foreign(r, posts[r], like) for r in range(part.world)
        ]
        span = even_spans(part.length, part.world)[self._rank]
        chunk = max(1, CHUNK_BYTES // like.element_size())
        return [_complete(part, everyones, range(part.world), piece) for piece in chunks(span, chunk)]

    def _plan_spread(
        self, part: RankPart, posts: Posts, into: Tensor, owners: Sequence[int]
    ) -> list[list[Operation]]:
        rows = [self._foreign(r, posts[r], into) if r in posts else [] for r in range(part.world)]
        rows[self._rank] = [into]
        span = even_spans(part.length, len(owners))[owners.index(self._rank)]
        chunk = max(1, CHUNK_BYTES // into.element_size())
        return [_complete(part, rows, owners, piece) for piece in chunks(span, chunk)]

    def _plan_gather(self, part: RankPart, posts: Posts, into: Tensor) -> list[list[Operation]]:
        rows = [self._foreign(r, posts[r], into) if r in posts else [] for r in range(part.world)]
        chunk = max(1, CHUNK_BYTES // into.element_size())
        return [_complete_into(part, rows, into, piece) for piece in chunks((0, part.length), chunk)]

    def _foreign(self, rank: int, post: Sequence[int], like: Tensor) -> list[Tensor]:
        found = (post[1 + k * ADDRESS_WORDS :][:ADDRESS_WORDS] for k in range(post[0]))
        return [
            self._find(rank, (number, descriptor)).tensor(offset, like.numel(), like.dtype)
            for number, descriptor, offset in found
        ]


@torch.no_grad()
def _complete(
    part: RankPart, rows: Sequence[Sequence[Tensor]], listeners: Sequence[int], span: Span
) -> list[Operation]:
    """The operations that add a chunk's partial sums along the tree, then copy the result into every listener's row
    0."""
    start, stop = span
    operands = _operands(part)
    places = [rows[r][k][start:stop] for _, r, k in operands]
    results = {r: rows[r][0][start:stop] for r in listeners}
    if not places:
        return [(result.copy_, torch.zeros_like(result)) for result in results.values()]
    done: list[Operation] = [(places[into].add_, places[source]) for into, source in _adds(part, operands)]
    # The sum ends in the first operand, which needs no copy where it is somebody's row 0.
    owner = operands[0][1:]
    return done + [(result.copy_, places[0]) for r, result in results.items() if (r, 0) != owner]


@torch.no_grad()
def _complete_into(
    part: RankPart, rows: Sequence[Sequence[Tensor]], into: Tensor, span: Span
) -> list[Operation]:
    """The operations that add a chunk's partial sums along the tree; the last add writes into `into`."""
    start, stop = span
    operands = _operands(part)
    result, places = into[start:stop], [rows[r][k][start:stop] for _, r, k in operands]
    if not places:
        return [(result.copy_, torch.zeros_like(result))]
    if len(places) == 1:
        return [(result.copy_, places[0])]
    *before, last = _adds(part, operands)
    total = partial(torch.add, places[last[0]], out=result)
    return [*((places[left].add_, places[right]) for left, right in before), (total, places[last[1]])]


def _operands(part: RankPart) -> list[tuple[TreeNode, int, int]]:
    """(node, rank, row) of every partial sum, in the order of leaves: ranks own ascending shards, and their rows
    ascend."""
    return [(node, r, k) for r, nodes in enumerate(part.rows) for k, node in enumerate(nodes)]


def _adds(part: RankPart, operands: Sequence[tuple[TreeNode, int, int]]) -> list[tuple[int, int]]:
    """The adds that complete the tree, as (into, source) numbers of operands."""
    return fold(part.tree, [(node, place) for place, (node, _, _) in enumerate(operands)])
