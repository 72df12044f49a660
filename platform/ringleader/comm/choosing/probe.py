"""The probe of link and add costs: a few messages back and forth, and all at once, measured together and told to all.

One message alone says what it costs when nothing else is under way. The ranks of a node share its cores, so each
message also holds up the others: P ranks that all send to their neighbours at once need longer than one, by P - 1
times that.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ringleader.comm.simulator import NOTHING, ClusterCosts, LinkCost

SMALL, LARGE = 256, 1 << 20
"""Elements of float32: 1 KB, whose time is nearly all latency, and 4 MB."""

ROUNDS, TRIES = {SMALL: 4, LARGE: 1}, {SMALL: 9, LARGE: 5}
"""Rounds a try, few as an exchange has few hops, and tries. The least counts: what else a machine does only makes a
try longer."""

ADDED, ADDS = 1 << 21, 4
"""Elements of a row that no cache holds, and the number of adds."""

INSIDE, CROWDED, BETWEEN, ADD = 0, 2, 4, 6


@dataclass(frozen=True, slots=True)
class ProbeSender:
    """The ways in which members send while they measure.

    Attributes:
        ping_pong: (peer, values, rounds): send the values to the peer and receive them back, so often; both call it.
        shift: (ranks, values, rounds): each of the ranks sends to the next and receives from the one before, so often,
            half of the values a message; all of them call it.
        tell: returns the sum of everybody's values; everybody calls it.
    """

    ping_pong: Callable[[int, Tensor, int], None]
    shift: Callable[[tuple[int, ...], Tensor, int], None]
    tell: Callable[[Tensor], Tensor]


def probe(rank: int, groups: tuple[tuple[int, ...], ...], size: int, lines: ProbeSender) -> ClusterCosts:
    """Measure the costs; every member calls this at the same time and gets the same answer.

    Args:
        groups: the ranks of each node; empty: all on one.
    """
    nodes = groups or (tuple(range(size)),)
    # The fullest node, as crowding needs more than one rank; of equal ones the first, for all members alike.
    near = max(nodes, key=len)
    far = next((r for r in range(size) if r not in nodes[0]), None)
    # Each entry is written by one rank and zero at all others, as `tell` sums.
    seconds = torch.zeros(ADD + 1, dtype=torch.float64)
    # Members of other nodes come through here too: `tell` waits for everybody.
    if len(near) > 1:
        _to_and_fro(seconds, INSIDE, rank, (near[0], near[1]), lines)
        lines.tell(torch.zeros(1, dtype=torch.float64))  # nobody sends while others still measure alone
        _all_at_once(seconds, rank, near, lines)
    if far is not None:
        lines.tell(torch.zeros(1, dtype=torch.float64))
        _to_and_fro(seconds, BETWEEN, rank, (0, far), lines)
    added = _add_s()  # by all at once, as in an exchange
    if rank == 0:
        seconds[ADD] = added
    told = lines.tell(seconds).tolist()
    inside, between = (_link(*told[place : place + 2]) for place in (INSIDE, BETWEEN))
    # A cluster without one kind of link never asks for its cost: the other one stands in.
    inside, between = (inside if len(near) > 1 else between), (between if far is not None else inside)
    crowded = _crowded(told, len(near)) if len(near) > 1 else NOTHING
    return ClusterCosts(inside, between, told[ADD] / (ADDED * 4), crowded)


def _to_and_fro(seconds: Tensor, place: int, rank: int, pair: tuple[int, int], lines: ProbeSender) -> None:
    """Time one way of a small and of a large message; the first of the pair records it."""
    if rank not in pair:
        return
    peer = pair[1] if rank == pair[0] else pair[0]
    for k, length in enumerate((SMALL, LARGE)):
        # By name, here and below: the program may set another default type, and the links would seem slower.
        values = torch.zeros(length, dtype=torch.float32)
        took = _round_s(lambda rounds, v=values: lines.ping_pong(peer, v, rounds), length)  # type: ignore[misc]
        if rank == pair[0]:
            # Half: a round goes there and back.
            seconds[place + k] = took / 2


def _all_at_once(seconds: Tensor, rank: int, near: tuple[int, ...], lines: ProbeSender) -> None:
    """Time a round in which all ranks of a node send, small and large; the first of them records it."""
    if rank not in near:
        return
    for k, length in enumerate((SMALL, LARGE)):
        # Twice the length: one half is sent while the other is being received into.
        values = torch.zeros(2 * length, dtype=torch.float32)
        took = _round_s(lambda rounds, v=values: lines.shift(near, v, rounds), length)  # type: ignore[misc]
        if rank == near[0]:
            seconds[CROWDED + k] = took


def _round_s(act: Callable[[int], None], length: int) -> float:
    """The seconds of one round, the least of several tries."""
    act(1)  # the first message finds cold paths
    took = []
    for _ in range(TRIES[length]):
        since = time.perf_counter()
        act(ROUNDS[length])
        took.append((time.perf_counter() - since) / ROUNDS[length])
    return min(took)


def _crowded(told: list[float], ranks: int) -> LinkCost:
    """The cost that each message adds to the others of its node."""
    # A disturbed try may find messages quicker together than alone.
    more = [
        max(0.0, together - alone) / (ranks - 1)
        for together, alone in zip(told[CROWDED : CROWDED + 2], told[INSIDE : INSIDE + 2], strict=True)
    ]
    return _link(more[0], more[1])


def _link(small_s: float, large_s: float) -> LinkCost:
    # A disturbed try may find the small message the slower one.
    per_byte = max(0.0, large_s - small_s) / ((LARGE - SMALL) * 4)
    return LinkCost(latency_s=max(0.0, small_s - per_byte * SMALL * 4), s_per_byte=per_byte)


def _add_s() -> float:
    into, source = (torch.zeros(ADDED, dtype=torch.float32) for _ in range(2))
    # Not timed: the first add touches the pages, which the system hands out only then.
    into.add_(source)
    since = time.perf_counter()
    for _ in range(ADDS):
        into.add_(source)
    return (time.perf_counter() - since) / ADDS
