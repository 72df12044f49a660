"""The routes between workers and servers: the ranks through which a bucket's sum and its weights go, node by node.

Two things differ between the architectures with servers: what a server keeps, a share of the parameters or a copy of
all of them, and who sums inside a node, one aggregator or all workers together.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from torch import Tensor

from ringleader.comm.schedules import RankPart, Step
from ringleader.comm.schedules.primitives import relayed, replicated
from ringleader.comm.schedules.primitives.relayed import NodeRanks, Relay, by_node, by_one, by_workers
from ringleader.comm.segments import Address
from ringleader.comm.transports import SharedSums, Transport
from ringleader.elastic import Plan

Nodes = tuple[tuple[int, ...], ...]
MakeNodeRanks = Callable[[tuple[int, ...], int], NodeRanks]
"""(ranks of a node, a root): the ranks that collect there for it."""


class Routes(Protocol):
    """The routes of a generation, the same on all members. A bucket's owner is the number of a part of the parameters.

    Attributes:
        copied: whether some bucket is updated by more than one server.
    """

    copied: bool

    def held(self, rank: int) -> frozenset[int] | None:
        """The owners whose buckets the server of that rank updates; None: all."""

    def source(self, rank: int, owner: int) -> int:
        """The rank from which `rank` gets the weights of the owner's buckets; `rank` itself if it makes them."""

    def push(self, part: RankPart, owner: int) -> Iterable[Step]:
        """Steps that leave the sum in row 0 of every server that updates the bucket."""

    def pull(self, part: RankPart, owner: int) -> Iterable[Step]:
        """Steps that copy row 0 of whoever updates the bucket to everybody else."""

    def sum_in_place(
        self, board: SharedSums, slot: int, part: RankPart, owner: int, into: tuple[Tensor, Address]
    ) -> None:
        """Do as `push` does, with rows that the workers offer; on a server that updates the bucket."""


class PartitionedRoutes:
    """Each bucket is updated by one server. A node's link carries its sums once and its weights once, see `relayed`.
    Implements Routes.

    Args:
        ranks_by_node: the collectors on each node, for a root.
        same_bits: whether partial sums have to be nodes of the job's tree.
    """

    copied = False

    def __init__(
        self, plan: Plan, ranks_by_node: Callable[[int], tuple[NodeRanks, ...]], *, same_bits: bool
    ) -> None:
        self._first = plan.world
        self._servers = plan.servers
        self._relays = [Relay(r, ranks_by_node(r)) for r in range(plan.world, plan.world + plan.servers)]
        self._same_bits = same_bits

    def held(self, rank: int) -> frozenset[int] | None:
        return None if self._servers == 1 else frozenset({rank - self._first})

    def source(self, rank: int, owner: int) -> int:
        return self._first + owner

    def push(self, part: RankPart, owner: int) -> Iterable[Step]:
        relay = self._relays[owner]
        # Where bits may differ, each node adds all of its rows into one: fewer partial sums leave it.
        return relayed.push(part if self._same_bits else by_node(part, relay.ranks_by_node), relay)

    def pull(self, part: RankPart, owner: int) -> Iterable[Step]:
        return relayed.pull(part, self._relays[owner])

    def sum_in_place(
        self, board: SharedSums, slot: int, part: RankPart, owner: int, into: tuple[Tensor, Address]
    ) -> None:
        board.gather(slot, part, into[0])


class ReplicatedRoutes:
    """Each bucket is updated by several servers, its roots, who sum among themselves. Each serves a region: the ranks
    of its node, and nodes without a root. Implements Routes.

    With n elements, R roots and m partial sums a region, the roots' own sum adds (R-1)/R*(m+1)*n to what leaves each of
    their nodes, see `replicated`; weights cross no more links than from one server.

    Args:
        roots: for each part of the parameters the ranks that update it, first the one that publishes where the sums may
            differ in their last bits from one root to another.
        one_source: whether all others take the weights of the first root.
    """

    def __init__(
        self,
        roots: Sequence[tuple[int, ...]],
        nodes: Nodes,
        node_ranks: MakeNodeRanks,
        *,
        same_bits: bool,
        one_source: bool = False,
    ) -> None:
        self._roots = roots
        self._same_bits = same_bits
        self.copied = any(len(ranks) > 1 for ranks in roots)
        self._regions = [
            [
                Relay(root, tuple(node_ranks(ranks, root) for ranks in region))
                for root, region in zip(ranks, regions(nodes, ranks), strict=True)
            ]
            for ranks in roots
        ]
        self._sources = [
            [_one_relay(ranks, nodes, node_ranks)] if one_source else found
            for ranks, found in zip(roots, self._regions, strict=True)
        ]
        self._serving = [
            {
                rank: relay.root
                for relay in relays
                for node_ranks in relay.ranks_by_node
                for rank in node_ranks.ranks
            }
            # A root gets weights from nobody: it has updated the bucket itself.
            | {root: root for root in ranks}
            for relays, ranks in zip(self._sources, roots, strict=True)
        ]

    def held(self, rank: int) -> frozenset[int] | None:
        found = frozenset(owner for owner, ranks in enumerate(self._roots) if rank in ranks)
        return None if len(found) == len(self._roots) else found

    def source(self, rank: int, owner: int) -> int:
        return self._serving[owner][rank]

    def push(self, part: RankPart, owner: int) -> Iterable[Step]:
        relays = self._regions[owner]
        if not self._same_bits:
            part = by_node(part, _together(relays))
        return replicated.push(part, relays)

    def pull(self, part: RankPart, owner: int) -> Iterable[Step]:
        return replicated.pull(part, self._sources[owner])

    def sum_in_place(
        self, board: SharedSums, slot: int, part: RankPart, owner: int, into: tuple[Tensor, Address]
    ) -> None:
        if len(self._roots[owner]) == 1:
            board.gather(slot, part, into[0])
        else:
            board.spread(slot, part, into, self._roots[owner])


MakeRoutes = Callable[[Plan, Nodes, bool], Routes]
"""(plan, the ranks of each node, same bits)"""


def through_aggregators(plan: Plan, nodes: Nodes, same_bits: bool) -> Routes:
    """The routes of `parameter_server` between and inside nodes."""
    if plan.backups:
        return _backed(plan, nodes, by_one, same_bits)
    return PartitionedRoutes(
        plan, lambda root: tuple(by_one(ranks, root) for ranks in nodes), same_bits=same_bits
    )


def through_rings(plan: Plan, nodes: Nodes, same_bits: bool) -> Routes:
    """The routes of `parameter_server` between nodes and `ring` inside: every worker collects and pushes its part of
    the node's sum."""
    workers = plan.world

    def node_ranks(ranks: tuple[int, ...], root: int) -> NodeRanks:
        return by_workers(ranks, root, workers)

    if plan.backups:
        return _backed(plan, nodes, node_ranks, same_bits)
    return PartitionedRoutes(
        plan, lambda root: tuple(node_ranks(ranks, root) for ranks in nodes), same_bits=same_bits
    )


def between_copies(plan: Plan, nodes: Nodes, same_bits: bool) -> Routes:
    """The routes of `ring` between nodes and `parameter_server` inside: the servers sum among themselves, each updates
    and serves."""
    return ReplicatedRoutes(
        [tuple(range(plan.world, plan.world + plan.servers))], nodes, by_one, same_bits=same_bits
    )


def _backed(plan: Plan, nodes: Nodes, node_ranks: MakeNodeRanks, same_bits: bool) -> Routes:
    """The routes of parts with backups: each is updated by all servers that hold it."""
    roots = [tuple(plan.world + server for server in servers) for servers in plan.held_by]
    # A server that is ahead after a failure has the first sum of a step that the others repeat. Where a repetition may
    # differ in its last bits, all take the weights of one.
    return ReplicatedRoutes(roots, nodes, node_ranks, same_bits=same_bits, one_source=not same_bits)


def nodes_of(transport: Transport) -> Nodes:
    """The ranks of each node. Where that is not known, every rank counts as alone on one."""
    if transport.groups:
        return transport.groups
    everybody = tuple(range(transport.size))
    return (everybody,) if transport.shared else tuple((rank,) for rank in everybody)


def regions(nodes: Nodes, roots: Sequence[int]) -> list[Nodes]:
    """The ranks that each root serves: on its own node itself and its even part of the others there, then nodes without
    a root, each as a whole and neighbours alike."""
    served: dict[int, list[tuple[int, ...]]] = {root: [] for root in roots}
    homeless: list[tuple[int, ...]] = []
    for ranks in nodes:
        here = [rank for rank in ranks if rank in served]
        theirs = tuple(rank for rank in ranks if rank not in served)
        if not here:
            homeless.append(theirs)
        for i, root in enumerate(here):
            part = theirs[i * len(theirs) // len(here) : (i + 1) * len(theirs) // len(here)]
            served[root].append((*part, root))
    # Who serves the fewest at home is given other nodes first; the rank breaks ties alike on all members.
    load = sorted(roots, key=lambda root: (sum(map(len, served[root])), root))
    for i, ranks in enumerate(homeless):
        served[load[i * len(roots) // len(homeless)]].append(ranks)
    return [tuple(served[root]) for root in roots]


def _one_relay(roots: Sequence[int], nodes: Nodes, node_ranks: MakeNodeRanks) -> Relay:
    """The relay from the first root to all ranks but the other roots."""
    apart = [tuple(rank for rank in ranks if rank not in roots[1:]) for ranks in nodes]
    return Relay(roots[0], tuple(node_ranks(ranks, roots[0]) for ranks in apart if ranks))


def _together(relays: Sequence[Relay]) -> tuple[NodeRanks, ...]:
    """Each region as one node: what it collects may be one sum."""
    return tuple(
        NodeRanks(tuple(rank for h in r.ranks_by_node for rank in h.ranks), (r.root,)) for r in relays
    )
