"""Request body limits: no body beyond its size is read into memory, and none is waited for without end."""

import re
from typing import NamedTuple

from anyio import current_time, move_on_after
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ringleader_api.edge.requests import REQUEST_ID
from ringleader_api.problems import TooLarge, TooSlow, problem

JSON_BYTES = 1 << 20
"""Of jobs and sweeps, whose files are checked in threads, and of secrets, of which nothing is told back."""
SMALL_BYTES = 32 << 10
"""Of all others: FastAPI checks them on the event loop, and everybody waits while it finds thousands of wrong keys."""
LOGIN_BYTES = 8 << 10
TOKEN_BYTES = 4 << 10
INGEST_BYTES = 2 << 20
"""A supervisor posts a quarter of a megabyte at once; only a single record may be larger. It skips a record that is
refused, posts the others, and says so in its log."""
PROXY_BYTES = 64 << 20
TURN_S, UPLOAD_TURN_S = 10.0, 60.0
"""The seconds in which the next piece of a body has to arrive; an upload over an unsteady network gets more."""
LEAST_BYTES_PER_S = 16 << 10
"""The size of such a piece is what comes in that time at this rate. Less is enough where it is all that is left: a
body thus takes as long as its own size at this rate and one piece more, however large it might have been."""


class BodyBounds(NamedTuple):
    """The most bytes of a body, and the seconds for each piece of it."""

    most_bytes: int
    turn_s: float

    @property
    def piece_bytes(self) -> int:
        return int(self.turn_s * LEAST_BYTES_PER_S)


class BodyLimit:
    """Middleware that refuses by Content-Length before reading, and counts while reading. A route's limit is found by
    its exact address: another address that merely ends alike gets no larger one.

    Args:
        package_bytes: the most bytes of a package.
    """

    def __init__(self, app: ASGIApp, package_bytes: int) -> None:
        self._app = app
        self._bounds = [
            (re.compile(r"/api/v1/login"), BodyBounds(LOGIN_BYTES, TURN_S)),
            # Anybody known makes some, without any role.
            (re.compile(r"/api/v1/tokens"), BodyBounds(TOKEN_BYTES, TURN_S)),
            (re.compile(r"/api/v1/jobs/job_[0-9A-Z]{26}/ingest"), BodyBounds(INGEST_BYTES, TURN_S)),
            (
                re.compile(r"/api/v1/(jobs(/[^/]+)?|sweeps|secrets/[^/]+/[^/]+)"),
                BodyBounds(JSON_BYTES, TURN_S),
            ),
            (re.compile(r"/api/v1/packages/[^/]+"), BodyBounds(package_bytes, UPLOAD_TURN_S)),
            (re.compile(r"/mlflow/.*"), BodyBounds(PROXY_BYTES, UPLOAD_TURN_S)),
        ]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        bounds = self._bounds_at(scope["path"])
        limit = bounds.most_bytes
        # Before the body is asked for: with `Expect: 100-continue` the client then sends none of it.
        if _announced(Headers(scope=scope)) > limit:
            number = scope.get(REQUEST_ID, "")
            await problem(413, f"the request body is larger than {limit} bytes", request_id=number)(
                scope, receive, send
            )
            return
        seen, piece, whole, waited_s = 0, 0, False, 0.0

        # Content-Length may be absent (chunked) or wrong, so the bytes are counted whatever it announced.
        async def counted() -> Message:
            nonlocal seen, piece, whole, waited_s
            if whole:  # whoever asks then waits for the client to go
                return await receive()
            # Only the waits count: what the application does between two reads is not the client's time.
            began = current_time()
            with move_on_after(bounds.turn_s - waited_s) as waited:
                message = await receive()
            if waited.cancelled_caught:
                raise _too_slow(piece, bounds)
            waited_s += current_time() - began
            arrived = len(message.get("body", b""))
            seen, piece = seen + arrived, piece + arrived
            whole = not message.get("more_body", False)
            if seen > limit:
                # Raised inside the application's own `receive`, so that its error handlers answer; nothing was sent
                # yet.
                raise TooLarge(limit)
            if piece >= bounds.piece_bytes:
                # From zero, whatever was beyond it: what came fast earns no time in which nothing comes.
                piece, waited_s = 0, 0.0
            return message

        await self._app(scope, counted, send)

    def _bounds_at(self, path: str) -> BodyBounds:
        """The bounds of a body at that address."""
        found = (bounds for address, bounds in self._bounds if address.fullmatch(path))
        return next(found, BodyBounds(SMALL_BYTES, TURN_S))


def _too_slow(came_bytes: int, bounds: BodyBounds) -> TooSlow:
    came = f"{came_bytes} bytes" if came_bytes else "no more"
    return TooSlow(
        f"{came} of the request body arrived in {bounds.turn_s:g} s; expected are {bounds.piece_bytes} bytes, or all "
        "that is left of it"
    )


def _announced(headers: Headers) -> float:
    """The announced length in bytes; infinite where it is no plausible number."""
    told = headers.get("content-length", "0")
    # `isdigit` alone is true of digits that int() refuses, as it refuses more than 4,300 of them.
    return int(told) if told.isascii() and told.isdigit() and len(told) < 20 else float("inf")
