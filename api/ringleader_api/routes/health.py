"""/healthz, /readyz, /metrics: probes and metrics for monitoring."""

from fastapi import APIRouter, Response

from ringleader.wire.views import View
from ringleader_api.routes.dependencies import ByWatcher, Here

router = APIRouter(tags=["health"])


class Health(View):
    """Whether the process can do its work, and the reasons why not."""

    ok: bool
    trouble: list[str] = []


@router.get("/healthz", summary="Check that the process is alive")
async def healthz() -> Health:
    """Report that the process is alive."""
    return Health(ok=True)


@router.get("/readyz", responses={503: {"model": Health}}, summary="Check that the control plane is ready")
def readyz(here: Here, _: ByWatcher, response: Response) -> Health:
    """Report whether database, reconciler and cluster are working; 503 with the reasons if not."""
    trouble = here.not_ready()
    response.status_code = 503 if trouble else 200
    return Health(ok=not trouble, trouble=trouble)


@router.get("/metrics", response_class=Response, summary="Export Prometheus metrics")
def prometheus(here: Here, _: ByWatcher) -> Response:
    """Export the control plane's metrics in Prometheus's text format."""
    return Response(here.telemetry.text(), media_type="text/plain; version=0.0.4; charset=utf-8")
