"""Server-sent events from a numbered feed: id = seq, resumed by Last-Event-ID, ended when all has been sent."""

import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from datetime import timedelta

from anyio import to_thread
from fastapi import Request, Response
from fastapi.responses import StreamingResponse

from ringleader_api.control import Control
from ringleader_api.edge.guard import AGAIN, PRINCIPAL
from ringleader_api.problems import Refused, TooMany
from ringleader_api.rights import Action, Caller
from ringleader_api.routes.channel import CHUNK, Item, Read, followed, spelt
from ringleader_api.services.access import permit_job

PING_S = 2.0
FULL_S = 5.0
ASK_AGAIN = timedelta(seconds=30)
PING = b": ping\n\n"


def wants_stream(request: Request) -> bool:
    return "text/event-stream" in request.headers.get("accept", "")


async def stream(request: Request, here: Control, job_id: str, after: int, read: Read[Item]) -> Response:
    """The answer: a stream, or 204 to a resumed one that has nothing left (which tells EventSource to stop).

    Raises:
        NotFound: before anything is sent.
        TooMany: the caller follows as much as one may.
    """
    who: Caller = request.scope[PRINCIPAL]
    name = who.name
    if here.streams[name] >= here.settings.streams_per_user:
        raise TooMany(FULL_S)
    resumed = request.headers.get("last-event-id", "")
    if resumed.isascii() and resumed.isdigit():
        after = int(resumed)
    ended = await to_thread.run_sync(here.feeds.ended, job_id)
    if ended and resumed and not await to_thread.run_sync(read, job_id, after, 1):
        return Response(status_code=204)
    return StreamingResponse(
        counted(here.streams, name, items(here, job_id, after, read, _still(request, here, job_id))),
        media_type="text/event-stream",
        headers={"X-Accel-Buffering": "no"},
    )


async def counted(open_now: Counter[str], name: str, feed: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The same feed, counted as one of the user's while it is open."""
    open_now[name] += 1
    try:
        async for chunk in feed:
            yield chunk
    finally:
        open_now[name] -= 1


async def items(
    here: Control, job_id: str, after: int, read: Read[Item], still: Callable[[], bool]
) -> AsyncIterator[bytes]:
    """Everything after `after`, then what comes, until the job has ended or `still` says no.

    Waits as long as the job lives.
    """
    pinged_at = time.monotonic()
    ask_at = here.now() + ASK_AGAIN
    async with followed(here, job_id, await _stored(job_id, after, read), read) as channel:
        while not here.leaving.is_set():
            if here.now() >= ask_at:
                if not await to_thread.run_sync(still):
                    return
                ask_at = here.now() + ASK_AGAIN
            if after < (base := channel.base):  # it began later, or has let go of that
                found = await to_thread.run_sync(read, job_id, after, CHUNK)
                after = (
                    found[-1].seq if found else base
                )  # which was stored before the look; a later one may not have been
                yield b"".join(map(spelt, found))
            elif chunk := channel.since(after):
                after, text = chunk
                yield text
            elif channel.over:
                return
            else:
                await channel.wait(PING_S)
                if time.monotonic() - pinged_at >= PING_S:
                    pinged_at = time.monotonic()
                    yield PING


async def _stored(job_id: str, after: int, read: Read[Item]) -> int:
    """`after` where something is stored from there on, else 0: others want what comes before a number to come."""
    if not after:
        return 0
    found = await to_thread.run_sync(read, job_id, after - 1, 1)
    return after if found else 0


def _still(request: Request, here: Control, job_id: str) -> Callable[[], bool]:
    """Whether whoever began to follow may still: tokens are revoked and roles taken while streams are open."""

    def still() -> bool:
        try:
            who = request.scope[AGAIN]()
            permit_job(here.store, who, Action.READ, job_id)
        except Refused:
            return False
        return True

    return still
