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
STALL_S, UPLOAD_STALL_S = 10.0, 60.0
"""The seconds allowed for the next bytes of a body; an upload over an unsteady network gets more."""
SHORT_S, WHOLE_S = 10.0, 60.0
"""The seconds allowed for a whole body of some KiB, and of a MiB or two: one that comes byte by byte never stalls."""
SLOWEST_BYTES_PER_S = 4096
"""The rate below which an upload as large as it may be is given up; what has come is kept, and gone on with."""


class BodyBounds(NamedTuple):
    """The most bytes of a body, and the seconds that may be waited for the next of them, and for all together."""

    most_bytes: int
    stall_s: float
    whole_s: float

    @classmethod
    def of_upload(cls, most_bytes: int) -> "BodyBounds":
        return cls(most_bytes, UPLOAD_STALL_S, UPLOAD_STALL_S + most_bytes / SLOWEST_BYTES_PER_S)


class BodyLimit:
    """Middleware that refuses by Content-Length before reading, and counts while reading. A route's limit is found by
    its exact address: another address that merely ends alike gets no larger one.

    Args:
        package_bytes: the most bytes of a package.
    """

    def __init__(self, app: ASGIApp, package_bytes: int) -> None:
        self._app = app
        self._bounds = [
            (re.compile(r"/api/v1/login"), BodyBounds(LOGIN_BYTES, STALL_S, SHORT_S)),
            # Anybody known makes some, without any role.
            (re.compile(r"/api/v1/tokens"), BodyBounds(TOKEN_BYTES, STALL_S, SHORT_S)),
            (
                re.compile(r"/api/v1/jobs/job_[0-9A-Z]{26}/ingest"),
                BodyBounds(INGEST_BYTES, STALL_S, WHOLE_S),
            ),
            (
                re.compile(r"/api/v1/(jobs(/[^/]+)?|sweeps|secrets/[^/]+/[^/]+)"),
                BodyBounds(JSON_BYTES, STALL_S, WHOLE_S),
            ),
            (re.compile(r"/api/v1/packages/[^/]+"), BodyBounds.of_upload(package_bytes)),
            (re.compile(r"/mlflow/.*"), BodyBounds.of_upload(PROXY_BYTES)),
        ]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        limit, stall_s, whole_s = self._bounds_at(scope["path"])
        # Before the body is asked for: with `Expect: 100-continue` the client then sends none of it.
        if _announced(Headers(scope=scope)) > limit:
            number = scope.get(REQUEST_ID, "")
            await problem(413, f"the request body is larger than {limit} bytes", request_id=number)(
                scope, receive, send
            )
            return
        seen, whole, waited_s = 0, False, 0.0

        # Content-Length may be absent (chunked) or wrong, so the bytes are counted whatever it announced.
        async def counted() -> Message:
            nonlocal seen, whole, waited_s
            if whole:  # whoever asks then waits for the client to go
                return await receive()
            # Only the waits count: what the application does between two pieces is not the client's time.
            began, left_s = current_time(), whole_s - waited_s
            with move_on_after(min(stall_s, left_s)) as waited:
                message = await receive()
            if waited.cancelled_caught:
                raise TooSlow(
                    f"no more of the request body arrived for {stall_s:g} s"
                    if stall_s < left_s
                    else f"the request body did not arrive within {whole_s:g} s"
                )
            waited_s += current_time() - began
            seen += len(message.get("body", b""))
            whole = not message.get("more_body", False)
            if seen > limit:
                # Raised inside the application's own `receive`, so that its error handlers answer; nothing was sent
                # yet.
                raise TooLarge(limit)
            return message

        await self._app(scope, counted, send)

    def _bounds_at(self, path: str) -> BodyBounds:
        """The bounds of a body at that address."""
        found = (bounds for address, bounds in self._bounds if address.fullmatch(path))
        return next(found, BodyBounds(SMALL_BYTES, STALL_S, WHOLE_S))


def _announced(headers: Headers) -> float:
    """The announced length in bytes; infinite where it is no plausible number."""
    told = headers.get("content-length", "0")
    # `isdigit` alone is true of digits that int() refuses, as it refuses more than 4,300 of them.
    return int(told) if told.isascii() and told.isdigit() and len(told) < 20 else float("inf")
