"""/cluster and /version: what there is to run on, and what is running it."""

import platform

from fastapi import APIRouter

from ringleader import __version__
from ringleader.wire.views import View
from ringleader_api.routes.dependencies import ByCaller, Here, refusals

router = APIRouter(tags=["cluster"])


class NodeView(View):
    """What a node has in total."""

    id: str
    cpus: float
    gpus: float
    memory_gb: float


class ClusterView(View):
    """The cluster as last seen; `trouble` says why it is out of reach."""

    reachable: bool
    trouble: str
    nodes: list[NodeView]
    cpus: float
    gpus: float
    memory_gb: float


class VersionView(View):
    """Versions."""

    version: str
    api: str
    python: str


@router.get("/cluster", responses=refusals())
def cluster(here: Here, _: ByCaller) -> ClusterView:
    """Nodes and their resources."""
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


@router.get("/version", responses=refusals())
def version(_: ByCaller) -> VersionView:
    """Which Ringleader this is."""
    return VersionView(version=__version__, api="v1", python=platform.python_version())
