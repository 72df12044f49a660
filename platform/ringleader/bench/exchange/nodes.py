"""Two nodes on one machine: network namespaces joined by links of 1 Gbit/s, or two addresses that share no memory."""

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from ringleader.bench.broken import PeerFailed
from ringleader.bench.exchange import laboratory
from ringleader.bench.processes.gate import LOOPBACK

NODES, WORKERS_A_NODE = 2, 2
WORKERS = NODES * WORKERS_A_NODE
NAMESPACES = Path("/var/run/netns")
CLONE_NEWNET = 0x40000000


@dataclass(frozen=True, slots=True)
class Node:
    """One of the nodes.

    Attributes:
        address: where its members listen.
        namespace: the network namespace they live in; None where the node is only pretended.
    """

    address: str
    namespace: Path | None = None


@dataclass(frozen=True, slots=True)
class Nodes:
    """The nodes on which a run's members live.

    Attributes:
        here: where this process can be reached from all nodes.
        unlinked: the reason why there are no links between them to count bytes on; empty where there are.
    """

    here: str
    each: tuple[Node, ...]
    unlinked: str = ""

    def of(self, rank: int, workers: int) -> Node:
        """The node of a rank: workers fill one node after the other, servers alternate."""
        return self.each[rank * NODES // workers if rank < workers else (rank - workers) % NODES]


@contextmanager
def two_nodes() -> Iterator[Nodes]:
    """Network namespaces behind links of 1 Gbit/s where this process may make them, else two loopback addresses:
    members of different nodes then still share no memory."""
    with ExitStack() as stack:
        why = laboratory.missing()
        if not why:
            try:
                here, hosts = stack.enter_context(laboratory.hosts(NODES))
            except PeerFailed as error:
                # Root alone is not enough: a container may forbid namespaces.
                why = str(error)
            else:
                yield Nodes(here, tuple(Node(host.address, NAMESPACES / host.name) for host in hosts))
                return
        yield pretended(why)


def pretended(why: str) -> Nodes:
    """Addresses of this machine's loopback as nodes, without links."""
    # All of 127.0.0.0/8 is this machine, and members of unlike addresses share no memory.
    return Nodes(LOOPBACK, tuple(Node(f"127.0.0.{1 + n}") for n in range(NODES)), why)


def enter(namespace: Path) -> None:
    """Move this thread, and those it will start, into a network namespace (Linux, root)."""
    opened = os.open(namespace, os.O_RDONLY)
    try:
        if ctypes.CDLL(None, use_errno=True).setns(opened, CLONE_NEWNET):
            sys.exit(f"{namespace}: {os.strerror(ctypes.get_errno())}")
    finally:
        os.close(opened)


def link_bytes() -> int:
    """Bytes that crossed the link of this process's namespace, both ways, by the kernel's counters."""
    # Of this thread: a process whose main thread has not entered the namespace shows other links.
    for line in Path("/proc/thread-self/net/dev").read_text(encoding="ascii").splitlines():
        name, _, counters = line.partition(":")
        if name.strip() == laboratory.INTERFACE:
            words = counters.split()
            return int(words[0]) + int(words[8])
    raise PeerFailed(f"this namespace has no {laboratory.INTERFACE}.")


def no_bytes() -> int:
    """Zero, where there is no link to count on."""
    return 0
