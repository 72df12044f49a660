"""/jobs: submit, list, read, resize, pause, resume, cancel, delete."""

from typing import Annotated, Any

from fastapi import APIRouter, Body, Depends, Header, Response
from pydantic import BaseModel, ConfigDict, Field

from ringleader.wire.faults import FaultOrder, FaultView
from ringleader.wire.views import Facets, JobGroups, JobPage, JobView
from ringleader_api.log import about
from ringleader_api.rights import visible
from ringleader_api.routes.bodies.bodies import AsJson, RightsFirst
from ringleader_api.routes.bodies.fields import (
    Cursor,
    Fields,
    Limit,
    Partial,
    PartialPage,
    as_json,
    page_as_json,
    selected,
)
from ringleader_api.routes.bodies.listing import filtered, grouped_by, metrics_named, sorted_by
from ringleader_api.routes.dependencies import (
    ByBreaker,
    ByCaller,
    ByReader,
    BySteerer,
    BySubmitter,
    Here,
    body_of,
    refusals,
)
from ringleader_api.services.jobs.groups import Grouping
from ringleader_api.services.jobs.listing import Filter
from ringleader_api.services.jobs.sorting import Sort
from ringleader_api.services.jobs.submission import Preview
from ringleader_api.store import audit

router = APIRouter(prefix="/jobs", tags=["jobs"], route_class=RightsFirst)

PATCH: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "application/merge-patch+json": {
                "schema": {
                    "type": "object",
                    "additionalProperties": False,
                    "properties": {
                        "workers": {
                            "type": "object",
                            "additionalProperties": False,
                            "properties": {"min": {"type": "integer"}, "max": {"type": "integer"}},
                        },
                        "priority": {"type": "integer"},
                        "labels": {
                            "type": "object",
                            "additionalProperties": {"type": ["string", "null"]},
                        },
                    },
                }
            }
        },
    }
}


IfMatch = Annotated[
    str | None,
    Header(description="The ETag that the caller has seen; the answer is 412 if the job has changed since."),
]


class CancelBody(BaseModel):
    """The time, in seconds, that the job has to end by itself."""

    model_config = ConfigDict(extra="forbid")

    grace_s: Annotated[float, Field(strict=True, ge=0, le=3600)] | None = None


@router.post(
    "",
    status_code=201,
    response_model=JobView | Preview,
    dependencies=[AsJson],
    openapi_extra=body_of("JobSpec"),
    responses={
        200: {"description": "A repeated submission of the same job, or a dry run."},
        **refusals(404, 409, 415, 422),
    },
    summary="Submit a job",
)
def submit(
    *,
    here: Here,
    who: BySubmitter,
    body: Annotated[Any, Body()],
    dry_run: bool = False,
    idempotency_key: Annotated[str | None, Header()] = None,
) -> Response:
    """Submit a job. Once the answer is 201, the job is stored and will be started."""
    seen = here.reconciler.seen
    if dry_run:
        preview = here.submissions.preview(who, body, seen)
        audit.changes_nothing()
        return as_json(preview, None)
    began = here.now()
    accepted = here.submissions.accept(who, body, idempotency_key, seen)
    job_id, row = accepted.job_id, accepted.row
    about(job=job_id)
    if row is not None:
        here.telemetry.submissions.inc()
        here.traces.told(job_id, "POST /api/v1/jobs", began, here.now())
        # It is looked at now, and not with the next tick.
        here.reconciler.wake()
    view, tag = here.jobs.view(job_id) if row is None else here.jobs.shown(row)
    headers = {"Location": f"/api/v1/jobs/{job_id}", "ETag": tag}
    return as_json(view, None, headers, status=200 if row is None else 201)


@router.get("", response_model=JobPage | PartialPage, responses=refusals(422), summary="List jobs")
def list_jobs(
    *,
    here: Here,
    who: ByCaller,
    which: Annotated[Filter, Depends(filtered)],
    sort: Annotated[Sort, Depends(sorted_by)],
    metrics: Annotated[list[str], Depends(metrics_named)],
    fields: Annotated[Fields, Depends(selected)],
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Response:
    """List jobs, newest first or in another order. Jobs without the value that they are sorted by come last, and equal
    ones are sorted by id."""
    page = here.listing.page(which, limit, cursor, visible(who), sort=sort, metrics=metrics)
    # Metrics were named by themselves: nobody has to name the field that they are in as well.
    return page_as_json(page, fields | {"metrics"} if fields and metrics else fields)


@router.get("/facets", responses=refusals(422), summary="List what jobs can be filtered by")
def list_facets(here: Here, who: ByCaller, which: Annotated[Filter, Depends(filtered)]) -> Facets:
    """List the owners, projects, labels, parameters and metrics of the newest 1,000 jobs that match."""
    return here.listing.facets(which, visible(who))


@router.get("/groups", responses=refusals(422), summary="Group jobs")
def list_groups(
    here: Here,
    who: ByCaller,
    which: Annotated[Filter, Depends(filtered)],
    by: Annotated[Grouping, Depends(grouped_by)],
    metrics: Annotated[list[str], Depends(metrics_named)],
) -> JobGroups:
    """List the 200 greatest groups of jobs with an equal label or parameter, and the jobs that have none."""
    return here.listing.groups(which, by, metrics, visible(who))


@router.get("/{job_id}", response_model=JobView | Partial, responses=refusals(404, 422), summary="Read a job")
def read_job(here: Here, _: ByReader, job_id: str, fields: Annotated[Fields, Depends(selected)]) -> Response:
    """Read one job. Its ETag changes with its state and its bounds, but not with its progress."""
    view, tag = here.jobs.view(job_id)
    return as_json(view, fields, {"ETag": tag})


@router.patch(
    "/{job_id}",
    dependencies=[AsJson],
    openapi_extra=PATCH,
    responses=refusals(404, 409, 412, 415, 422),
    summary="Change a job",
)
def change_job(
    *,
    here: Here,
    who: BySteerer,
    job_id: str,
    response: Response,
    body: Annotated[Any, Body(media_type="application/merge-patch+json")],
    if_match: IfMatch = None,
) -> JobView:
    """Change `workers.min`, `workers.max` or `priority`, which takes effect between two steps, or `labels`, also of a
    job that has ended: each key sets a label, or removes it where its value is null."""
    view, response.headers["ETag"] = here.jobs.change(job_id, body, if_match, here.reconciler.seen, who)
    here.reconciler.wake()
    return view


@router.delete("/{job_id}", status_code=204, responses=refusals(404, 409, 412), summary="Delete a job")
def delete_job(here: Here, _: BySteerer, job_id: str, if_match: IfMatch = None) -> None:
    """Delete a job that has ended, with its files."""
    here.jobs.delete(job_id, if_match)
    here.reconciler.wake()


@router.post(
    "/{job_id}/cancel",
    status_code=202,
    responses=refusals(400, 404, 409, 412, 413, 422),
    summary="Cancel a job",
)
def cancel_job(
    *,
    here: Here,
    who: BySteerer,
    job_id: str,
    response: Response,
    body: CancelBody | None = None,
    if_match: IfMatch = None,
) -> JobView:
    """Cancel the job. Repeating the request while the job is ending changes nothing."""
    grace_s = body.grace_s if body else None
    view, response.headers["ETag"] = here.jobs.cancel(job_id, grace_s, who.name, if_match)
    here.reconciler.wake()
    return view


@router.post("/{job_id}/pause", status_code=202, responses=refusals(404, 409, 412), summary="Pause a job")
def pause_job(
    here: Here, who: BySteerer, job_id: str, response: Response, if_match: IfMatch = None
) -> JobView:
    """Pause the job: it saves a checkpoint after the current step and releases its resources."""
    view, response.headers["ETag"] = here.jobs.pause(job_id, who.name, if_match)
    here.reconciler.wake()
    return view


@router.post("/{job_id}/resume", status_code=202, responses=refusals(404, 409, 412), summary="Resume a job")
def resume_job(
    here: Here, who: BySteerer, job_id: str, response: Response, if_match: IfMatch = None
) -> JobView:
    """Resume a paused job: it is queued again, and its next attempt starts from the newest checkpoint."""
    view, response.headers["ETag"] = here.jobs.resume(job_id, who.name, if_match)
    here.reconciler.wake()
    return view


@router.post(
    "/{job_id}/faults",
    dependencies=[AsJson],
    responses=refusals(403, 404, 409, 415, 422),
    summary="Inject a fault",
)
def inject_fault(here: Here, who: ByBreaker, job_id: str, body: FaultOrder) -> FaultView:
    """Inject a fault into the running job, and report its effect. The answer is 403 unless the job file sets `debug:
    {faults: true}` or the control plane allows faults for all jobs."""
    return here.faults.inject(job_id, body, who.name)
