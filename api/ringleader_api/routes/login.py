"""Logging in: a token in, an HttpOnly cookie out. The form needs no script, so nothing of the page is public."""

import base64
import hashlib
import html
import json
from urllib.parse import parse_qs

from anyio import to_thread
from fastapi import APIRouter, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse

from ringleader_api.control import Control
from ringleader_api.edge.credentials import SESSION_LIFE
from ringleader_api.edge.guard import source
from ringleader_api.problems import TooMany, Unauthorized, Unprocessable
from ringleader_api.routes.here import ByCaller, Here, refusals

router = APIRouter(tags=["login"])
form = APIRouter(include_in_schema=False)

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
<p>The token is in <code>token</code> in the folder RINGLEADER_HOME, by default ~/.ringleader.</p>
</form></body></html>"""
_STYLE_HASH = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
CSP = (
    f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; img-src data:; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'"
)


@form.get("/login")
def login_page(next: str = "/") -> HTMLResponse:
    """The form, without script."""
    return _page(next, wrong=False)


@router.post("/login", status_code=204, responses=refusals(413, 422))
async def log_in(here: Here, request: Request) -> Response:
    """Exchange the token ({"token": …} or a form) for a session cookie."""
    is_form = request.headers.get("content-type", "").startswith("application/x-www-form-urlencoded")
    token, target = _read(await request.body(), is_form)
    wait_s = here.logins.take(source(request.scope))
    if wait_s > 0:
        raise TooMany(wait_s)
    who = await to_thread.run_sync(here.credentials.by_token, token)
    if who is None:
        if is_form:
            return _page(target, wrong=True)
        raise Unauthorized("the token is not valid.", hint="The first one is in RINGLEADER_HOME/token.")
    value = await to_thread.run_sync(here.credentials.log_in, who.name, who.token)
    response = RedirectResponse(_inside(target), 303) if is_form else Response(status_code=204)
    _set_cookie(response, here, value)
    return response


@router.delete("/login", status_code=204, responses=refusals())
async def log_out(here: Here, _: ByCaller, request: Request) -> Response:
    """End this session."""
    await to_thread.run_sync(here.credentials.log_out, request.cookies.get(here.credentials.cookie, ""))
    response = Response(status_code=204)
    response.delete_cookie(here.credentials.cookie, httponly=True, samesite="strict")
    return response


def _read(body: bytes, is_form: bool) -> tuple[str, str]:
    """(token, where to go next)."""
    if is_form:
        fields = parse_qs(body.decode("utf-8", "replace"))
        return fields.get("token", [""])[0].strip(), fields.get("next", ["/"])[0]
    try:
        token = json.loads(body)["token"]
    except (ValueError, KeyError, TypeError):
        token = None
    if not isinstance(token, str):
        raise Unprocessable('the body is {"token": "…"}.', code="bad_login")
    return token.strip(), "/"


def _inside(target: str) -> str:
    """Only paths of this origin."""
    return (
        target if target.startswith("/") and target[1:2] not in ("/", "\\") and target.isprintable() else "/"
    )


def _page(target: str, *, wrong: bool) -> HTMLResponse:
    warning = '<p class="wrong" role="alert">This token is not valid.</p>' if wrong else ""
    text = PAGE.format(style=STYLE, next=html.escape(_inside(target), quote=True), wrong=warning)
    return HTMLResponse(
        text, 401 if wrong else 200, {"Content-Security-Policy": CSP, "Cache-Control": "no-store"}
    )


def _set_cookie(response: Response, here: Control, value: str) -> None:
    response.set_cookie(
        here.credentials.cookie,
        value,
        max_age=int(SESSION_LIFE.total_seconds()),
        httponly=True,
        samesite="strict",
        secure=here.settings.url.startswith("https://"),
    )
