"""/jobs: submit, list, read, resize, pause, resume, cancel, delete."""

import re
from typing import Annotated, Any

from fastapi import APIRouter, Body, Depends, Header, Query, Response
from pydantic import BaseModel, ConfigDict, Field

from ringleader.spec.job import NAME
from ringleader.wire.faults import FaultOrder, FaultView
from ringleader.wire.states import State
from ringleader.wire.views import JobPage, JobView
from ringleader_api.log import about
from ringleader_api.problems import Unprocessable
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
from ringleader_api.routes.dependencies import (
    ByBreaker,
    ByCaller,
    ByReader,
    BySteerer,
    BySubmitter,
    Here,
    refusals,
)
from ringleader_api.services.jobs.changes import Filter
from ringleader_api.services.jobs.submission import Preview
from ringleader_api.store import audit

LABELS = 20
"""The most labels that a list may be filtered by: a database nests its conditions."""
router = APIRouter(prefix="/jobs", tags=["jobs"], route_class=RightsFirst)

JOB_FILE: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/JobSpec"}}},
    }
}
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


async def _filter(
    state: State | None = None,
    project: str | None = None,
    name: str | None = None,
    label: Annotated[
        list[str] | None,
        Query(max_length=LABELS, description="A label as key=value; a job must match all that are given."),
    ] = None,
) -> Filter:
    pairs = [text.partition("=") for text in label or []]
    if bad := [key for key, sign, _ in pairs if not sign or not re.fullmatch(NAME, key)]:
        raise Unprocessable(f"the label filter {bad[0]!r} is not key=value.", code="bad_label")
    return Filter(state=state, project=project, name=name, labels=[(k, v) for k, _, v in pairs])


@router.post(
    "",
    status_code=201,
    response_model=JobView | Preview,
    dependencies=[AsJson],
    openapi_extra=JOB_FILE,
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
    which: Annotated[Filter, Depends(_filter)],
    fields: Annotated[Fields, Depends(selected)],
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Response:
    """List jobs, newest first."""
    return page_as_json(here.jobs.page(which, limit, cursor, visible(who)), fields)


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
    """Change `workers.min`, `workers.max` or `priority`; the change takes effect between two steps."""
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
