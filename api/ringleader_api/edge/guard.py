"""Default deny: no request passes without a credential, whatever it asks for, unless it is listed here."""

import re
from http.cookies import CookieError, SimpleCookie
from urllib.parse import quote, urlsplit

from anyio import to_thread
from starlette.datastructures import Headers
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from ringleader_api.edge.credentials import Credentials, Operator, Principal
from ringleader_api.problems import Forbidden, Refused, Unauthorized, problem
from ringleader_api.settings import is_loopback

OPEN = frozenset(
    {
        ("GET", "/healthz"),
        ("HEAD", "/healthz"),
        ("GET", "/login"),
        ("HEAD", "/login"),
        ("POST", "/api/v1/login"),
    }
)
SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
PRINCIPAL = "ringleader.principal"
_INGEST = re.compile(r"/api/v1/jobs/(job_[0-9A-Z]{26})/ingest")


class Guard:
    """An ASGI layer around everything: routes, mounts, static files, the MLflow proxy."""

    def __init__(self, app: ASGIApp, credentials: Credentials, public_url: str) -> None:
        self._app = app
        self._credentials = credentials
        self._public_host = (urlsplit(public_url).hostname or "").lower()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
        elif (refusal := await self._refusal(scope)) is not None:
            await refusal(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _refusal(self, scope: Scope) -> Response | None:
        headers = Headers(scope=scope)
        try:
            if (scope["method"], scope["path"]) in OPEN:
                self._same_origin(scope, headers)
                return None
            scope[PRINCIPAL] = await to_thread.run_sync(self._who, scope, headers)
        except Unauthorized as error:
            return _to_login(scope) if _is_navigation(scope, headers) else _answer(error)
        except Refused as error:
            return _answer(error)
        return None

    def _who(self, scope: Scope, headers: Headers) -> Principal:
        token = _bearer(headers)
        if token is not None:
            if self._credentials.is_operator(token):
                return Operator(by_cookie=False)
            ingest = _INGEST.fullmatch(scope["path"])
            found = self._credentials.supervisor(token, ingest[1]) if ingest else None
            if found is not None:
                return found
            raise Unauthorized(
                "the token is not valid here.", hint="The operator's is in RINGLEADER_HOME/token."
            )
        value = _cookies(headers).get(self._credentials.cookie)
        if value is None or not self._credentials.has_session(value):
            raise Unauthorized(
                "a credential is needed.", hint="Send 'Authorization: Bearer TOKEN', or log in at /login."
            )
        self._same_origin(scope, headers)
        return Operator(by_cookie=True)

    def _same_origin(self, scope: Scope, headers: Headers) -> None:
        """What a browser sends by itself must come from our own page (forged requests, DNS rebinding)."""
        host = headers.get("host", "")
        name = (urlsplit(f"//{host}").hostname or "").lower()
        if not is_loopback(name) and name != self._public_host:
            raise Forbidden(
                f"this is not {host}.",
                hint="Set RINGLEADER_PUBLIC_URL to the address users take.",
                code="wrong_host",
            )
        if scope["method"] in SAFE:
            return
        origin = headers.get("origin")
        told = headers.get("sec-fetch-site", "same-origin")
        if (origin is not None and urlsplit(origin).netloc != host) or told not in ("same-origin", "none"):
            raise Forbidden("the request comes from another site's page.", code="cross_origin")
        if origin is None and "sec-fetch-site" not in headers and _cookies(headers):
            raise Forbidden("a request with a cookie must name its origin.", code="cross_origin")


def _bearer(headers: Headers) -> str | None:
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else None


def _cookies(headers: Headers) -> dict[str, str]:
    try:
        return {name: morsel.value for name, morsel in SimpleCookie(headers.get("cookie", "")).items()}
    except CookieError:
        return {}


def _is_navigation(scope: Scope, headers: Headers) -> bool:
    return (
        scope["method"] == "GET"
        and "text/html" in headers.get("accept", "")
        and "authorization" not in headers
        and not scope["path"].startswith("/api/")
    )


def _to_login(scope: Scope) -> Response:
    query = scope["query_string"].decode("latin-1")
    return RedirectResponse("/login?next=" + quote(scope["path"] + (f"?{query}" if query else "")), 303)


def _answer(error: Refused) -> Response:
    headers = {"WWW-Authenticate": 'Bearer realm="ringleader"'} if isinstance(error, Unauthorized) else None
    return problem(error.status, error.message, code=error.code, hint=error.hint, headers=headers)
