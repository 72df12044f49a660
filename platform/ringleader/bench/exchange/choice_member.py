"""One rank of the benchmark of `algorithm: auto`: the choice as a job makes it, then every schedule, by turns."""

import argparse
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

from ringleader.bench.broken import PeerFailed
from ringleader.bench.processes.children import child_parser, die_with_parent, run_secret
from ringleader.bench.processes.gate import LOOPBACK
from ringleader.comm.choosing.choice import choose, forecasts
from ringleader.comm.choosing.probe import ProbeSender, probe
from ringleader.comm.choosing.trial import sums, try_out
from ringleader.comm.communicator import BULK, Communicator
from ringleader.comm.schedules import SCHEDULES, RankPart, Step
from ringleader.comm.segments import Arena
from ringleader.comm.simulator import ClusterCosts
from ringleader.comm.transports import SharedSums, Transport
from ringleader.comm.transports.meeting import MeetingCall, StoreClients, library, meet
from ringleader.comm.tree import TreeNode, tree_over
from ringleader.exchange.side_channel import SideChannel
from ringleader.train.memory import keep_freed_memory

DEADLINE_S = 120.0
BLOCK_S = 0.03
"""Seconds that a block should last; all members make the same number of sums in it."""

IN_PLACE = "in_place"
TAG = 64
Sum = Callable[[], object]


def main() -> None:
    asked = _arguments()
    torch.set_num_threads(1)
    keep_freed_memory()
    store = TCPStore(LOOPBACK, asked.port, is_master=False)
    patience = timedelta(seconds=DEADLINE_S)
    group = PrefixStore("beside", store)
    dist.init_process_group("gloo", store=group, rank=asked.rank, world_size=asked.world, timeout=patience)
    transport = _meet(asked)
    communicator = Communicator(transport)
    side = SideChannel(communicator)
    costs = probe(
        asked.rank, transport.groups, asked.world, ProbeSender(side.ping_pong, side.shift, side.all_reduce)
    )
    found: dict[object, object] = {}
    board = transport.board(len(asked.nbytes), rows=1)
    for slot, nbytes in enumerate(asked.nbytes):
        part = _part(transport, nbytes // 4)
        chosen = [IN_PLACE, IN_PLACE]
        if not transport.shared:  # there is one way only in shared memory, and nothing to try
            for place, same_bits in enumerate((False, True)):
                costs = _tried(communicator, part, costs, side, same_bits)
                chosen[place] = choose(part, costs, canonical=same_bits)
        told = _told_apart(part, chosen)
        row = torch.zeros(part.length)
        ways = {name: (row, _over(communicator, part, name, row)) for name in dict.fromkeys(told.values())}
        if board is not None:
            ways[IN_PLACE] = _in_place(communicator, board, part, slot)
        for name, (values, way) in ways.items():
            _check(name, values, way, transport)
        took = _by_turns({name: way for name, (_, way) in ways.items()}, asked.blocks)
        found[nbytes] = _answer(part, costs, chosen, told, took)
    # Nobody leaves before all are done: a rank that is behind still sums with the others.
    dist.barrier()
    communicator.close()
    dist.destroy_process_group()
    if asked.rank == 0:
        found["costs"] = asdict(replace(costs, tried=()))
        print(json.dumps(found), flush=True)


def _meet(asked: argparse.Namespace) -> Transport:
    """Connect to the other members over the one transport in question."""
    place = (LOOPBACK, asked.port, asked.over)
    call = MeetingCall(*place, asked.rank, asked.world, DEADLINE_S, run_secret(), kinds=(asked.over,))
    return meet(call, clients=StoreClients(library))


def _answer(
    part: RankPart,
    costs: ClusterCosts,
    chosen: Sequence[str],
    told: dict[str, str],
    took: dict[str, list[float]],
) -> dict[str, object]:
    """The choices for a size, and the time that each way took."""
    return {
        "chosen": told.get(chosen[0], chosen[0]),
        "chosen_same_bits": told.get(chosen[1], chosen[1]),
        "canonical": [told[name] for name in told if SCHEDULES[name].canonical(part)],
        "forecasts": {n: f.seconds for n, f in forecasts(part, costs, canonical=False).items()},
        "took": took,
    }


def _tried(
    communicator: Communicator, part: RankPart, costs: ClusterCosts, side: SideChannel, same_bits: bool
) -> ClusterCosts:
    """Costs after the trial that a job with buckets of that size makes at its start."""
    like = torch.zeros(1)
    return try_out(
        [part],
        costs,
        canonical=same_bits,
        element_bytes=like.element_size(),
        way=lambda part: sums(communicator, part, like, TAG),
        tell=side.all_reduce,
    )


def _part(transport: Transport, length: int) -> RankPart:
    """This rank's part in a sum to which every rank brings one row."""
    world = transport.size
    rows = tuple((TreeNode(0, r),) for r in range(world))
    tree = tree_over(world, frozenset(range(world)))
    return RankPart(transport.rank, length, rows, tree, groups=transport.groups)


def _in_place(communicator: Communicator, board: SharedSums, part: RankPart, slot: int) -> tuple[Tensor, Sum]:
    arena = Arena()
    home = arena.empty(part.length, torch.float32)

    def way() -> None:
        ticket = communicator.submit_in_place(board, part, [(home, home)], arena, bucket=slot)
        communicator.wait([ticket])

    return home, way


def _told_apart(part: RankPart, chosen: Sequence[str]) -> dict[str, str]:
    """Every schedule → the first one with the same steps on all ranks; chosen ones come before others."""
    names: dict[tuple[tuple[Step, ...], ...], str] = {}
    found: dict[str, str] = {}
    for name in sorted(SCHEDULES, key=lambda name: (name not in chosen, name)):
        steps = SCHEDULES[name].steps
        # On few ranks several schedules are the same steps: one of them is measured for all.
        alike = tuple(tuple(steps(replace(part, rank=r))) for r in range(part.world))
        found[name] = names.setdefault(alike, name)
    return found


def _over(communicator: Communicator, part: RankPart, name: str, row: Tensor) -> Sum:
    steps = tuple(SCHEDULES[name].steps(part))
    return lambda: communicator.wait(
        [communicator.submit(steps, [row], tag=TAG, phase="reduce", bucket=0, lane=BULK)]
    )


def _check(name: str, values: Tensor, way: Sum, transport: Transport) -> None:
    values.fill_(transport.rank + 1.0)
    way()
    if not torch.equal(values, torch.full_like(values, transport.size * (transport.size + 1) / 2)):
        raise PeerFailed(f"{name} summed {values.numel()} elements wrongly")
    # Zeros stay zeros: any other values, summed in place over and over, would grow to infinity.
    values.zero_()


def _by_turns(ways: dict[str, Sum], blocks: int) -> dict[str, list[float]]:
    """Seconds a sum of the slowest member, one value a block."""
    counts = {name: max(1, int(BLOCK_S / max(_block(way, 2), 1e-6))) for name, way in ways.items()}
    took: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(blocks):
        names = list(ways)
        first = number % len(names)
        # Rotated, so that no way always finds the caches as the same other left them.
        for name in names[first:] + names[:first]:
            took[name].append(_block(ways[name], counts[name]))
    return took


def _block(way: Sum, count: int) -> float:
    way()  # the first one finds cold caches
    dist.barrier()
    since = time.perf_counter()
    for _ in range(count):
        way()
    # Equal on all members, so that they make the same number of sums a block.
    slowest = torch.tensor((time.perf_counter() - since) / count, dtype=torch.float64)
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    return float(slowest.item())


def _arguments() -> argparse.Namespace:
    parser = child_parser(numbers=("port", "world", "rank", "blocks"))
    parser.add_argument("--over", choices=("gloo", "shared"), required=True)
    parser.add_argument("--nbytes", type=int, action="append", required=True)
    return parser.parse_args()


if __name__ == "__main__":
    die_with_parent()
    main()
