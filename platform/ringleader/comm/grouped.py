"""The canonical sum in two rounds of messages that are handed over together, as NCCL wants them: all of a round in one
call, matched between two ranks by their order alone.

It is the schedule `direct` without its chunks: every owner of a span collects the partial sums, completes the tree, and
sends the result to all. Same bytes, same bits.
"""

from collections.abc import Callable, Sequence

from torch import Tensor

from ringleader.comm.executor import Scratch
from ringleader.comm.schedules import RankPart
from ringleader.comm.schedules.schedule import even_spans, fold, size
from ringleader.comm.transports.transport import Messages
from ringleader.comm.tree import TreeNode

Round = Callable[[Messages, Messages], None]
"""Transfers all (sends, receives) of a round at once; returns when they are done. Raises ExchangeBroken."""


def canonical_sum(part: RankPart, rows: Sequence[Tensor], scratch: Scratch, together: Round) -> None:
    """Leave the canonical sum of all ranks' rows in row 0 of every rank.

    Args:
        rows: (length,) tensors; row 0 exists even where this rank has no partial sum.
    """
    spans = even_spans(part.length, part.world)
    mine = slice(*spans[part.rank])
    operands, receives = _operands(part, rows, scratch)
    # Without the row 0 of a rank that brings nothing: it is there for the result alone.
    own_rows = rows[: len(part.rows[part.rank])]
    sends = [(row[slice(*spans[peer])], peer) for peer in part.peers for row in own_rows]
    together(_filled(sends), _filled(receives))
    if not operands:
        rows[0][mine].zero_()
    places = [values for _, values in operands]
    numbered = [(node, place) for place, (node, _) in enumerate(operands)]
    # Peers come in order from this rank on; `fold` takes operands in the order of the tree's leaves.
    in_order = sorted(numbered, key=lambda item: item[0].index << item[0].level)
    for into, source in fold(part.tree, in_order):
        places[into].add_(places[source])
    together(
        _filled([(rows[0][mine], peer) for peer in part.peers]),
        _filled([(rows[0][slice(*spans[peer])], peer) for peer in part.peers]),
    )


def _operands(
    part: RankPart, rows: Sequence[Tensor], scratch: Scratch
) -> tuple[list[tuple[TreeNode, Tensor]], Messages]:
    """The partial sums to add in this rank's span, the one in row 0 first, and the receives of those from other
    ranks."""
    start, stop = even_spans(part.length, part.world)[part.rank]
    operands = [(node, rows[k][start:stop]) for k, node in enumerate(part.rows[part.rank])]
    receives: list[tuple[Tensor, int]] = []
    for peer in part.peers:
        for node in part.rows[peer]:
            # Without a row of its own this rank takes the first foreign one straight into row 0.
            first = not operands
            values = (
                rows[0][start:stop] if first else scratch.slot(len(receives), size((start, stop)), rows[0])
            )
            operands.append((node, values))
            receives.append((values, peer))
    return operands, receives


def _filled(messages: Messages) -> Messages:
    """The messages that are not empty."""
    # A bucket may have fewer elements than there are ranks.
    return [(values, peer) for values, peer in messages if values.numel()]
