"""The application: its routes, its middleware, and the responses that errors turn into."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Any

from anyio import sleep
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from sqlalchemy.exc import DataError, IntegrityError
from starlette.exceptions import HTTPException
from starlette.routing import Match

from ringleader import __version__
from ringleader.errors import FINDINGS_TOLD, PackageRefused, RingleaderError, SpecInvalid, and_more
from ringleader.spec import JobSpec
from ringleader.spec.job import PATTERNS
from ringleader.spec.sweep import SweepSpec
from ringleader.wire.views import Problem
from ringleader_api.assembly import build
from ringleader_api.backend import Backend
from ringleader_api.clock import Clock, Pause, utc_now
from ringleader_api.edge.body_limit import BodyLimit
from ringleader_api.edge.guard import Guard
from ringleader_api.edge.requests import API, METHODS, REQUEST_ID, Requests
from ringleader_api.log import Log
from ringleader_api.problems import Refused, problem
from ringleader_api.routes import (
    alerts,
    cluster,
    curves,
    details,
    docs,
    feeds,
    health,
    ingest,
    jobs,
    mlflow,
    packages,
    page,
    sweeps,
)
from ringleader_api.routes.bodies.queries import KnownQuery
from ringleader_api.routes.dependencies import refusals
from ringleader_api.routes.users import audit, login, projects, secrets, tokens, users
from ringleader_api.settings import Settings

log = Log("ringleader.app")


def create_app(
    settings: Settings, backend: Backend, now: Clock = utc_now, *, pause: Pause = sleep
) -> FastAPI:
    """The whole control plane. Its threads run between start-up and shutdown of the application; `pause` is the wait
    before an answer that is held back."""
    control = build(settings, backend, now)

    @asynccontextmanager
    async def life(app: FastAPI) -> AsyncIterator[None]:
        control.begin()
        async with mlflow.upstream(settings.mlflow_url) as client:
            app.state.mlflow = client
            yield
        control.end()

    app = FastAPI(
        title="Ringleader",
        version=__version__,
        lifespan=life,
        openapi_url=f"{API}/openapi.json",
        docs_url=None,  # FastAPI's pages load scripts from a CDN
        redoc_url=None,
    )
    app.state.control, app.state.pause = control, pause
    app.openapi = lambda: _openapi(app)  # type: ignore[method-assign]
    _add_routes(app)
    _add_errors(app)
    # The last one added is the outermost: number and log, then the credential, then the size.
    app.add_middleware(BodyLimit, package_bytes=settings.max_package_bytes)
    app.add_middleware(
        Guard,
        credentials=control.credentials,
        refusals=control.refusals,
        now=now,
        hosts=settings.hosts,
        requests_per_s=settings.requests_per_s,
        pause=pause,
    )
    app.add_middleware(Requests, observe=control.telemetry.observe, tls=settings.url.startswith("https://"))
    return app


def _add_routes(app: FastAPI) -> None:
    ours = (
        jobs,
        feeds,
        details,
        curves,
        ingest,
        packages,
        cluster,
        login,
        users,
        tokens,
        projects,
        secrets,
        alerts,
        audit,
        sweeps,
        docs,
    )
    for part in ours:
        app.include_router(part.router, prefix=API, dependencies=[KnownQuery])
    app.include_router(health.router)
    app.include_router(health.router, prefix=API, include_in_schema=False)
    app.include_router(login.form)
    app.include_router(mlflow.router)
    # Last: it has a route for every path, and the router takes the first that matches.
    app.include_router(page.router)


def _add_errors(app: FastAPI) -> None:
    app.exception_handler(RingleaderError)(_ours)
    app.exception_handler(HTTPException)(_http)
    app.exception_handler(RequestValidationError)(_invalid)
    app.exception_handler(IntegrityError)(_second)
    # SQLite raises OverflowError for an integer beyond 64 bits; PostgreSQL reports it as a DataError.
    app.exception_handler(OverflowError)(_unstorable)
    app.exception_handler(DataError)(_unstorable)


async def _ours(request: Request, error: RingleaderError) -> Response:
    status = error.status if isinstance(error, Refused) else _STATUS.get(type(error), 500)
    # An error of the product that is no refusal is a mistake here: 500, unless the table below says whose it is.
    return problem(
        status,
        error.message,
        code=error.code,
        hint=error.hint,
        errors=_findings(error),
        request_id=request.scope.get(REQUEST_ID, ""),
        headers=error.headers or None if isinstance(error, Refused) else None,
    )


async def _http(request: Request, error: HTTPException) -> Response:
    status, detail = error.status_code, str(error.detail)
    headers = dict(error.headers) if error.headers else None
    # The page's GET route takes every path, so another method on an unknown address arrives here as a 405.
    if status == HTTPStatus.METHOD_NOT_ALLOWED:
        path = request.scope["path"]
        if (allowed := _allowed(request)) or not path.startswith(f"{API}/"):
            headers = {"Allow": ", ".join(allowed or ["GET"])}
        else:
            status, detail, headers = 404, f"there is no endpoint at {path}.", None
    return problem(status, detail, request_id=request.scope.get(REQUEST_ID, ""), headers=headers)


async def _invalid(request: Request, error: RequestValidationError) -> Response:
    # A body of many elements can be wrong in each: the answer names the first few and counts the rest.
    wrong = error.errors()
    found = [_finding(e) for e in wrong[:FINDINGS_TOLD]]
    detail = "; ".join(f"{f['pointer']}: {f['message']}" for f in found) + and_more(len(wrong) - len(found))
    return problem(422, detail, code="invalid", errors=found, request_id=request.scope.get(REQUEST_ID, ""))


async def _second(request: Request, error: IntegrityError) -> Response:
    """Answer 409 where two requests stored the same thing at the same moment, on a database that allows two
    writers."""
    log.exception("request.conflict")
    return problem(
        409,
        "another request stored the same record at the same moment.",
        code="conflict",
        request_id=request.scope.get(REQUEST_ID, ""),
    )


async def _unstorable(request: Request, error: Exception) -> Response:
    return problem(
        422,
        "a value in the request is too large or too long to be stored.",
        code="invalid",
        request_id=request.scope.get(REQUEST_ID, ""),
    )


def _allowed(request: Request) -> list[str]:
    """The methods that the path's own routes take together. The page's files do not count."""
    *ours, _ = request.app.routes  # the last is the page, which would take every path
    asked = {"type": "http", "path": request.scope["path"], "root_path": "", "headers": []}
    # Asked of every route: the router would name only those of the first that matches.
    return [
        method
        for method in sorted(METHODS)
        if any(one.matches({**asked, "method": method})[0] is Match.FULL for one in ours)
    ]


_STATUS: dict[type[RingleaderError], int] = {SpecInvalid: 422, PackageRefused: 422}


def _findings(error: RingleaderError) -> list[dict[str, Any]]:
    if isinstance(error, PackageRefused):
        return [
            {
                "pointer": "",
                "value": error.entry,
                "allowed": "plain files and folders",
                "message": error.message,
            }
        ]
    return getattr(error, "errors", [])


def _finding(error: Any) -> dict[str, Any]:
    """A finding for one of pydantic's errors; its pointer starts at the body, other places are named by their kind."""
    where, *rest = (str(p) for p in error["loc"])
    pointer = "".join(f"/{p}" for p in rest) if where == "body" else f"{where}: {'/'.join(rest)}"
    context = error.get("ctx") or {}
    value = error.get("input")
    words = f"unknown key {rest[-1]!r}" if error["type"] == "extra_forbidden" and rest else error["msg"]
    complaint, allowed = PATTERNS.get(context.get("pattern", ""), ("", ""))
    if complaint:
        words = f"{complaint}; allowed: {allowed}"
    return {
        "pointer": pointer,
        "value": value if isinstance(value, (str, int, float, bool)) else None,
        "allowed": allowed or str(context.get("expected", words)),
        "message": words,
    }


def _openapi(app: FastAPI) -> dict[str, Any]:
    """FastAPI's document, with the shapes that it does not read or write itself: job file and problem."""
    if not app.openapi_schema:
        document = get_openapi(title=app.title, version=app.version, routes=app.routes)
        schemas = document["components"]["schemas"]
        _refuse_as_problems(document)
        for model in (JobSpec, SweepSpec, Problem):
            shape = model.model_json_schema(ref_template="#/components/schemas/{model}")
            # OpenAPI keeps all shapes in one place, to which the references of this one point.
            schemas.update(shape.pop("$defs", {}))
            schemas[model.__name__] = shape
        app.openapi_schema = document
    return app.openapi_schema


def _refuse_as_problems(document: dict[str, Any]) -> None:
    """Replace FastAPI's own error body, listed wherever a parameter could be wrong, by a problem, which is what is
    sent."""
    for methods in document["paths"].values():
        for operation in methods.values():
            if "HTTPValidationError" in str(operation["responses"].get("422")):
                operation["responses"]["422"] = {str(k): v for k, v in refusals(422).items()}["422"]
    for name in ("HTTPValidationError", "ValidationError"):
        document["components"]["schemas"].pop(name, None)
