"""/jobs/{id}/metrics, /system, /workers, /checkpoints, /artifacts, /report, /tensorboard."""

from typing import Annotated

from fastapi import APIRouter, Depends, Query
from fastapi.responses import FileResponse, HTMLResponse, Response, StreamingResponse

from ringleader.wire.artifacts import report_name
from ringleader.wire.system import SystemHistory
from ringleader_api.reports.tensorboard import event_file
from ringleader_api.routes.bodies.fields import (
    Cursor,
    Fields,
    Limit,
    PartialPage,
    fields_of,
    interval_of,
    page_as_json,
)
from ringleader_api.routes.bodies.files import report_file, saved_as
from ringleader_api.routes.bodies.streamed import StreamedBody, in_turn
from ringleader_api.routes.dependencies import ByReader, Here, refusals
from ringleader_api.services.jobs.checkpoints import CheckpointPage, checkpoints
from ringleader_api.services.jobs.views import WorkerPage, workers
from ringleader_api.services.records.artifacts import Artifact, ArtifactPage
from ringleader_api.services.records.metrics import Interval, MetricCurve, MetricNames
from ringleader_api.services.records.system import system_history

router = APIRouter(prefix="/jobs/{job_id}", tags=["details"])

Finite = Annotated[float | None, Query(allow_inf_nan=False)]


@router.get("/metrics", responses=refusals(404, 422), summary="Read metrics")
def metrics(
    *,
    here: Here,
    _: ByReader,
    job_id: str,
    name: Annotated[str | None, Query(min_length=1, max_length=250)] = None,
    interval: Annotated[Interval, Depends(interval_of)],
    max_points: Annotated[int, Query(ge=4, le=20_000)] = 2000,
) -> MetricCurve | MetricNames:
    """Read one metric by step, thinned so that peaks and dips stay; without a name, list the names of all metrics."""
    if name is None:
        return here.curves.names(job_id)
    return here.curves.curve(job_id, name, interval, max_points)


@router.get("/system", responses=refusals(404, 422), summary="Read system metrics")
def system(
    *,
    here: Here,
    _: ByReader,
    job_id: str,
    first: Annotated[Finite, Query(alias="from", description="Unix seconds.")] = None,
    last: Annotated[Finite, Query(alias="to", description="Unix seconds.")] = None,
    max_points: Annotated[int, Query(ge=4, le=20_000, description="Of each worker and node.")] = 500,
) -> SystemHistory:
    """Read what the job's workers and their nodes used, every five seconds; what is old is taken together over longer
    times. Of very many workers fewer points come."""
    return system_history(here.store, job_id, first, last, max_points)


@router.get("/workers", responses=refusals(404), summary="List workers")
def list_workers(here: Here, _: ByReader, job_id: str) -> WorkerPage:
    """List the job's current workers and servers."""
    return workers(here.store, job_id)


@router.get("/checkpoints", responses=refusals(404), summary="List checkpoints")
def list_checkpoints(here: Here, _: ByReader, job_id: str) -> CheckpointPage:
    """List the checkpoints that a later attempt can start from."""
    return checkpoints(here.store, job_id)


@router.get(
    "/checkpoints/{name}/weights",
    response_class=Response,
    responses=refusals(404, 409),
    summary="Export the weights of a checkpoint",
)
def export_checkpoint(here: Here, _: ByReader, job_id: str, name: str) -> Response:
    """Export the weights of a checkpoint, or of the `newest`, as a safetensors file."""
    export = here.exports.begin(job_id, name)
    # A job has a checkpoint of that name, so it is a plain one.
    headers = {"Content-Length": str(export.size_bytes), **saved_as(f"{job_id}-{name}.safetensors")}
    return StreamedBody(export.chunks(), export.end, media_type="application/octet-stream", headers=headers)


@router.get(
    "/artifacts",
    response_model=ArtifactPage | PartialPage,
    responses=refusals(404, 422),
    summary="List artifacts",
)
def list_artifacts(
    *,
    here: Here,
    _: ByReader,
    job_id: str,
    fields: Annotated[Fields, Depends(fields_of(Artifact, "an artifact"))],
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Response:
    """List the files that the job has written, by name."""
    return page_as_json(here.artifacts.page(job_id, limit, cursor), fields)


@router.get(
    "/artifacts/{name}", response_class=FileResponse, responses=refusals(404), summary="Download an artifact"
)
def read_artifact(here: Here, _: ByReader, job_id: str, name: str) -> FileResponse:
    """Download one artifact."""
    path = here.artifacts.path(job_id, name)
    return FileResponse(path, media_type="application/octet-stream", filename=path.name)


@router.get("/report", response_class=HTMLResponse, responses=refusals(404, 422), summary="Report on a job")
def report(
    here: Here, _: ByReader, job_id: str, interval: Annotated[Interval, Depends(interval_of)]
) -> Response:
    """Download the job as one HTML file, which needs no other and runs no script: its outcome, its curves and last
    values, its members, losses and recoveries, its job file. The curves are drawn by `axis`, from `from` to `to`."""
    return report_file(here.reports.of_job(job_id, interval), report_name([job_id]))


@router.get(
    "/tensorboard",
    response_class=StreamingResponse,
    responses=refusals(404),
    summary="Export metrics for TensorBoard",
)
def tensorboard(here: Here, _: ByReader, job_id: str) -> Response:
    """Download the job's metrics as an event file of TensorBoard: the value of each settled step once, with the time at
    which it was measured. Values are in single precision."""
    found = event_file(here.store, job_id)
    return StreamingResponse(
        in_turn(found.chunks(), here.exporting),
        media_type="application/octet-stream",
        headers=saved_as(found.name),
    )
