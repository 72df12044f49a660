"""No body beyond its limit is read into memory."""

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ringleader_api.edge.requests import REQUEST_ID
from ringleader_api.problems import TooLarge, problem

JSON_BYTES = 1 << 20
INGEST_BYTES = 32 << 20
PROXY_BYTES = 64 << 20


class BodyLimit:
    """Refuses by Content-Length before reading, and counts while reading."""

    def __init__(self, app: ASGIApp, package_bytes: int) -> None:
        self._app = app
        self._package_bytes = package_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        limit = self._limit(scope["path"])
        if _announced(Headers(scope=scope)) > limit:
            number = scope.get(REQUEST_ID, "")
            await problem(413, f"the body is larger than {limit} bytes", request_id=number)(
                scope, receive, send
            )
            return
        seen = 0

        async def counted() -> Message:
            nonlocal seen
            message = await receive()
            seen += len(message.get("body", b""))
            if seen > limit:
                raise TooLarge(limit)
            return message

        await self._app(scope, counted, send)

    def _limit(self, path: str) -> int:
        if path.startswith("/api/v1/packages/"):
            return self._package_bytes
        if path.endswith("/ingest"):
            return INGEST_BYTES
        return PROXY_BYTES if path.startswith("/mlflow/") else JSON_BYTES


def _announced(headers: Headers) -> float:
    """Bytes; without end where it is no number that anybody could mean."""
    told = headers.get("content-length", "0")
    return int(told) if told.isascii() and told.isdigit() and len(told) < 20 else float("inf")
