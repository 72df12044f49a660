"""The schedule `gather`: everyone sends its partial sums to everyone, and each completes the tree alone.

Canonical, one hop, (P-1) times the bucket per rank and partial sum: for control words and other small tensors.
"""

from collections.abc import Iterator

from ringleader.comm.schedules.schedule import (
    PARTIALS,
    Add,
    RankPart,
    Receive,
    Schedule,
    Send,
    Step,
    Zero,
    always,
    fold,
)
from ringleader.comm.tree import TreeNode


def steps(part: RankPart) -> Iterator[Step]:
    if part.length == 0:
        return
    whole = (0, part.length)
    operands: list[tuple[int, TreeNode, int]] = [
        (part.rank, n, row) for row, n in enumerate(part.rows[part.rank])
    ]
    slot = 0
    for peer in range(part.world):
        for node in part.rows[peer] if peer != part.rank else ():
            # Without a row of its own this rank takes the first foreign one straight into row 0.
            slot -= 1 if operands else 0
            yield Receive(peer, slot, whole, PARTIALS)
            operands.append((peer, node, slot))
    for peer in part.peers:
        for row in range(len(part.rows[part.rank])):
            yield Send(peer, row, whole, PARTIALS)
    if not operands:
        yield Zero(0, whole)
    # By rank is by leaf: ranks own ascending shards, and their rows ascend.
    in_order = [(node, place) for _, node, place in sorted(operands, key=lambda o: o[0])]
    for into, source in fold(part.tree, in_order):
        yield Add(into, source, whole)


def sent(part: RankPart) -> int:
    return len(part.rows[part.rank]) * (part.world - 1) * part.length


GATHER = Schedule("gather", canonical=always, steps=steps, sent=sent)
