"""/sweeps: make, list, read, pause, resume, cancel."""

from typing import Annotated, Any

from fastapi import APIRouter, Body, Depends, Header, Response

from ringleader.wire.sweeps import SweepPage, SweepPreview, SweepView, TrialPage
from ringleader_api.rights import visible
from ringleader_api.routes.bodies.bodies import AsJson, RightsFirst
from ringleader_api.routes.bodies.fields import (
    Cursor,
    Fields,
    Limit,
    PartialPage,
    as_json,
    fields_of,
    page_as_json,
)
from ringleader_api.routes.dependencies import ByCaller, BySubmitter, Here, body_of, refusals
from ringleader_api.store import audit

router = APIRouter(prefix="/sweeps", tags=["sweeps"], route_class=RightsFirst)


@router.post(
    "",
    status_code=201,
    response_model=SweepView | SweepPreview,
    dependencies=[AsJson],
    openapi_extra=body_of("SweepSpec"),
    responses={
        200: {"description": "A repeated request for the same sweep, or a dry run."},
        **refusals(404, 409, 415, 422),
    },
    summary="Make a sweep",
)
def make_sweep(
    *,
    here: Here,
    who: BySubmitter,
    body: Annotated[Any, Body()],
    dry_run: bool = False,
    idempotency_key: Annotated[str | None, Header()] = None,
) -> Response:
    """Make a sweep. Its first trial is checked as a submitted job is; once the answer is 201, the sweep is stored and
    its trials will be submitted."""
    seen = here.reconciler.seen
    if dry_run:
        preview = here.sweeps.preview(who, body, seen)
        audit.changes_nothing()
        return as_json(preview, None)
    view, new = here.sweeps.create(who, body, idempotency_key, seen)
    here.reconciler.wake()
    headers = {"Location": f"/api/v1/sweeps/{view.id}"}
    return as_json(view, None, headers, status=201 if new else 200)


@router.get("", response_model=SweepPage | PartialPage, responses=refusals(422), summary="List sweeps")
def list_sweeps(
    *,
    here: Here,
    who: ByCaller,
    fields: Annotated[Fields, Depends(fields_of(SweepView, "a sweep"))],
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Response:
    """List sweeps, newest first."""
    return page_as_json(here.sweeps.page(limit, cursor, visible(who)), fields)


@router.get("/{sweep_id}", responses=refusals(404), summary="Read a sweep")
def read_sweep(here: Here, who: ByCaller, sweep_id: str) -> SweepView:
    """Read one sweep."""
    return here.sweeps.view(who, sweep_id)


@router.get("/{sweep_id}/trials", responses=refusals(404), summary="List a sweep's trials")
def list_trials(here: Here, who: ByCaller, sweep_id: str) -> TrialPage:
    """List all trials of a sweep, by number."""
    return here.sweeps.trials(who, sweep_id)


@router.post("/{sweep_id}/cancel", status_code=202, responses=refusals(404, 409), summary="Cancel a sweep")
def cancel_sweep(here: Here, who: ByCaller, sweep_id: str) -> SweepView:
    """Cancel the sweep and its jobs. Repeating the request changes nothing."""
    view = here.sweeps.cancel(who, sweep_id)
    here.reconciler.wake()
    return view


@router.post("/{sweep_id}/pause", status_code=202, responses=refusals(404, 409), summary="Pause a sweep")
def pause_sweep(here: Here, who: ByCaller, sweep_id: str) -> SweepView:
    """Pause the sweep: its jobs at work are paused, and no others are submitted."""
    view = here.sweeps.pause(who, sweep_id)
    here.reconciler.wake()
    return view


@router.post("/{sweep_id}/resume", status_code=202, responses=refusals(404, 409), summary="Resume a sweep")
def resume_sweep(here: Here, who: ByCaller, sweep_id: str) -> SweepView:
    """Resume a paused sweep."""
    view = here.sweeps.resume(who, sweep_id)
    here.reconciler.wake()
    return view
