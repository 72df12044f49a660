"""/cluster and /version: the nodes to run on, who takes what of them, and the version that runs them."""

import platform
from datetime import timedelta
from typing import Annotated

from anyio import to_thread
from fastapi import APIRouter, Query

from ringleader import __version__
from ringleader.wire.occupancy import OccupancyView, UsageHistory
from ringleader.wire.views import View
from ringleader_api.rights import visible
from ringleader_api.routes.dependencies import ByCaller, Here, refusals
from ringleader_api.services.history import usage_history
from ringleader_api.services.occupancy import Look

router = APIRouter(tags=["cluster"])


class NodeView(View):
    """A node's total resources."""

    id: str
    cpus: float
    gpus: float
    memory_gb: float


class ClusterView(View):
    """The cluster as last seen; `trouble` is the reason why it is out of reach."""

    reachable: bool
    trouble: str
    nodes: list[NodeView]
    cpus: float
    gpus: float
    memory_gb: float


class VersionView(View):
    """The versions of the control plane, its API and Python."""

    version: str
    api: str
    python: str


@router.get("/cluster", responses=refusals(), summary="List nodes")
def cluster(here: Here, _: ByCaller) -> ClusterView:
    """List the nodes and their resources."""
    seen = here.reconciler.seen
    nodes = [
        NodeView(id=n.id, cpus=n.cpus, gpus=n.gpus, memory_gb=n.memory_gb)
        for n in (seen.nodes if seen is not None else ())
    ]
    return ClusterView(
        reachable=seen is not None,
        trouble=here.reconciler.trouble,
        nodes=nodes,
        cpus=sum(n.cpus for n in nodes),
        gpus=sum(n.gpus for n in nodes),
        memory_gb=sum(n.memory_gb for n in nodes),
    )


@router.get("/cluster/occupancy", responses=refusals(), summary="Show who takes what")
async def occupancy(here: Here, who: ByCaller) -> OccupancyView:
    """Show nodes with the jobs on them, the queue in its order, what the autoscaler was asked for, and what projects
    hold of their quotas. Jobs of projects that the caller may not read are there without their names."""
    loop = here.reconciler
    # Awaited, not in a thread: a pass over a long queue takes a while, and those who wait would hold all threads.
    async with here.looking:
        look = Look(loop.seen, loop.asked, loop.trouble)
        return await to_thread.run_sync(here.occupancy.view, look, visible(who))


@router.get("/cluster/history", responses=refusals(422), summary="Show the cluster's last days")
def history(here: Here, _: ByCaller, hours: Annotated[int, Query(ge=1, le=168)] = 24) -> UsageHistory:
    """Show, minute by minute, what the cluster had and what jobs held of it; it is kept for seven days."""
    return usage_history(here.store, here.now() - timedelta(hours=hours))


@router.get("/version", responses=refusals(), summary="Show versions")
def version(_: ByCaller) -> VersionView:
    """Show the versions of the control plane, its API and Python."""
    return VersionView(version=__version__, api="v1", python=platform.python_version())
