"""The plan of one generation: who belongs, who owns which shard, where to start and who heals from whom."""

from dataclasses import dataclass, field

from ringleader.elastic.parts import holders


@dataclass(frozen=True, slots=True)
class Meeting:
    """The rendezvous of a generation's members, and the secret by which each knows that the others are members.

    Attributes:
        address: "host:port" of the rendezvous store.
        secret: the attempt's. Whoever has it is a member: it goes to members alone, and is written nowhere else.
        near: whether all of them are on one node.
        torch_store: "host:port" of the store at which the processes of a hosted program meet, of this generation alone.
    """

    address: str = ""
    secret: bytes = field(default=b"", repr=False)
    near: bool = False
    torch_store: str = ""


NOWHERE = Meeting()
"""No meeting: its address is not known yet, or there is nobody to meet."""


@dataclass(frozen=True, slots=True)
class Plan:
    """One agreed membership of an attempt, handed to every member by the supervisor.

    Attributes:
        attempt: the number of this start of the job; fences off leftovers of the one before.
        generation: grows by one with each plan of the attempt.
        members: worker ids in rank order; servers stand behind the workers.
        servers: the number of parameter servers among the members, the last ones (own no shard, each holds a part of
            the parameters and of the optimizer's state).
        shards: the number of logical shards L.
        start_transaction: transactions (steps and evaluations) applied by the member that is furthest; one that has
            fewer heals.
        heals: (receiver, donor) worker ids; a receiver takes the donor's whole committed state first.
        recorded_step: metrics and ledger rows of all steps below this are stored; rank 0 reports from here.
        meeting: the rendezvous of its members.
        cause: what made this generation, in the words of `generation.formed`: start, lost, join, resize, drain; pause
            and short: its members save what they hold and park again.
        parts: the number of parts of the servers' state, for the job's life; 0: as many as there are servers.
        backups: the number of servers that hold a part beside the one that owns it.
        slots: the number of each server's own part, in rank order; empty: 0, 1, ...
        start: the start of the supervisor that made it; a worker that knows a later one refuses it.
    """

    attempt: int
    generation: int
    members: tuple[str, ...]
    servers: int
    shards: int
    start_transaction: int
    heals: tuple[tuple[str, str], ...]
    recorded_step: int
    meeting: Meeting
    cause: str
    parts: int = 0
    backups: int = 0
    slots: tuple[int, ...] = ()
    start: int = 1

    @property
    def held_by(self) -> tuple[tuple[int, ...], ...]:
        """The servers that hold each part, by part, counted among the servers, first the one that publishes it."""
        return holders(self.slots or range(self.servers), self.parts or self.servers, self.backups)

    @property
    def world(self) -> int:
        """Workers that own shards, servers not counted."""
        return len(self.members) - self.servers

    def rank_of(self, worker: str) -> int:
        return self.members.index(worker)

    def shards_of(self, rank: int) -> range:
        """The contiguous logical shards that `rank` owns; empty for a server."""
        return owned(rank, self.world, self.shards)


def owned(rank: int, world: int, shards: int) -> range:
    """Balanced contiguous ownership: rank r of n owns [r*L//n, (r+1)*L//n)."""
    if rank >= world:
        return range(shards, shards)
    return range(rank * shards // world, (rank + 1) * shards // world)
