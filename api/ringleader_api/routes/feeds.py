"""/jobs/{id}/events and /logs: JSON pages, or a stream where the client accepts one."""

from functools import partial
from typing import Annotated, Any, Literal

from anyio import to_thread
from fastapi import APIRouter, Query, Request, Response

from ringleader_api.routes.dependencies import ByReader, Here, refusals
from ringleader_api.routes.streams.follow import stream, wants_stream
from ringleader_api.services.records.feeds import ALL, EventPage, LogPage, Wanted

router = APIRouter(prefix="/jobs/{job_id}", tags=["feeds"])

After = Annotated[int, Query(ge=0, le=(1 << 63) - 1, description="Return only items with a larger number.")]
Limit = Annotated[int, Query(ge=1, le=1000)]
STREAMED: dict[int | str, dict[str, Any]] = {
    200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}},
    204: {"description": "The job has ended, and the resumed stream has nothing left to send."},
    **refusals(404, 422),
}


@router.get("/events", response_model=EventPage, responses=STREAMED, summary="List or stream events")
async def events(
    request: Request, here: Here, _: ByReader, job_id: str, after: After = 0, limit: Limit = 200
) -> EventPage | Response:
    """List the job's events, or stream them."""
    if wants_stream(request):
        return await stream(request, here, job_id, after, here.feeds.events)
    return await to_thread.run_sync(here.feeds.event_page, job_id, after, limit)


@router.get("/logs", response_model=LogPage, responses=STREAMED, summary="List or stream log lines")
async def logs(
    *,
    request: Request,
    here: Here,
    _: ByReader,
    job_id: str,
    after: After = 0,
    limit: Limit = 200,
    worker: Annotated[
        str | None,
        Query(max_length=200, description="Return only lines of this worker, or of the `supervisor`."),
    ] = None,
    level: Literal["info", "error"] | None = None,
    text: Annotated[
        str | None, Query(max_length=200, description="Return only lines that contain this text.")
    ] = None,
) -> LogPage | Response:
    """List or stream the lines that the job's workers and supervisor print; filters select some of them."""
    wanted = Wanted(worker, level, text)
    if wants_stream(request):
        if wanted == ALL:
            return await stream(request, here, job_id, after, here.feeds.logs)
        read = partial(here.feeds.logs, wanted=wanted)
        return await stream(request, here, job_id, after, read, filtered=True)
    return await to_thread.run_sync(here.feeds.log_page, job_id, after, limit, wanted)
