"""/mlflow/: MLflow's own page and records, behind our credential, which never reaches MLflow. Nothing else of MLflow is
served."""

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

import httpx
from fastapi import APIRouter, Request
from fastapi.responses import RedirectResponse, StreamingResponse
from starlette.background import BackgroundTask
from starlette.responses import Response

from ringleader.client.unix_socket import ClientRoute
from ringleader_api.problems import BadGateway, NotFound, Refused
from ringleader_api.routes.dependencies import ByTracker, Here
from ringleader_api.tracking import admitted

router = APIRouter(include_in_schema=False)

METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]
_HOP = {"connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "te", "trailer", "upgrade"}
# Our credential, and all that a client may claim about where its request comes from.
_KEPT_BACK = _HOP | {"host", "authorization", "cookie", "origin", "referer", "forwarded", "x-real-ip"}
_FORWARDED = "x-forwarded-"
_NOT_RETURNED = _HOP | {
    "transfer-encoding",
    "server",
    "date",
    "x-frame-options",
    "access-control-allow-origin",
}


@asynccontextmanager
async def upstream(url: str) -> AsyncIterator[httpx.AsyncClient]:
    """The connection pool to the MLflow server at `url`."""
    way = ClientRoute.to(url)
    timeout = httpx.Timeout(60.0, connect=5.0)
    transport = httpx.AsyncHTTPTransport(uds=way.uds)
    # No proxies from the environment: the server is named on purpose. Redirects are the browser's to follow.
    async with httpx.AsyncClient(
        base_url=way.url, timeout=timeout, trust_env=False, follow_redirects=False, transport=transport
    ) as client:
        yield client


@router.get("/mlflow")
async def to_folder(_: ByTracker) -> Response:
    """Redirect to the folder: the page uses relative addresses, which need the slash."""
    return RedirectResponse("/mlflow/", 307)


@router.api_route("/mlflow/{path:path}", methods=METHODS)
async def proxy(request: Request, here: Here, _: ByTracker, path: str) -> Response:
    """Pass the request on, and the answer back, both as streams."""
    if not here.settings.mlflow_url:
        raise NotFound("no tracking server is configured.", hint="`ringleader up` starts one.")
    client: httpx.AsyncClient = request.app.state.mlflow
    # The raw path: decoding and encoding it again would change what MLflow sees.
    raw = request.scope.get("raw_path", request.url.path.encode()).decode("ascii").split("?")[0]
    below = raw.removeprefix("/mlflow/")
    if not admitted(below):
        raise NotFound(
            f"/mlflow/{path} is not part of MLflow's page or of its tracking API.",
            hint="Other parts of MLflow are not served here.",
        )
    target = _target(client.base_url, request, below, path)
    has_body = "content-length" in request.headers or "transfer-encoding" in request.headers
    outgoing = client.build_request(
        request.method,
        target,
        headers=_outgoing(request),
        content=request.stream() if has_body else None,
    )
    try:
        answer = await client.send(outgoing, stream=True)
    except httpx.TransportError as error:
        raise BadGateway(
            f"MLflow does not answer ({type(error).__name__}).",
            hint="Training continues; its metrics are stored here and copied once MLflow is back.",
            code="tracker_down",
        ) from None
    return StreamingResponse(
        answer.aiter_raw(),
        answer.status_code,
        headers=dict(_without(answer.headers.items(), _NOT_RETURNED)),
        background=BackgroundTask(answer.aclose),
    )


def _target(base: httpx.URL, request: Request, below: str, path: str) -> httpx.URL:
    """The address at MLflow. Raises Refused where it is none."""
    try:
        return base.copy_with(raw_path=base.raw_path + below.encode() + _query(request))
    except httpx.InvalidURL as error:
        raise Refused(
            f"/mlflow/{path} is not a valid address ({error}).", hint="Escape special characters: # is %23."
        ) from None


def _outgoing(request: Request) -> list[tuple[str, str]]:
    """The request's headers, with its true origin."""
    kept = _without(request.headers.items(), _KEPT_BACK)
    told = [(name, value) for name, value in kept if not name.lower().startswith(_FORWARDED)]
    # MLflow treats requests from loopback as its owner's.
    return [*told, (_FORWARDED + "for", request.client.host if request.client else "unknown")]


def _query(request: Request) -> bytes:
    query: bytes = request.scope["query_string"]
    return b"?" + query if query else b""


def _without(headers: Iterable[tuple[str, str]], kept_back: set[str]) -> list[tuple[str, str]]:
    return [(name, value) for name, value in headers if name.lower() not in kept_back]
