"""One member of the all-reduce benchmark: the same sum over gloo and in shared memory, block by block by turns."""

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

from ringleader.bench.broken import PeerFailed
from ringleader.bench.processes.children import child_parser, die_with_parent, run_secret
from ringleader.bench.processes.gate import LOOPBACK
from ringleader.comm.schedules import RankPart
from ringleader.comm.schedules.schedule import chunks, even_spans
from ringleader.comm.segments import Arena
from ringleader.comm.transports import SharedSums
from ringleader.comm.transports.board import CHUNK_BYTES
from ringleader.comm.transports.meeting import MeetingCall, StoreClients, library, meet
from ringleader.comm.tree import TreeNode, tree_over
from ringleader.train.memory import keep_freed_memory

DEADLINE_S = 120.0
BLOCK_S = 0.12
"""Seconds that a block should last; all members make the same number of sums in it."""

Sum = Callable[[], object]


def main() -> None:
    asked = _arguments()
    torch.set_num_threads(1)
    keep_freed_memory()
    store = TCPStore(LOOPBACK, asked.port, is_master=False)
    group = PrefixStore("gloo", store)
    dist.init_process_group(
        "gloo", store=group, rank=asked.rank, world_size=asked.world, timeout=timedelta(seconds=DEADLINE_S)
    )
    call = MeetingCall(LOOPBACK, asked.port, "shared", asked.rank, asked.world, DEADLINE_S, run_secret())
    transport = meet(replace(call, kinds=("shared",)), clients=StoreClients(library))
    board = transport.board(len(asked.nbytes), rows=1)
    if board is None:
        raise PeerFailed("these processes share no memory")
    took = {}
    for slot, nbytes in enumerate(asked.nbytes):
        sums = _sums(board, slot, asked.rank, asked.world, nbytes // 4)
        took[nbytes] = _by_turns(sums, asked.blocks)
    # Nobody leaves before all are done: a rank that is behind still sums with the others.
    dist.barrier()
    transport.close()
    dist.destroy_process_group()
    print(json.dumps(took), flush=True)


def _sums(board: SharedSums, slot: int, rank: int, world: int, length: int) -> dict[str, Sum]:
    """The ways of summing that are compared, each on memory of its own, checked once."""
    arena = Arena()
    row = arena.empty(length, torch.float32)
    part = RankPart(
        rank,
        length,
        tuple((TreeNode(0, r),) for r in range(world)),
        tree_over(world, frozenset(range(world))),
    )
    theirs = torch.zeros(length)
    address = [arena.address(row)]
    ways: dict[str, Sum] = {
        "gloo": lambda: dist.all_reduce(theirs),
        "ringleader": lambda: board.reduce(slot, part, [row], address),
        "limit": _unsynchronized(rank, world, length),
    }
    for values, name in ((row, "ringleader"), (theirs, "gloo")):
        values.fill_(rank + 1.0)
        ways[name]()
        if not torch.equal(values, torch.full_like(values, world * (world + 1) / 2)):
            raise PeerFailed(f"{name} summed {length} elements wrongly")
        # Zeros stay zeros: any other values, summed in place over and over, would grow to infinity.
        values.zero_()
    return ways


def _unsynchronized(rank: int, world: int, length: int) -> Sum:
    """The adds and copies that a member makes in a sum, on memory of its own and waiting for nobody."""
    start, stop = even_spans(length, world)[rank]
    mine = torch.zeros(stop - start)
    others = [torch.zeros(stop - start) for _ in range(world - 1)]
    # In chunks that stay in the cache, as the board adds them.
    pieces: list[tuple[Tensor, list[Tensor]]] = [
        (mine[a:b], [other[a:b] for other in others]) for a, b in chunks((0, stop - start), CHUNK_BYTES // 4)
    ]

    def work() -> None:
        for own, foreign in pieces:
            for other in foreign:
                own.add_(other)
            for other in foreign:
                other.copy_(own)

    return work


def _by_turns(ways: dict[str, Sum], blocks: int) -> dict[str, list[float]]:
    """Seconds a sum, one value a block."""
    counts = {name: _count(way) for name, way in ways.items()}
    took: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(blocks):
        names = list(ways)
        first = number % len(names)
        # Rotated, so that no way always finds the caches as the same other left them.
        for name in names[first:] + names[:first]:
            took[name].append(_block(ways[name], counts[name]))
    return took


def _count(way: Sum) -> int:
    """The number of sums in a block, by the slowest member's measure, so that all make the same number."""
    slowest = torch.tensor(_block(way, 3))
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    return max(3, int(BLOCK_S / max(slowest.item(), 1e-6)))


def _block(way: Sum, count: int) -> float:
    way()  # the first one finds cold caches
    dist.barrier()
    since = time.perf_counter()
    for _ in range(count):
        way()
    return (time.perf_counter() - since) / count


def _arguments() -> argparse.Namespace:
    parser = child_parser(numbers=("port", "world", "rank", "blocks"))
    parser.add_argument("--nbytes", type=int, action="append", required=True)
    return parser.parse_args()


if __name__ == "__main__":
    die_with_parent()
    main()
