"""Server-sent events from a numbered feed: the id is the seq, resumed by Last-Event-ID, ended when all has been
sent."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from datetime import timedelta

from anyio import to_thread
from fastapi import Request, Response

from ringleader_api.control import Control
from ringleader_api.edge.guard import AGAIN, PRINCIPAL
from ringleader_api.problems import Refused
from ringleader_api.rights import Action, Caller
from ringleader_api.routes.bodies.streamed import StreamedBody
from ringleader_api.routes.streams.channel import Item, Read, followed
from ringleader_api.services.users.access import permit_job

PING_S = 2.0
ASK_AGAIN = timedelta(seconds=30)
PING = b": ping\n\n"
LONG_BYTES = 1 << 14
LAST_SEQ = (1 << 63) - 1


def wants_stream(request: Request) -> bool:
    return "text/event-stream" in request.headers.get("accept", "")


async def stream(
    request: Request, here: Control, job_id: str, after: int, read: Read[Item], *, filtered: bool = False
) -> Response:
    """The response: a stream, or 204 to a resumed one with nothing left (which tells EventSource to stop).

    Args:
        filtered: the items are chosen from those of the feed.

    Raises:
        NotFound: before anything is sent.
        TooMany: the caller follows as much as one may.
    """
    who: Caller = request.scope[PRINCIPAL]
    end = here.streams.begin(who.name, job_id, filtered=filtered)
    try:
        resumed = _last_seen(request)
        after = after if resumed is None else resumed
        level = resumed is not None and await to_thread.run_sync(_is_over, here, job_id, after, read)
    # Counted from the request on: whatever fails before the stream begins must count it off again.
    except BaseException:
        end()
        raise
    if level:
        end()
        return Response(status_code=204)
    return StreamedBody(
        items(here, job_id, after, read, _still(request, here, job_id)),
        end,
        media_type="text/event-stream",
        # nginx would else collect the stream before it passes any of it on.
        headers={"X-Accel-Buffering": "no"},
    )


def _is_over(here: Control, job_id: str, after: int, read: Read[Item]) -> bool:
    # Asked before the read: what the job wrote before it ended is then seen.
    return here.feeds.ended(job_id) and not read(job_id, after, 1)


def _last_seen(request: Request) -> int | None:
    """The number after which a resumed stream goes on; an id that we never gave counts as none."""
    told = request.headers.get("last-event-id", "")
    is_one = told.isascii() and told.isdigit() and len(told) <= len(str(LAST_SEQ))
    return int(told) if is_one and int(told) <= LAST_SEQ else None


async def items(
    here: Control,
    job_id: str,
    after: int,
    read: Read[Item],
    still: Callable[[], bool],
    *,
    ping_s: float = PING_S,
) -> AsyncIterator[bytes]:
    """All items after `after`, then new ones as they come, until the job has ended or `still` returns False.

    Waits as long as the job lives; sends a comment where nothing has come for `ping_s`.
    """
    pinged_at = time.monotonic()
    ask_at = here.now() + ASK_AGAIN
    async with followed(here, job_id, await _stored(here, job_id, after, read), read) as channel:
        while not here.leaving.is_set():
            # Every 30 seconds: a token may be revoked while its stream is open.
            if here.now() >= ask_at:
                if not await to_thread.run_sync(still):
                    return
                ask_at = here.now() + ASK_AGAIN
            if after < channel.base:  # it began later, or has let go of that
                after, text = await channel.older(after)
                if text:
                    await _in_turn(here, text)
                    yield text
            elif found := channel.since(after):
                after, text = found
                await _in_turn(here, text)
                yield text
            elif channel.over:
                return
            else:
                await channel.wait(ping_s)
                if time.monotonic() - pinged_at >= ping_s:
                    pinged_at = time.monotonic()
                    await _in_turn(here, PING)
                    yield PING


async def _in_turn(here: Control, text: bytes) -> None:
    """Wait for one of the few places that pieces have in a turn of the event loop."""
    # Hundreds of followers hear of one event, and each of their connections may take megabytes at once.
    async with here.sending_long if len(text) > LONG_BYTES else here.sending:
        # Keeps the place until the next turn of the loop: else all would go through in one.
        await asyncio.sleep(0)


async def _stored(here: Control, job_id: str, after: int, read: Read[Item]) -> int:
    """`after` where something is stored from there on, else 0."""
    if not after:
        return 0
    found = await asyncio.wrap_future(here.catching_up.submit(read, job_id, after - 1, 1))
    # A number that lies ahead must not hide the items before it.
    return after if found else 0


def _still(request: Request, here: Control, job_id: str) -> Callable[[], bool]:
    """A function that tells whether the follower is still permitted: tokens are revoked and roles taken while streams
    are open."""

    def still() -> bool:
        try:
            who = request.scope[AGAIN]()
            permit_job(here.store, who, Action.READ, job_id)
        except Refused:
            return False
        return True

    return still
