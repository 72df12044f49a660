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
        crew: ranks that compute every item together, the conductor first; one rank where nobody has to be asked.
        serves: the conductor has no shards and makes the updates for its group.
        depots: servers that hold the weights, span k at the (k mod n)-th; empty where the tokens themselves do.
        clients: the leaders that bring tokens to this server.
        owns: this member's number among those servers; None for all others.
    """

    ring: tuple[int, ...]
    crew: tuple[int, ...]
    serves: bool = False
    depots: tuple[int, ...] = ()
    clients: tuple[int, ...] = ()
    owns: int | None = None

    @property
    def holds(self) -> bool:
        """Whether tokens come to this member."""
        return bool(self.ring) or self.owns is not None

    def held_by(self, span: int) -> int:
        """The rank of the server that holds a span."""
        return self.depots[span % len(self.depots)]

    @property
    def words(self) -> str:
        """A description for people of how tokens travel, as the first worker sees it."""
        if self.depots:
            inside = f"{len(self.ring)} workers of a node" if len(self.ring) > 1 else "one worker of a node"
            return f"tokens round {inside}, pushed to {_count(len(self.depots), 'server')}"
        if self.serves:
            return f"tokens round the servers, {_count(len(self.crew) - 1, 'worker')} at this one"
        crew = f", {len(self.crew)} of this node as one" if len(self.crew) > 1 else ""
        return f"tokens round {_count(len(self.ring), 'worker')}{crew}"


def place_of(architecture: str, plan: Plan, groups: Nodes, rank: int) -> RingPlace:
    """A member's place.

    Args:
        groups: the ranks of each node; empty: all are on one.
    """
    size = len(plan.members)
    nodes = [sorted(group) for group in groups] or [list(range(size))]
    if plan.servers == 0 or architecture == PLAIN:
        order = ring_order(groups, size)
        crew = next(node for node in nodes if rank in node) if architecture == SUMMED else [rank]
        return RingPlace(tuple(order), tuple(crew))
    workers = [[r for r in node if r < plan.world] for node in nodes]
    if architecture == SERVED:
        return _served(plan, nodes, rank)
    depots = tuple(range(plan.world, size))
    if rank in depots:
        leaders = tuple(sorted(node[0] for node in workers if node))
        return RingPlace((), (rank,), depots=depots, clients=leaders, owns=rank - plan.world)
    return RingPlace(tuple(next(node for node in workers if rank in node)), (rank,), depots=depots)


def ring_order(groups: Nodes, size: int) -> list[int]:
    """The ranks as the tokens visit them: those of a node one after the other, so that each border is crossed once."""
    return [rank for group in groups for rank in group] or list(range(size))


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _served(plan: Plan, nodes: Nodes, rank: int) -> RingPlace:
    """The place of a member where servers make the updates: workers use the server of their node with the fewest
    workers; where there is none, of all servers."""
    servers = [r for node in nodes for r in node if r >= plan.world]
    crews: dict[int, list[int]] = {server: [] for server in servers}
    lonely = [node for node in nodes if not any(r >= plan.world for r in node)]
    # Nodes without a server last: their workers even out what the others have chosen.
    for node in [*(n for n in nodes if n not in lonely), *lonely]:
        near = [r for r in node if r >= plan.world] or servers
        for worker in (r for r in node if r < plan.world):
            crews[min(near, key=lambda s: (len(crews[s]), s))].append(worker)
    server = rank if rank in crews else next(s for s, crew in crews.items() if rank in crew)
    ring = tuple(servers) if rank == server else ()
    return RingPlace(ring, (server, *sorted(crews[server])), serves=True)
