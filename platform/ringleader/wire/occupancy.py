"""The API's shapes of who takes what of the cluster: nodes, the queue, the autoscaler, projects, the last days."""

from datetime import datetime

from ringleader.wire.access import Held, Quota
from ringleader.wire.views import View, Why


class Resources(View):
    """An amount of resources."""

    cpus: float = 0.0
    gpus: float = 0.0
    memory_gb: float = 0.0


class JobOnNode(Resources):
    """A job's part of a node. `job`, `name` and `project` are null for a job of a project that the caller may not read.

    Attributes:
        places: those of workers, and of servers that are as big as these.
        servers: servers of a shape of their own.
        members: the ids of the workers and servers there, as far as they have reported.
    """

    job: str | None
    name: str | None
    project: str | None
    places: int
    servers: int
    members: list[str]


class OccupiedNode(Resources):
    """A node: its resources, what others than jobs use of it, and what jobs take.

    Attributes:
        address: its IP address; empty where nobody knows it.
    """

    id: str
    address: str = ""
    others: Resources
    jobs: list[JobOnNode]


class WaitingJob(View):
    """A job in the queue. Only `place` is told of a job that the caller may not read.

    Attributes:
        place: 1 is served first.
        workers: those without which it cannot start.
        starts_by: when it starts at the latest, unless jobs come before it; null where nobody knows.
    """

    place: int
    job: str | None = None
    name: str | None = None
    project: str | None = None
    workers: int | None = None
    since: datetime | None = None
    why: Why | None = None
    starts_by: datetime | None = None


class AskedFor(Resources):
    """A number of workers of one shape. `why`: the reason why their nodes have not come, as far as it is known."""

    workers: int | None = None
    why: str = ""


class Growing(View):
    """The autoscaler: the size that the cluster may grow to, what it was asked for, and what it could not provide.

    Attributes:
        asked: null where another control plane asks.
        trouble: what the autoscaler says about nodes that it could not start.
    """

    reach_cpus: float
    reach_gpus: float
    asked: list[AskedFor] | None
    missing: list[AskedFor]
    trouble: str


class ProjectUse(View):
    """The resources that the jobs of a project hold, beside its quota."""

    name: str
    quota: Quota
    held: Held


class OccupancyView(View):
    """The cluster and who takes what of it. `waiting` counts the whole queue, of which the first 200 jobs are told of;
    `growing` is null where the cluster does not grow."""

    reachable: bool
    trouble: str
    nodes: list[OccupiedNode]
    queue: list[WaitingJob]
    waiting: int
    projects: list[ProjectUse]
    growing: Growing | None


class UsageHistory(View):
    """The cluster minute by minute, by columns: what there was, and what jobs held of it. Minutes in which no control
    plane saw the cluster are left out."""

    at: list[datetime]
    nodes: list[int]
    cpus: list[float]
    gpus: list[float]
    held_cpus: list[float]
    held_gpus: list[float]
    jobs: list[int]
    waiting: list[int]
