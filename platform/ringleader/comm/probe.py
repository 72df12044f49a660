"""What links and adds cost here and now: a few messages to and fro, measured by rank 0 and told to all."""

import time
from collections.abc import Callable

import torch
from torch import Tensor

from ringleader.comm.simulator import Costs, Link

SMALL, LARGE = 256, 1 << 18
"""Elements of float32: 1 KB, whose time is nearly all latency, and 1 MB."""

ROUNDS = 5
ADDS = 20

PingPong = Callable[[int, Tensor, int], None]
"""(peer, values, rounds): send the values to the peer and receive them back, so often; the peer calls it too."""


def probe(
    rank: int,
    groups: tuple[tuple[int, ...], ...],
    size: int,
    ping_pong: PingPong,
    tell: Callable[[Tensor], Tensor],
) -> Costs:
    """Measure; every member calls this at the same time and gets the same answer.

    Args:
        groups: the ranks of each node; empty: all on one.
        tell: the sum of everybody's values; only rank 0 has some.
    """
    inside, between = _peers(groups, size)
    seconds = torch.zeros(5, dtype=torch.float64)
    for place, peer in ((0, inside), (2, between)):
        if peer is not None and rank in {0, peer}:
            other = peer if rank == 0 else 0
            measured = [_one_way(ping_pong, other, length) for length in (SMALL, LARGE)]
            if rank == 0:
                seconds[place : place + 2] = torch.tensor(measured, dtype=torch.float64)
    if rank == 0:
        seconds[4] = _add_s()
    told = tell(seconds).tolist()
    links = [
        _link(*told[place : place + 2]) for place, peer in ((0, inside), (2, between)) if peer is not None
    ]
    return Costs(inside=links[0], between=links[-1], add_s_per_byte=told[4] / (LARGE * 4))


def _peers(groups: tuple[tuple[int, ...], ...], size: int) -> tuple[int | None, int | None]:
    """Whom rank 0 measures with: a rank of its own node, and one of another."""
    own = next((group for group in groups if 0 in group), tuple(range(size)))
    inside = next((rank for rank in own if rank), None)
    return inside, next((rank for rank in range(size) if rank not in own), None)


def _one_way(ping_pong: PingPong, peer: int, length: int) -> float:
    values = torch.zeros(length)
    ping_pong(peer, values, 1)  # the first message finds cold paths
    since = time.perf_counter()
    ping_pong(peer, values, ROUNDS)
    return (time.perf_counter() - since) / (2 * ROUNDS)


def _link(small_s: float, large_s: float) -> Link:
    per_byte = max(0.0, large_s - small_s) / ((LARGE - SMALL) * 4)
    return Link(latency_s=max(0.0, small_s - per_byte * SMALL * 4), s_per_byte=per_byte)


def _add_s() -> float:
    into, source = torch.zeros(LARGE), torch.zeros(LARGE)
    into.add_(source)
    since = time.perf_counter()
    for _ in range(ADDS):
        into.add_(source)
    return (time.perf_counter() - since) / ADDS
