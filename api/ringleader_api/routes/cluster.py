"""/cluster and /version: the nodes to run on, and the version that runs them."""

import platform

from fastapi import APIRouter

from ringleader import __version__
from ringleader.wire.views import View
from ringleader_api.routes.dependencies import ByCaller, Here, refusals

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


@router.get("/version", responses=refusals(), summary="Show versions")
def version(_: ByCaller) -> VersionView:
    """Show the versions of the control plane, its API and Python."""
    return VersionView(version=__version__, api="v1", python=platform.python_version())
