"""Default deny: no request passes without a credential, unless its method and path are listed here."""

import asyncio
import functools
import re
from urllib.parse import quote, urlsplit

from anyio import to_thread
from starlette.datastructures import Headers
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ringleader_api.clock import Clock, Pause
from ringleader_api.edge.cookies import cookie, keep_own
from ringleader_api.edge.credentials import Credentials
from ringleader_api.edge.rate import Allowance
from ringleader_api.edge.refusals import Refusals
from ringleader_api.edge.request_turns import KnownCredentials, RequestTurns
from ringleader_api.edge.requests import REQUEST_ID, source
from ringleader_api.problems import Forbidden, Refused, TooMany, Unauthorized, problem
from ringleader_api.rights import Caller, Principal
from ringleader_api.settings import is_loopback
from ringleader_api.store.audit import CURRENT_ACTION, DONE, AuditedAction

OPEN = frozenset(
    {
        ("GET", "/healthz"),
        ("HEAD", "/healthz"),
        ("GET", "/login"),
        ("HEAD", "/login"),
        ("GET", "/login/oidc"),
        ("GET", "/login/oidc/callback"),
        ("POST", "/api/v1/login"),
    }
)
SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
PRINCIPAL = "ringleader.principal"
AGAIN = "ringleader.again"
"""The scope's key for a function that authenticates the request again, for answers that take long; it raises the error
that a new request would meet."""
WRONG_PER_S, WRONG_AT_ONCE = 1.0, 30.0
HELD_BACK = "ringleader.held_back"
"""The scope's key for a refusal that is sent `LATER_S` later."""
LATER_S = 0.5
"""The delay before each answer to a user who is refused, or an address that shows wrong credentials, again and
again."""
_OF_SUPERVISORS = re.compile(r"/api/v1/jobs/(job_[0-9A-Z]{26})/(?:ingest|secrets)")
# Requests that wait for others than us take turns of their own, so that they hold up none of the rest.
_LONG = re.compile(r"/mlflow/|/api/v1/jobs/[^/]+/checkpoints/")


class Guard:
    """Middleware around everything: routes, mounts, static files, websockets, the MLflow proxy.

    Args:
        hosts: names that this control plane answers to besides loopback.
        requests_per_s: of one user, or of the supervisor of one job, in the long run; twice as many at once.
        pause: the wait before a refusal that is held back.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        credentials: Credentials,
        refusals: Refusals,
        now: Clock,
        hosts: frozenset[str],
        requests_per_s: float,
        pause: Pause,
    ) -> None:
        self._app = app
        self._credentials = credentials
        self._refusals = refusals
        self._now = now
        self._pause = pause
        self._hosts = hosts
        self._asked = Allowance(requests_per_s, 2 * requests_per_s)
        self._wrong = Allowance(WRONG_PER_S, WRONG_AT_ONCE)
        self._turns = RequestTurns()
        self._lookups = RequestTurns()
        self._known = KnownCredentials()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif scope["type"] != "http":
            await _close(scope, send)  # no route is a websocket
        elif (scope["method"], scope["path"]) in OPEN:
            await self._finish(await self._refusal(scope), scope, receive, send)
        elif not (shown := self._shown(Headers(scope=scope))):
            # Before any turn: there is nothing to be looked up.
            await self._refused(_nothing_shown(), scope)(scope, receive, send)
        else:
            turn = await self._turns.begin(f"{shown} {bool(_LONG.match(scope['path']))}")
            try:
                refusal = await self._looked_up(scope, shown)
                if HELD_BACK in scope:
                    await self._pause(LATER_S)
                await self._finish(refusal, scope, turn.reading(receive), turn.answering(send))
            finally:
                turn.end()

    async def _looked_up(self, scope: Scope, shown: str) -> Response | None:
        """The refusal; None lets it pass."""
        if shown in self._known:
            return await self._refusal(scope, shown)
        # A look at a credential costs a thread and a query: those not known to be valid take turns by address, since
        # who guesses shows another one each time.
        turn = await self._lookups.begin(source(scope))
        try:
            return await self._refusal(scope, shown)
        finally:
            turn.end()

    async def _finish(self, refusal: Response | None, scope: Scope, receive: Receive, send: Send) -> None:
        # A user whose request is refused gets a row in the audit log; a stranger gets the refusal alone.
        if refusal is None:
            keep_own(scope, self._credentials.cookies)
            await self._carry_out(self._app, scope, receive, send)
        elif PRINCIPAL in scope:
            await self._carry_out(refusal, scope, receive, send)
        else:
            await refusal(scope, receive, send)

    async def _refusal(self, scope: Scope, shown: str = "") -> Response | None:
        """The refusal of the request; None lets it pass. The `PRINCIPAL` is set where only the site is refused: the
        audit log records it, at most as often as the user may send requests."""
        headers = Headers(scope=scope)
        try:
            if (scope["method"], scope["path"]) in OPEN:
                if scope["path"] != "/healthz":  # whoever watches the process asks by its address
                    self._same_site(scope, headers)
                return None
            who = await to_thread.run_sync(self._who, scope, headers)
            self._known.note(shown)
            # After the credential, by user: a bound per address would let others behind the same proxy use it up.
            self._asked.spend(who.name if isinstance(who, Caller) else who.job_id)
            scope[PRINCIPAL] = who
            scope[AGAIN] = functools.partial(self._who, scope, headers)
            # A browser sends no Authorization header by itself, so a plain read with a token cannot be forged.
            if scope["method"] not in SAFE or _bearer(headers) is None:
                self._same_site(scope, headers)
        except Refused as error:
            return self._refused(error, scope)
        return None

    def _refused(self, error: Refused, scope: Scope) -> Response:
        if isinstance(error, Unauthorized) and _is_navigation(scope, Headers(scope=scope)):
            return _to_login(scope)
        return _answer(error, scope)

    def _who(self, scope: Scope, headers: Headers) -> Principal:
        token = _bearer(headers)
        if token is not None:
            found = self._by_token(scope, token)
            if found is None:
                # Only a wrong token spends: right ones are never slowed, whoever shares their address.
                if (wait_s := self._wrong_again(scope, headers)) > 0:
                    raise TooMany(wait_s)
                raise Unauthorized(
                    "this control plane does not accept the token.",
                    hint="It was revoked, has expired, or belongs to another control plane. The first token is in "
                    "RINGLEADER_HOME/token.",
                )
            return found
        value = cookie(headers, self._credentials.cookie)
        caller = self._credentials.by_cookie(value) if value is not None else None
        if caller is None:
            # Never 429: a browser whose session is over has to hear that it must log in.
            self._wrong_again(scope, headers)
            raise _nothing_shown()
        return caller

    def _wrong_again(self, scope: Scope, headers: Headers) -> float:
        """Count a wrong credential of its address; returns 0, or the seconds until it may send another. The refusal is
        held back then."""
        self._known.forget(self._shown(headers))
        wait_s = self._wrong.take(source(scope))
        if wait_s > 0:
            # A client that sends one after the other is slowed, whatever it sends.
            scope[HELD_BACK] = True
        return wait_s

    def _shown(self, headers: Headers) -> str:
        """The credential as it was sent, of either kind, right or wrong; empty where there is none."""
        token = _bearer(headers)
        if token is not None:
            return f"token {token}"
        value = cookie(headers, self._credentials.cookie)
        return "" if value is None else f"session {value}"

    def _by_token(self, scope: Scope, token: str) -> Principal | None:
        # Only where supervisors post: everywhere else a token of an attempt is an unknown one.
        theirs = _OF_SUPERVISORS.fullmatch(scope["path"])
        found = self._credentials.supervisor(token, theirs[1]) if theirs else None
        return found or self._credentials.by_token(token)

    def _same_site(self, scope: Scope, headers: Headers) -> None:
        """Refuse a request that a browser was made to send from another site's page (forged requests, DNS
        rebinding)."""
        host = headers.get("host", "")
        name = (_hostname(host) or "").lower()
        # DNS rebinding: a page of another site may reach this port under a name of its own, which Host tells.
        if not is_loopback(name) and name not in self._hosts:
            raise Forbidden(
                f"this control plane does not answer to the host name {host}.",
                hint="Set RINGLEADER_PUBLIC_URL to the address that users open, and list other host names in "
                "RINGLEADER_OTHER_HOSTS.",
                code="wrong_host",
            )
        if scope["method"] in SAFE:
            return
        origin = headers.get("origin")
        # Older browsers send no Sec-Fetch-Site: Origin alone decides there.
        told = headers.get("sec-fetch-site", "same-origin")
        if (origin is not None and _netloc(origin) != host) or told not in ("same-origin", "none"):
            raise Forbidden("the request was sent by a page of another site.", code="cross_origin")
        # With neither header nobody knows the sender; a cookie shows that it is a browser.
        if origin is None and "sec-fetch-site" not in headers and headers.get("cookie"):
            raise Forbidden(
                "a request that changes something with a cookie must carry an Origin header.",
                code="cross_origin",
            )

    async def _carry_out(self, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        """Have `app` answer. A request that changes something, or was refused to, leaves a row in the audit log."""
        who = scope.get(PRINCIPAL)
        if who is not None and (scope["method"] in SAFE or not isinstance(who, Caller)):
            await app(scope, receive, send)
            return
        action = AuditedAction(
            at=self._now(),
            who=who.name if who is not None else "",
            token=who.token if who is not None else None,
            method=scope["method"],
            path=scope["path"],
            source=source(scope),
            request_id=scope.get(REQUEST_ID, ""),
        )
        # 500 until the answer begins: an exception on the way is recorded as one.
        status, has_row = 500, True

        async def told(message: Message) -> None:
            nonlocal status, has_row
            status = message.get("status", status)
            if message["type"] == "http.response.start" and status >= 400 and action.who:
                has_row = self._refusals.has_row(action)
                # Who asks again at once would keep the process busy with refusals. Before the answer begins: it keeps
                # its turn meanwhile, so that a crowd of clients does not come back together.
                if not has_row:
                    await self._pause(LATER_S)
            await send(message)

        before = CURRENT_ACTION.set(action)
        try:
            # The context variable reaches the thread that carries the request out, so the first write there stores the
            # row.
            await app(scope, receive, told)
        finally:
            CURRENT_ACTION.reset(before)
            # Nothing was written, so no transaction has stored the row: it follows the answer.
            if action.who and has_row and not action.recorded:
                outcome = DONE if status < 400 else str(status)
                await asyncio.wrap_future(self._refusals.record(action, outcome))


def _nothing_shown() -> Unauthorized:
    return Unauthorized(
        "the request carries no valid credential.",
        hint="Send 'Authorization: Bearer TOKEN', or log in at /login.",
    )


async def _close(scope: Scope, send: Send) -> None:
    if "websocket.http.response" not in scope.get("extensions", {}):
        # A server without the extension turns the close into a 403 by itself.
        await send({"type": "websocket.close", "code": 1008})
        return
    await send({"type": "websocket.http.response.start", "status": 401, "headers": []})
    await send({"type": "websocket.http.response.body", "body": b""})


def _bearer(headers: Headers) -> str | None:
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else None


def _hostname(host: str) -> str | None:
    try:
        # `urlsplit` raises where brackets hold no IPv6 address.
        return urlsplit(f"//{host}").hostname
    except ValueError:
        return None


def _netloc(origin: str) -> str | None:
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return None


def _is_navigation(scope: Scope, headers: Headers) -> bool:
    return (
        scope["method"] == "GET"
        and "text/html" in headers.get("accept", "")
        and "authorization" not in headers
        and not scope["path"].startswith("/api/")
    )


def _to_login(scope: Scope) -> Response:
    # The query's bytes need not be UTF-8; latin-1 passes each of them through.
    query = scope["query_string"].decode("latin-1")
    return RedirectResponse("/login?next=" + quote(scope["path"] + (f"?{query}" if query else "")), 303)


def _answer(error: Refused, scope: Scope) -> Response:
    return problem(
        error.status,
        error.message,
        code=error.code,
        hint=error.hint,
        request_id=scope.get(REQUEST_ID, ""),
        headers=error.headers or None,
    )
