"""Logging in: a token in, an HttpOnly cookie out. The form needs no script, so nothing of the page is public."""

import base64
import hashlib
import hmac
import html
import json
from datetime import timedelta
from urllib.parse import parse_qs, quote, urlsplit

from anyio import to_thread
from fastapi import APIRouter, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse

from ringleader_api.control import Control
from ringleader_api.edge.credentials import SESSION_LIFE
from ringleader_api.edge.requests import source
from ringleader_api.problems import Forbidden, NotFound, Refused, Unauthorized, Unprocessable
from ringleader_api.routes.dependencies import ByCaller, Here, refusals
from ringleader_api.services.users.signin import PENDING_LIFE, SignIn
from ringleader_api.services.users.signin import SESSION_LIFE as OIDC_LIFE

router = APIRouter(tags=["login"])
form = APIRouter(include_in_schema=False)

FIELDS = 8
LATER_S = 1.0
STYLE = """
:root{color-scheme:light dark;font:16px/1.5 system-ui,sans-serif}
body{display:grid;place-items:center;min-height:100vh;margin:0}
form{display:grid;gap:.75rem;width:min(22rem,calc(100vw - 3rem))}
h1{font-size:1.25rem;margin:0}
input,button{font:inherit;padding:.5rem .75rem;border-radius:.375rem;border:1px solid #8888}
button{cursor:pointer;background:#2457c5;color:#fff;border-color:#2457c5}
p{margin:0;font-size:.875rem}
.wrong{color:#c62828}
"""
PAGE = """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Log in · Ringleader</title>
<meta name="viewport" content="width=device-width,initial-scale=1"><link rel="icon" href="data:,">
<style>{style}</style></head><body><form method="post" action="/api/v1/login"><h1>Ringleader</h1>
<label for="token">Token</label>
<input id="token" name="token" type="password" autocomplete="current-password" required autofocus>
<input type="hidden" name="next" value="{next}">{wrong}<button type="submit">Log in</button>
{provider}
<p>The first token is in the file <code>token</code> in RINGLEADER_HOME, by default ~/.ringleader.</p>
</form></body></html>"""
_STYLE_HASH = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
CSP = (
    f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; img-src data:; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'"
)


_HEADERS = {"Content-Security-Policy": CSP, "Cache-Control": "no-store"}
ONWARDS = """<!doctype html><html lang="en"><meta charset="utf-8"><title>Ringleader</title>
<meta http-equiv="refresh" content="0;url={target}"><a href="{target}">Continue</a></html>"""


@form.get("/login")
def login_page(here: Here, next: str = "/") -> HTMLResponse:
    """Show the log-in form, which needs no script."""
    return _page(here, next)


@form.get("/login/oidc")
def to_provider(here: Here, request: Request, next: str = "/") -> Response:
    """Send the browser to the identity provider. The cookie binds the answer to this browser."""
    try:
        here.begun.spend(source(request.scope))
        url, state = _signin(here).begin(_inside(next))
    except Refused as error:
        return _page(here, next, error)
    response = RedirectResponse(url, 303)
    # Lax: the provider sends the browser back from another site, and a strict cookie would stay behind.
    response.set_cookie(
        here.credentials.login_cookie,
        state,
        max_age=int(PENDING_LIFE.total_seconds()),
        path="/login/oidc",
        httponly=True,
        samesite="lax",
        secure=here.settings.url.startswith("https://"),
    )
    return response


@form.get("/login/oidc/callback")
def from_provider(here: Here, request: Request, state: str = "", code: str = "") -> HTMLResponse:
    """Finish a log-in: the identity provider has sent the browser back with a code."""
    brought = request.cookies.get(here.credentials.login_cookie, "")
    try:
        signin = _signin(here)
        # Log-in forgery: a link with somebody else's code and state must not log this browser in as them.
        # An empty state would equal the cookie that is not there.
        if not state or not hmac.compare_digest(brought.encode(), state.encode()):
            raise Forbidden("the log-in was started in another browser.", code="login_refused")
        user, target = signin.finish(state, code)
    except Refused as error:
        return _page(here, "/", error)
    # No redirect: the strict cookie is sent only where a page of our own leads on.
    page = HTMLResponse(ONWARDS.format(target=html.escape(target, quote=True)), headers=_HEADERS)
    _set_cookie(page, here, here.credentials.log_in(user, None, OIDC_LIFE), OIDC_LIFE)
    page.delete_cookie(here.credentials.login_cookie, path="/login/oidc")
    return page


@router.post("/login", status_code=204, responses=refusals(413, 422), summary="Log in")
async def log_in(here: Here, request: Request) -> Response:
    """Exchange the token ({"token": …} or a form) for a session cookie."""
    if here.tried.take(source(request.scope)) > 0:  # before a stranger's body is read
        # Not refused: who shares an address with a flood gets in all the same.
        await request.app.state.pause(LATER_S)
    is_form = request.headers.get("content-type", "").startswith("application/x-www-form-urlencoded")
    token, target = _read(await request.body(), is_form)
    turn = await here.log_ins.begin(source(request.scope))
    try:
        who = await to_thread.run_sync(here.credentials.by_token, token)
    finally:
        turn.end()
    if who is None:
        here.wrong.spend(source(request.scope))
        if is_form:
            return _page(here, target, Unauthorized("This token is not valid."))
        raise Unauthorized("the token is not valid.", hint="The first token is in RINGLEADER_HOME/token.")
    value = await to_thread.run_sync(here.credentials.log_in, who.name, who.token)
    response = RedirectResponse(_inside(target), 303) if is_form else Response(status_code=204)
    _set_cookie(response, here, value)
    return response


@router.delete("/login", status_code=204, responses=refusals(), summary="Log out")
async def log_out(here: Here, _: ByCaller, request: Request) -> Response:
    """End this session."""
    await to_thread.run_sync(here.credentials.log_out, request.cookies.get(here.credentials.cookie, ""))
    response = Response(status_code=204)
    response.delete_cookie(here.credentials.cookie, httponly=True, samesite="strict")
    return response


def _read(body: bytes, is_form: bool) -> tuple[str, str]:
    """The token, and the path to go to next."""
    if is_form:
        try:
            fields = parse_qs(body.decode("utf-8", "replace"), max_num_fields=FIELDS)
        except ValueError:
            raise Unprocessable(f"the log-in form has more than {FIELDS} fields.", code="bad_login") from None
        return fields.get("token", [""])[0].strip(), fields.get("next", ["/"])[0]
    try:
        token = json.loads(body)["token"]
    except (ValueError, KeyError, TypeError, RecursionError):
        token = None
    if not isinstance(token, str):
        raise Unprocessable('the request body must be {"token": "…"}.', code="bad_login")
    return token.strip(), "/"


def _inside(target: str) -> str:
    """The path if it lies on this origin, else "/"."""
    # `//host` and `/\host` lead browsers to another site.
    return (
        target if target.startswith("/") and target[1:2] not in ("/", "\\") and target.isprintable() else "/"
    )


def _page(here: Control, target: str, wrong: Refused | None = None) -> HTMLResponse:
    warning = f'<p class="wrong" role="alert">{html.escape(wrong.message)}</p>' if wrong else ""
    inside = _inside(target)
    link = ""
    if here.signin is not None:
        name = html.escape(urlsplit(here.settings.oidc_issuer).netloc)
        link = f'<p><a href="/login/oidc?next={quote(inside, safe="")}">Log in through {name}</a></p>'
    text = PAGE.format(style=STYLE, next=html.escape(inside, quote=True), wrong=warning, provider=link)
    return HTMLResponse(text, wrong.status if wrong else 200, _HEADERS)


def _signin(here: Control) -> SignIn:
    if here.signin is None:
        raise NotFound("no identity provider is set up.", hint="Set RINGLEADER_OIDC_ISSUER.")
    return here.signin


def _set_cookie(response: Response, here: Control, value: str, life: timedelta = SESSION_LIFE) -> None:
    response.set_cookie(
        here.credentials.cookie,
        value,
        max_age=int(life.total_seconds()),
        httponly=True,
        samesite="strict",
        secure=here.settings.url.startswith("https://"),
    )
