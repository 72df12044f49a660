"""The outermost middleware: a number for each request, its log line and metrics, and the answer to an unforeseen
error."""

import re
import secrets
import time
from collections.abc import Callable

from starlette.datastructures import MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ringleader_api.edge.rate import Allowance
from ringleader_api.log import LOG_FIELDS, Log
from ringleader_api.problems import problem
from ringleader_api.store import log_failure

REQUEST_ID = "ringleader.request_id"
LEFT = 499
"""The status under which a request is counted whose client left before the answer, as other servers do."""
API = "/api/v1"
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
LINES_PER_S, LINES_AT_ONCE = 1.0, 60.0
"""The rate of log lines for refused requests of one address; the metrics count all."""
Observe = Callable[[str, str, int, float], None]
log = Log("ringleader.http")
_JOB = re.compile(r"/api/v1/jobs/(job_[0-9A-Z]{26})(?:/|$)")

_CSP = "default-src 'self'; img-src 'self' data:; object-src 'none'; base-uri 'none'; frame-ancestors 'none'"
# MLflow's page brings inline scripts, styles and workers of its own; it stays on this origin.
_CSP_MLFLOW = (
    "default-src 'self' 'unsafe-inline' 'unsafe-eval' data: blob:; object-src 'none'; frame-ancestors 'self'"
)


class Requests:
    """Middleware around the whole application.

    Args:
        observe: takes the measurements: method, route, status, seconds.
        tls: users reach us over https; browsers are told never to come otherwise.
    """

    def __init__(self, app: ASGIApp, observe: Observe, *, tls: bool) -> None:
        self._app = app
        self._tls = tls
        self._observe = observe
        self._lines = Allowance(LINES_PER_S, LINES_AT_ONCE)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        scope[REQUEST_ID] = secrets.token_hex(8)
        about = _JOB.match(scope["path"])
        fields = {"request_id": scope[REQUEST_ID], **({"job": about[1]} if about else {})}
        before = LOG_FIELDS.set(fields)
        began = time.perf_counter()
        status = 0

        async def told(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                _protect(headers, scope)
                if self._tls:
                    headers["Strict-Transport-Security"] = "max-age=31536000"
            await send(message)

        try:
            await self._app(scope, receive, told)
        except ClientDisconnect:  # nobody is left to answer, and nothing of ours has failed
            status = status or LEFT
            log.info("http.left", method=scope["method"], path=scope["path"])
        except Exception as error:
            answer = _failed(scope, error)
            # The answer has begun: a second one cannot be sent, and the server closes the connection.
            if status:
                raise
            await answer(scope, receive, told)
        finally:
            self._finish(scope, status, time.perf_counter() - began)
            LOG_FIELDS.reset(before)

    def _finish(self, scope: Scope, status: int, took_s: float) -> None:
        # The server takes any word for a method: strangers' words make no time series.
        method = scope["method"] if scope["method"] in METHODS else "other"
        self._observe(method, _template(scope), status, took_s)
        if status >= 500 or (scope["method"] not in ("GET", "HEAD") and self._has_line(scope, status)):
            log.info(
                "http.served",
                request_id=scope[REQUEST_ID],
                method=scope["method"],
                path=scope["path"],
                status=status,
                ms=round(took_s * 1000, 1),
            )

    def _has_line(self, scope: Scope, status: int) -> bool:
        """Whether the request gets a line in the log."""
        # Lines are written where all others wait: a flood of refused requests gets a few.
        return status < 400 or self._lines.take(source(scope)) == 0


def source(scope: Scope) -> str:
    """The address that the request came from."""
    client = scope.get("client")
    return str(client[0]) if client else ""


def _template(scope: Scope) -> str:
    """The path as its route declares it."""
    path = getattr(scope.get("route"), "path", None)
    if path is None:
        return "unmatched"
    # Never the path itself: each id in it would make a new time series.
    return f"{API}{path}" if scope["path"].startswith(API) and not path.startswith(API) else str(path)


def _failed(scope: Scope, error: Exception) -> ASGIApp:
    """The answer to an unforeseen error. The client gets the request's number, the log the traceback; both get the
    words of a database or disk that refuses."""
    about = {"request_id": scope[REQUEST_ID], "method": scope["method"], "path": scope["path"]}
    if (trouble := log_failure(log, "http.failed", error, **about)) is None:
        return _unforeseen(scope[REQUEST_ID])
    return problem(503, trouble.message, code=trouble.code, hint=trouble.hint, request_id=scope[REQUEST_ID])


def _unforeseen(request_id: str) -> ASGIApp:
    return problem(
        500,
        "the control plane failed while handling the request, which may or may not have taken effect.",
        code="internal_error",
        hint=f"Its log has the cause under request ID {request_id}. Running jobs are not affected.",
        request_id=request_id,
    )


def _protect(headers: MutableHeaders, scope: Scope) -> None:
    mlflow = scope["path"].startswith("/mlflow")
    headers["X-Request-Id"] = scope[REQUEST_ID]
    headers["X-Content-Type-Options"] = "nosniff"
    headers["X-Frame-Options"] = "SAMEORIGIN" if mlflow else "DENY"
    headers["Referrer-Policy"] = "same-origin"
    headers["Cross-Origin-Opener-Policy"] = "same-origin"
    headers["Cross-Origin-Resource-Policy"] = "same-origin"
    # A route may have set a stricter one, as the log-in page does.
    headers.setdefault("Content-Security-Policy", _CSP_MLFLOW if mlflow else _CSP)
    if scope["path"].startswith("/api/"):
        # No cache on the way may keep an answer that was given to one credential.
        headers.setdefault("Cache-Control", "no-store")
