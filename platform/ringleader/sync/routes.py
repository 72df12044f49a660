"""The routes between workers and servers: through which ranks a bucket's sum and its weights go, node by node.

Two things differ between the architectures with servers: what a server keeps, a share of the parameters or a copy of
all of them, and who sums inside a node, one aggregator or all workers together.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from torch import Tensor

from ringleader.comm.schedules import Part, Step, relayed, replicated
from ringleader.comm.schedules.relayed import House, Relay, by_house, by_one, by_workers
from ringleader.comm.segments import Address
from ringleader.comm.transports import Board, Transport
from ringleader.elastic import Plan

Nodes = tuple[tuple[int, ...], ...]


class Routes(Protocol):
    """The same on all members. A bucket's owner is a number among the servers."""

    def share(self, rank: int) -> int | None:
        """The owner whose buckets the server of that rank updates; None: it updates all."""

    def source(self, rank: int, owner: int) -> int:
        """From whom `rank` gets the weights of the owner's buckets; `rank` itself if it makes them."""

    def push(self, part: Part, owner: int) -> Iterable[Step]:
        """The sum ends in row 0 of every server that updates the bucket."""

    def pull(self, part: Part, owner: int) -> Iterable[Step]:
        """Row 0 of whoever updates the bucket gets to everybody else."""

    def sum_in_place(self, board: Board, slot: int, part: Part, into: tuple[Tensor, Address]) -> None:
        """On a server that updates the bucket: the same as `push`, of rows that the workers offer."""


class Shares:
    """Each bucket is updated by one server. A node's link carries its sums once and its weights once, see `relayed`.

    Args:
        houses: who collects on each node for a root.
        same_bits: whether partial sums have to be nodes of the job's tree.
    """

    def __init__(self, plan: Plan, houses: Callable[[int], tuple[House, ...]], *, same_bits: bool) -> None:
        self._first = plan.world
        self._servers = plan.servers
        self._relays = [Relay(r, houses(r)) for r in range(plan.world, plan.world + plan.servers)]
        self._same_bits = same_bits

    def share(self, rank: int) -> int | None:
        return None if self._servers == 1 else rank - self._first

    def source(self, rank: int, owner: int) -> int:
        return self._first + owner

    def push(self, part: Part, owner: int) -> Iterable[Step]:
        relay = self._relays[owner]
        return relayed.push(part if self._same_bits else by_house(part, relay.houses), relay)

    def pull(self, part: Part, owner: int) -> Iterable[Step]:
        return relayed.pull(part, self._relays[owner])

    def sum_in_place(self, board: Board, slot: int, part: Part, into: tuple[Tensor, Address]) -> None:
        board.gather(slot, part, into[0])


class Copies:
    """Every server updates all buckets and serves a region: the workers of its node, and nodes without a server."""

    def __init__(self, plan: Plan, nodes: Nodes, *, same_bits: bool) -> None:
        self._servers = range(plan.world, plan.world + plan.servers)
        self._regions = [
            Relay(root, tuple(by_one(ranks, root) for ranks in region))
            for root, region in zip(self._servers, regions(nodes, plan.world, plan.servers), strict=True)
        ]
        self._same_bits = same_bits
        self._serving = {
            rank: relay.root for relay in self._regions for house in relay.houses for rank in house.ranks
        }

    def share(self, rank: int) -> int | None:
        return None

    def source(self, rank: int, owner: int) -> int:
        return self._serving[rank]

    def push(self, part: Part, owner: int) -> Iterable[Step]:
        if not self._same_bits:
            part = by_house(part, _together(self._regions))
        return replicated.push(part, self._regions)

    def pull(self, part: Part, owner: int) -> Iterable[Step]:
        return replicated.pull(part, self._regions)

    def sum_in_place(self, board: Board, slot: int, part: Part, into: tuple[Tensor, Address]) -> None:
        board.spread(slot, part, into, self._servers)


MakeRoutes = Callable[[Plan, Nodes, bool], Routes]
"""(plan, the ranks of each node, same bits)"""


def through_aggregators(plan: Plan, nodes: Nodes, same_bits: bool) -> Routes:
    """`parameter_server` between and inside nodes."""
    return Shares(plan, lambda root: tuple(by_one(ranks, root) for ranks in nodes), same_bits=same_bits)


def through_rings(plan: Plan, nodes: Nodes, same_bits: bool) -> Routes:
    """`parameter_server` between nodes, `ring` inside: every worker collects and pushes its part of the node's sum."""
    workers = plan.world
    return Shares(
        plan, lambda root: tuple(by_workers(ranks, root, workers) for ranks in nodes), same_bits=same_bits
    )


def between_copies(plan: Plan, nodes: Nodes, same_bits: bool) -> Routes:
    """`ring` between nodes, `parameter_server` inside: the servers sum among themselves, each updates and serves."""
    return Copies(plan, nodes, same_bits=same_bits)


def nodes_of(transport: Transport) -> Nodes:
    """The ranks of each node. Where nobody knows, every rank counts as alone on one."""
    if transport.groups:
        return transport.groups
    everybody = tuple(range(transport.size))
    return (everybody,) if transport.shared else tuple((rank,) for rank in everybody)


def regions(nodes: Nodes, workers: int, servers: int) -> list[Nodes]:
    """For each server the ranks on its own node, itself and its even part of the workers there, then the nodes
    without a server that it serves, each as a whole and neighbours alike."""
    served: list[list[tuple[int, ...]]] = [[] for _ in range(servers)]
    homeless: list[tuple[int, ...]] = []
    for ranks in nodes:
        here = [rank for rank in ranks if rank >= workers]
        theirs = ranks[: len(ranks) - len(here)]
        if not here:
            homeless.append(theirs)
        for i, root in enumerate(here):
            part = theirs[i * len(theirs) // len(here) : (i + 1) * len(theirs) // len(here)]
            served[root - workers].append((*part, root))
    load = sorted(range(servers), key=lambda s: (sum(map(len, served[s])), s))
    for i, ranks in enumerate(homeless):
        served[load[i * servers // len(homeless)]].append(ranks)
    return [tuple(s) for s in served]


def _together(relays: Sequence[Relay]) -> tuple[House, ...]:
    """Each region as one house: what it collects may be one sum."""
    return tuple(House(tuple(rank for h in r.houses for rank in h.ranks), (r.root,)) for r in relays)
