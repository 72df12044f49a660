"""Members of a real session on two nodes, without Ray: forked from a process that has torch loaded."""

import multiprocessing as mp
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from ringleader.bench.broken import PeerFailed
from ringleader.bench.exchange.nodes import Node, Nodes, enter
from ringleader.bench.processes.children import die_with_parent, run_secret
from ringleader.bench.processes.harness import Nowhere, OneGeneration
from ringleader.errors import RingleaderError
from ringleader.spec import JobSpec
from ringleader.train.run import TrainingFunction, WorkerResult, run

# Not fork: threads of torch are missing in a child. Not spawn: each would import torch anew.
PROCESSES = mp.get_context("forkserver")


F = TypeVar("F", bound=TrainingFunction)


@dataclass(frozen=True, slots=True)
class BenchMember(Generic[F]):
    """All that a process needs to take part in a run."""

    spec: JobSpec
    run: str
    rank: int
    world: int
    node: Node
    store: tuple[str, int]
    secret: bytes
    function: F


@dataclass(frozen=True, slots=True)
class Ended(Generic[F]):
    """A worker's result, and its training function with what that has kept."""

    finished: WorkerResult
    function: F


def train(nodes: Nodes, name: str, spec: JobSpec, function: F, deadline_s: float) -> list[Ended[F]]:
    """Run a training function on both nodes.

    Args:
        name: unique among the runs at any time.
        spec: `workers.max` of them take part, the same number on each node.
        function: every member gets a copy.

    Returns:
        what each worker ended with, in rank order.

    Raises:
        PeerFailed: a member failed, or did not end in time.
    """
    store = TCPStore(nodes.here, 0, is_master=True, wait_for_workers=False)
    # The first optimizer of a process imports torch._dynamo, which takes seconds.
    PROCESSES.set_forkserver_preload([__name__, "torch._dynamo"])
    pipes, processes = [], []
    world = spec.workers.max
    until = time.monotonic() + deadline_s
    try:
        for rank in range(world + spec.sync.server_count):
            here, there = PROCESSES.Pipe(duplex=False)
            place = (nodes.here, store.port)
            member = BenchMember(
                spec, name, rank, world, nodes.of(rank, world), place, run_secret(), function
            )
            process = PROCESSES.Process(target=take_part, args=(member, there), daemon=True)
            process.start()
            # A writing end that stays open here would hide the death of the member: `recv` would not end.
            there.close()
            pipes.append(here)
            processes.append(process)
        return _heard(pipes, until)[:world]
    finally:
        for process in processes:
            process.kill()
            process.join(10)


def _heard(pipes: Sequence[Connection], until: float) -> list[Ended[Any]]:
    """The last message of every member, in rank order; the first failure ends the wait for the others."""
    found: dict[int, Ended[Any]] = {}
    while len(found) < len(pipes):
        silent = {pipe: rank for rank, pipe in enumerate(pipes) if rank not in found}
        heard = wait(list(silent), timeout=max(0.0, until - time.monotonic()))
        if not heard:
            raise PeerFailed(f"ranks {sorted(silent.values())} did not end in time.")
        for pipe, rank in silent.items():
            if pipe in heard:
                found[rank] = _read(pipe, rank)
    return [found[rank] for rank in range(len(pipes))]


def _read(pipe: Connection, rank: int) -> Ended[Any]:
    try:
        why, ended = pipe.recv()
    except EOFError:
        raise PeerFailed(f"rank {rank} died.") from None
    if why:
        raise PeerFailed(f"rank {rank}: {why}")
    found: Ended[Any] = ended
    return found


def take_part(member: BenchMember[Any], pipe: Connection) -> None:
    """Run a member process: one session over one generation. Sends the reason of a failure, or the result."""
    die_with_parent()
    if member.node.namespace is not None:
        # Before torch starts threads: only those that this one starts later live in the namespace.
        enter(member.node.namespace)
    torch.set_num_threads(1)
    try:
        with tempfile.TemporaryDirectory() as artifacts:
            finished = run(
                spec=member.spec,
                function=member.function,
                coordinator=_coordinator(member),
                sink=Nowhere(),
                server=member.rank >= member.world,
                artifacts=Path(artifacts),
            )
    except RingleaderError as error:
        pipe.send((str(error), None))
    else:
        pipe.send(("", Ended(finished, member.function)))


def _coordinator(member: BenchMember[Any]) -> OneGeneration:
    return OneGeneration(
        store_host=member.store[0],
        store_port=member.store[1],
        side=member.run,
        rank=member.rank,
        world=member.world,
        servers=member.spec.sync.server_count,
        shards=member.spec.shards,
        secret=member.secret,
        host=member.node.address,
    )
