"""Request body limits: no body beyond its size is read into memory, and none is waited for without end."""

import re

from anyio import move_on_after
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ringleader_api.edge.requests import REQUEST_ID
from ringleader_api.problems import TooLarge, TooSlow, problem

JSON_BYTES = 1 << 20
LOGIN_BYTES = 8 << 10
TOKEN_BYTES = 4 << 10
INGEST_BYTES = 2 << 20
"""A supervisor posts a quarter of a megabyte at once; only a single record may be larger. It skips a record that is
refused, posts the others, and says so in its log."""
PROXY_BYTES = 64 << 20
STALL_S, UPLOAD_STALL_S = 10.0, 60.0
"""The seconds allowed for the next bytes of a body; an upload over an unsteady network gets more."""


class BodyLimit:
    """Middleware that refuses by Content-Length before reading, and counts while reading. A route's limit is found by
    its exact address: another address that merely ends alike gets no larger one.

    Args:
        package_bytes: the most bytes of a package.
    """

    def __init__(self, app: ASGIApp, package_bytes: int) -> None:
        self._app = app
        self._limits = [
            (re.compile(r"/api/v1/login"), LOGIN_BYTES, STALL_S),
            (
                re.compile(r"/api/v1/tokens"),
                TOKEN_BYTES,
                STALL_S,
            ),  # anybody known makes some, without any role
            (re.compile(r"/api/v1/jobs/job_[0-9A-Z]{26}/ingest"), INGEST_BYTES, STALL_S),
            (re.compile(r"/api/v1/packages/[^/]+"), package_bytes, UPLOAD_STALL_S),
            (re.compile(r"/mlflow/.*"), PROXY_BYTES, UPLOAD_STALL_S),
        ]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        limit, stall_s = self._bounds(scope["path"])
        # Before the body is asked for: with `Expect: 100-continue` the client then sends none of it.
        if _announced(Headers(scope=scope)) > limit:
            number = scope.get(REQUEST_ID, "")
            await problem(413, f"the body is larger than {limit} bytes", request_id=number)(
                scope, receive, send
            )
            return
        seen, whole = 0, False

        # Content-Length may be absent (chunked) or wrong, so the bytes are counted whatever it announced.
        async def counted() -> Message:
            nonlocal seen, whole
            if whole:  # whoever asks then waits for the client to go
                return await receive()
            # Per message rather than per body: a large upload may take long, as long as it moves.
            with move_on_after(stall_s) as waited:
                message = await receive()
            if waited.cancelled_caught:
                raise TooSlow(stall_s)
            seen += len(message.get("body", b""))
            whole = not message.get("more_body", False)
            if seen > limit:
                # Raised inside the application's own `receive`, so that its error handlers answer; nothing was sent
                # yet.
                raise TooLarge(limit)
            return message

        await self._app(scope, counted, send)

    def _bounds(self, path: str) -> tuple[int, float]:
        """The limit of the body at that address, in bytes, and the seconds allowed for the next of them."""
        found = ((size, stall_s) for address, size, stall_s in self._limits if address.fullmatch(path))
        return next(found, (JSON_BYTES, STALL_S))


def _announced(headers: Headers) -> float:
    """The announced length in bytes; infinite where it is no plausible number."""
    told = headers.get("content-length", "0")
    # `isdigit` alone is true of digits that int() refuses, as it refuses more than 4,300 of them.
    return int(told) if told.isascii() and told.isdigit() and len(told) < 20 else float("inf")
