"""The input of a pass of the scheduler, and the decisions it may make."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

from ringleader.wire.views import Why
from ringleader_api.scheduling.needs import NodeShape, WorkerNeed, count_of

Apart = tuple[WorkerNeed, int]
"""A number of servers of that shape."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A job that holds workers or wants them. Only the first four attributes hold for every job.

    Attributes:
        floor: workers it cannot start without.
        holds: for an admitted job the workers it has or may grow to; for a queued one `workers.max`.
        servers: the servers that the gang needs beside the workers.
        server_need: the resources of each server; None: those of a worker.
        waited_s: for how long it has been queued.
        elastic: it may be given fewer than it wants, down to the floor, and told so while it runs.
        granted: what an admitted job has been told it may have; below `holds` while it still lets go. None: `holds`.
        wants: `workers.max` of an admitted job. None: what it is granted.
        grows: nodes may be asked for the workers that it wants besides.
        evictable: it can be taken off the cluster with a checkpoint, and queued again.
        ran_s: since the attempt of an admitted job began.
        overtook: it was let past a head of which nobody knew when it can start, and makes room for those waiting then.
        settled_s: since what it is granted was last changed.
        ends_in_s: when it will have let go of everything at the latest; for a queued job from its start on. None:
            nobody knows.
        placed: where the workers and servers of an admitted job have their places: (id of the node, how many), those
            that it lets go of first come last. What it holds besides has no place yet. None: nobody knows, so it is
            taken to be where first fit puts it. Servers of a shape of their own are in `servers_placed` instead.
    """

    job_id: str
    need: WorkerNeed
    floor: int
    holds: int
    servers: int = 0
    server_need: WorkerNeed | None = None
    project: str = "default"
    priority: int = 0
    waited_s: float = 0.0
    elastic: bool = False
    granted: int | None = None
    wants: int | None = None
    grows: bool = False
    evictable: bool = False
    ran_s: float = 0.0
    overtook: bool = False
    settled_s: float = inf
    ends_in_s: float | None = None
    # Outside the hash: claims are keys, and a list has none.
    placed: Sequence[tuple[str, int]] | None = field(default=None, hash=False)
    servers_placed: Sequence[tuple[str, int]] | None = field(default=None, hash=False)

    @property
    def apart(self) -> Apart | None:
        """The servers, where they have a shape of their own: they come and go with the whole job."""
        if not self.servers or self.server_need in (None, self.need):
            return None
        assert self.server_need is not None
        return self.server_need, self.servers

    @property
    def alike(self) -> int:
        """The number of servers that are as big as a worker: their places are among the workers'."""
        return 0 if self.servers and self.apart else self.servers

    @property
    def gang(self) -> int:
        """The workers, and the servers of the same size, that are placed at once or not at all, together with
        `apart`."""
        return self.floor + self.alike if self.servers else self.floor

    @property
    def least(self) -> int:
        """The most it may come to hold without being asked again, beside `apart`."""
        return self.gang if self.elastic else self.holds + self.alike

    @property
    def told(self) -> int:
        return self.holds if self.granted is None else self.granted

    @property
    def surplus(self) -> int:
        """The workers that it can be asked to give back without ending it."""
        return max(0, self.told - self.floor) if self.elastic else 0

    @property
    def headroom(self) -> int:
        """The workers that it would take on besides."""
        return max(0, (self.told if self.wants is None else self.wants) - self.told) if self.elastic else 0


@dataclass(frozen=True, slots=True)
class ProjectShare:
    """The project's due: its weight against the others, and its quotas (None: no limit)."""

    weight: float = 1.0
    workers: int | None = None
    cpus: float | None = None
    gpus: float | None = None


@dataclass(frozen=True, slots=True)
class SchedulerRules:
    """Times of the scheduler, in seconds.

    Attributes:
        age_s: waiting so long is worth one level of priority, up to the highest that anybody waits with.
        patience_s: after this a job whose project has less than its fair share goes before all others.
        settle_s: a job is not given more, nor asked for more for fairness' sake, sooner after its last change.
        min_run_s: an attempt is not evicted before.
        hold_s: a head of which nobody knows when it can start is overtaken once it has waited so long.
    """

    age_s: float = 600.0
    patience_s: float = 3600.0
    settle_s: float = 30.0
    min_run_s: float = 300.0
    hold_s: float = 600.0


@dataclass(frozen=True, slots=True)
class Reach:
    """The size to which the cluster may grow, all its nodes together."""

    cpus: float
    gpus: float

    def __str__(self) -> str:
        return f"{count_of(self.cpus, 'CPU')} and {count_of(self.gpus, 'GPU')}"


Demand = Mapping[WorkerNeed, int]
"""The number of workers of each shape for which the cluster has to have room."""


@dataclass(frozen=True, slots=True)
class Seen:
    """The cluster as of the last look.

    Attributes:
        nodes: with what they have in total.
        others: resources used by others than jobs, by the id of the node.
        places: of each (job id, attempt) the nodes of its members: (id, how many), what is let go of first comes last.
            None: nobody knows.
        servers: the same of its servers, where they are of a shape of their own.
        busy: ids of jobs of which an attempt lives.
        reach: the size the cluster may grow to; None: it does not grow.
        missing: shapes of worker whose nodes have not come, with the reason as far as it is known.
        trouble: the autoscaler's message about nodes that it could not start.
        addresses: of the nodes, by their ids.
    """

    nodes: Sequence[NodeShape] = ()
    others: Mapping[str, WorkerNeed] = field(default_factory=dict)
    places: Mapping[tuple[str, int], Sequence[tuple[str, int]]] | None = None
    servers: Mapping[tuple[str, int], Sequence[tuple[str, int]]] = field(default_factory=dict)
    busy: Collection[str] = ()
    reach: Reach | None = None
    missing: Mapping[WorkerNeed, str] = field(default_factory=dict)
    trouble: str = ""
    addresses: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ClusterSnapshot:
    """The cluster's nodes (totals), the admitted jobs, and the queue in order of submission.

    Attributes:
        others, reach, missing: as in `Seen`.
    """

    nodes: Sequence[NodeShape]
    admitted: Sequence[Claim]
    queued: Sequence[Claim]
    projects: Mapping[str, ProjectShare] = field(default_factory=dict)
    rules: SchedulerRules = SchedulerRules()
    others: Mapping[str, WorkerNeed] = field(default_factory=dict)
    reach: Reach | None = None
    missing: Mapping[WorkerNeed, str] = field(default_factory=dict)

    def trouble(self, claim: Claim) -> str | None:
        """The reason why nodes for some part of a job have not come; empty where none is known, None where they were
        not asked for in vain."""
        if not self.missing:
            return None
        shapes = [claim.need, *([claim.apart[0]] if claim.apart else [])]
        return next((self.missing[need] for need in shapes if need in self.missing), None)


@dataclass(frozen=True, slots=True)
class Admit:
    """Start this job now, with up to so many workers (None: as many as it wants). A job that `overtakes` makes room
    again for those that wait before it."""

    job_id: str
    workers: int | None = None
    overtakes: bool = False


@dataclass(frozen=True, slots=True)
class Hold:
    """Keep this job queued, for this reason."""

    job_id: str
    why: Why


@dataclass(frozen=True, slots=True)
class Grant:
    """Let this admitted job have up to so many workers: more than before, or fewer."""

    job_id: str
    workers: int


@dataclass(frozen=True, slots=True)
class EvictJob:
    """Make this admitted job save a checkpoint, release its places and wait again."""

    job_id: str
    why: Why


Decision = Admit | Hold | Grant | EvictJob
