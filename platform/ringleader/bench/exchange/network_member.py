"""One rank of the network benchmark, on its host: the same sum by our schedule and by gloo, by turns."""

import argparse
import json
import socket
import time
from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

from ringleader.bench.broken import PeerFailed
from ringleader.bench.processes.children import child_parser, die_with_parent, run_secret
from ringleader.comm.communicator import BULK, Communicator
from ringleader.comm.schedules import SCHEDULES, RankPart
from ringleader.comm.transports.meeting import MeetingCall, StoreClients, library, meet
from ringleader.comm.tree import TreeNode, tree_over

DEADLINE_S = 120.0
COUNTED = 3
"""Sums between two readings of the links' counters."""

STREAM_BYTES = 48 << 20
PIECE_BYTES = 1 << 20
Sum = Callable[[], object]


def main() -> None:
    asked = child_parser(
        texts=("store", "address", "schedule"), numbers=("rank", "world", "turns", "nbytes")
    ).parse_args()
    torch.set_num_threads(1)
    host, _, port = asked.store.rpartition(":")
    store = TCPStore(host, int(port), is_master=False, timeout=timedelta(seconds=DEADLINE_S))
    dist.init_process_group(
        "gloo",
        store=PrefixStore("gloo", store),
        rank=asked.rank,
        world_size=asked.world,
        timeout=timedelta(seconds=DEADLINE_S),
    )
    call = MeetingCall(
        host, int(port), "ours", asked.rank, asked.world, DEADLINE_S, run_secret(), host=asked.address
    )
    transport = meet(call, clients=StoreClients(library))
    communicator = Communicator(transport)
    ways = _ways(communicator, transport.groups, asked)
    for name, way in ways.items():
        _count_bytes(store, name, asked.rank, way)
    took: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(asked.turns):
        # The order alternates, so that neither way always follows the other.
        names = list(ways) if number % 2 else list(ways)[::-1]
        for name in names:
            took[name].append(_timed(ways[name]))
    took["stream"] = _stream(store, asked.rank, asked.address, asked.world)
    dist.barrier()
    communicator.close()
    dist.destroy_process_group()
    print(json.dumps(took), flush=True)


def _ways(
    communicator: Communicator, groups: tuple[tuple[int, ...], ...], asked: argparse.Namespace
) -> dict[str, Sum]:
    """Both ways of summing, each checked once."""
    length = asked.nbytes // 4
    row, theirs = torch.zeros(length), torch.zeros(length)
    rows = tuple((TreeNode(0, r),) for r in range(asked.world))
    tree = tree_over(asked.world, frozenset(range(asked.world)))
    part = RankPart(asked.rank, length, rows, tree, groups=groups)
    steps = tuple(SCHEDULES[asked.schedule].steps(part))

    def ours() -> None:
        communicator.wait([communicator.submit(steps, [row], tag=0, phase="reduce", bucket=0, lane=BULK)])

    ways: dict[str, Sum] = {"ringleader": ours, "gloo": lambda: dist.all_reduce(theirs)}
    for name, values in (("ringleader", row), ("gloo", theirs)):
        values.fill_(asked.rank + 1.0)
        ways[name]()
        if not torch.equal(values, torch.full_like(values, asked.world * (asked.world + 1) / 2)):
            raise PeerFailed(f"{name} summed {length} elements wrongly")
        values.zero_()
    return ways


def _count_bytes(store: TCPStore, name: str, rank: int, way: Sum) -> None:
    """Make COUNTED sums between two readings of the links' counters by the parent."""
    if rank == 0:
        store.set(f"{name}/sums", json.dumps(COUNTED))
    dist.barrier()
    for mark in ("begin", "end"):
        store.set(f"{name}/{mark}/{rank}", "1")
        store.wait([f"{name}/{mark}/go"])
        # The barrier behind the sums keeps the parent from reading before the slowest rank is done.
        if mark == "begin":
            for _ in range(COUNTED):
                way()
            dist.barrier()


def _timed(way: Sum) -> float:
    dist.barrier()
    since = time.perf_counter()
    way()
    return time.perf_counter() - since


def _stream(store: TCPStore, rank: int, address: str, world: int) -> list[float]:
    """Bytes a second of one plain TCP stream from the last rank to rank 0, as rank 0 sees it."""
    speeds = []
    if rank == 0:
        with socket.create_server((address, 0)) as server:
            store.set("stream", f"{address}:{server.getsockname()[1]}")
            connection, _ = server.accept()
            with connection:
                for _ in range(3):
                    speeds.append(_received(connection))
    elif rank == world - 1:
        host, _, port = store.get("stream").decode().rpartition(":")
        with socket.create_connection((host, int(port)), timeout=DEADLINE_S) as connection:
            for _ in range(3 * STREAM_BYTES // PIECE_BYTES):
                connection.sendall(bytes(PIECE_BYTES))
            # Returns when rank 0 closes, which has read everything by then.
            connection.recv(1)
    return speeds


def _received(connection: socket.socket) -> float:
    connection.settimeout(DEADLINE_S)
    buffer = bytearray(PIECE_BYTES)
    left, since = STREAM_BYTES, time.perf_counter()
    while left > 0:
        left -= connection.recv_into(buffer, min(left, PIECE_BYTES))
    return STREAM_BYTES / (time.perf_counter() - since)


if __name__ == "__main__":
    die_with_parent()
    main()
