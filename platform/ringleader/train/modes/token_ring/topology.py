"""The places of members where weights travel as tokens: who passes them on, who holds them, who computes together.
Pure.

| between / inside | tokens go round | an item is computed by | its move enters the token at |
|---|---|---|---|
| `token_ring` / `token_ring` | all workers, node by node | a worker | that worker |
| `token_ring` / `ring` | all workers, node by node | a node's workers | the first of them |
| `token_ring` / `parameter_server` | the servers, node by node | a server's workers | the server |
| `parameter_server` / `token_ring` | the workers of each node | a worker | that worker, then the server |
"""

from collections.abc import Sequence
from dataclasses import dataclass

from ringleader.elastic import Plan

Nodes = Sequence[Sequence[int]]

PLAIN, SUMMED, SERVED, PUSHED = (
    "token_ring",
    "token_ring/ring",
    "token_ring/parameter_server",
    "parameter_server/token_ring",
)


@dataclass(frozen=True, slots=True)
class RingPlace:
    """One member's place in a generation.

    Attributes:
        ring: ranks that pass tokens to each other, in their order; empty where this member passes none.
        group_ranks: ranks that compute every item together, the conductor first; one rank where nobody has to be asked.
        serves: the conductor has no shards and makes the updates for its group.
        token_servers: servers that hold the weights, span k at the (k mod n)-th; empty where the tokens themselves do.
        clients: the leaders that bring tokens to this server.
        owns: this member's number among those servers; None for all others.
    """

    ring: tuple[int, ...]
    group_ranks: tuple[int, ...]
    serves: bool = False
    token_servers: tuple[int, ...] = ()
    clients: tuple[int, ...] = ()
    owns: int | None = None

    @property
    def holds(self) -> bool:
        """Whether tokens come to this member."""
        return bool(self.ring) or self.owns is not None

    def held_by(self, span: int) -> int:
        """The rank of the server that holds a span."""
        return self.token_servers[span % len(self.token_servers)]

    @property
    def words(self) -> str:
        """A description for people of how tokens travel, as the first worker sees it."""
        if self.token_servers:
            inside = f"{len(self.ring)} workers of a node" if len(self.ring) > 1 else "one worker of a node"
            return f"tokens round {inside}, pushed to {_count(len(self.token_servers), 'server')}"
        if self.serves:
            return f"tokens round the servers, {_count(len(self.group_ranks) - 1, 'worker')} at this one"
        together = f", {len(self.group_ranks)} of this node as one" if len(self.group_ranks) > 1 else ""
        return f"tokens round {_count(len(self.ring), 'worker')}{together}"


def place_of(architecture: str, plan: Plan, groups: Nodes, rank: int) -> RingPlace:
    """A member's place.

    Args:
        groups: the ranks of each node; empty: all are on one.
    """
    size = len(plan.members)
    nodes = [sorted(group) for group in groups] or [list(range(size))]
    if plan.servers == 0 or architecture == PLAIN:
        order = ring_order(groups, size)
        group_ranks = next(node for node in nodes if rank in node) if architecture == SUMMED else [rank]
        return RingPlace(tuple(order), tuple(group_ranks))
    workers = [[r for r in node if r < plan.world] for node in nodes]
    if architecture == SERVED:
        return _served(plan, nodes, rank)
    token_servers = tuple(range(plan.world, size))
    if rank in token_servers:
        leaders = tuple(sorted(node[0] for node in workers if node))
        return RingPlace((), (rank,), token_servers=token_servers, clients=leaders, owns=rank - plan.world)
    return RingPlace(
        tuple(next(node for node in workers if rank in node)), (rank,), token_servers=token_servers
    )


def ring_order(groups: Nodes, size: int) -> list[int]:
    """The ranks as the tokens visit them: those of a node one after the other, so that each border is crossed once."""
    return [rank for group in groups for rank in group] or list(range(size))


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _served(plan: Plan, nodes: Nodes, rank: int) -> RingPlace:
    """The place of a member where servers make the updates: workers use the server of their node with the fewest
    workers; where there is none, of all servers."""
    servers = [r for node in nodes for r in node if r >= plan.world]
    ranks_by_server: dict[int, list[int]] = {server: [] for server in servers}
    lonely = [node for node in nodes if not any(r >= plan.world for r in node)]
    # Nodes without a server last: their workers even out what the others have chosen.
    for node in [*(n for n in nodes if n not in lonely), *lonely]:
        near = [r for r in node if r >= plan.world] or servers
        for worker in (r for r in node if r < plan.world):
            # By rank where several have as few: all members have to come to the same.
            ranks_by_server[min(near, key=lambda s: (len(ranks_by_server[s]), s))].append(worker)
    server = (
        rank
        if rank in ranks_by_server
        else next(s for s, group_ranks in ranks_by_server.items() if rank in group_ranks)
    )
    ring = tuple(servers) if rank == server else ()
    return RingPlace(ring, (server, *sorted(ranks_by_server[server])), serves=True)
