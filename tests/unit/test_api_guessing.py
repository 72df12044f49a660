"""Wrong credentials cost whoever shows them: few look-ups at once, answers that come later, few lines in the log."""

import asyncio
import io
import json
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from control_plane import Stage, stage
from test_api_stalls import Request

from ringleader_api.edge import guard
from ringleader_api.edge.request_turns import AT_ONCE, KnownCredentials
from ringleader_api.edge.requests import LINES_AT_ONCE
from ringleader_api.rights import Caller

HANG_S = 30
FLOOD = 5 * AT_ONCE


@pytest.fixture
def here(tmp_path: Path) -> Stage:
    return stage(tmp_path)


def token_of(here: Stage) -> str:
    return here.client.headers["Authorization"].removeprefix("Bearer ")


class Ask(Request):
    """A request of /me, or a log-in with this token."""

    def __init__(self, token: str, path: str = "/api/v1/me", cookie: str = "") -> None:
        is_log_in = path.endswith("/login")
        super().__init__("POST" if is_log_in else "GET", path, "" if is_log_in else token, length=0)
        self.scope["headers"] += [(b"cookie", cookie.encode())] if cookie else []
        self._body = json.dumps({"token": token}).encode()

    async def receive(self) -> dict[str, Any]:
        return {"type": "http.request", "body": self._body, "more_body": False}

    async def status(self, app: Any) -> int:
        await app(self.scope, self.receive, self.send)
        return int(self.told[0]["status"])


@pytest.mark.parametrize("path", ["/api/v1/me", "/api/v1/login"])
@pytest.mark.usefixtures("no_refill")
def test_wrong_tokens_of_one_address_are_looked_up_a_few_at_a_time_and_known_ones_pass(
    here: Stage, path: str
) -> None:
    app, right = here.client.app, token_of(here)
    look_up, go = here.control.credentials.by_token, threading.Event()
    within: set[str] = set()
    most = 0

    def slow(token: str) -> Caller | None:
        nonlocal most
        if token != right:
            within.add(token)
            most = max(most, len(within))
            assert go.wait(HANG_S)
            within.discard(token)
        return look_up(token)

    async def flood() -> tuple[int, Counter[int]]:
        assert await Ask(right).status(app) == 200
        here.control.credentials.by_token = slow  # type: ignore[method-assign]
        asked = [asyncio.create_task(Ask(f"wrong {n}", path).status(app)) for n in range(FLOOD)]
        async with asyncio.timeout(HANG_S):
            while len(within) < AT_ONCE:
                await asyncio.sleep(0.001)
            beside = await Ask(right).status(app)
            go.set()
            return beside, Counter([await one for one in asked])

    beside, answers = asyncio.run(flood())
    assert (beside, most, answers.keys() <= {401, 429}) == (200, AT_ONCE, True)


@pytest.mark.parametrize("kind", ["tokens", "sessions"])
@pytest.mark.usefixtures("no_refill")
def test_who_shows_wrong_credentials_again_and_again_waits_for_each_refusal_and_nobody_else_does(
    tmp_path: Path, kind: str
) -> None:
    here = stage(tmp_path, pause=lambda _: asyncio.sleep(HANG_S))
    app, at_once = here.client.app, int(guard.WRONG_AT_ONCE)

    def wrong(n: int) -> Ask:
        cookie = f"{here.control.credentials.cookie}=wrong{n}"
        return Ask(f"wrong {n}") if kind == "tokens" else Ask("", cookie=cookie)

    async def flood() -> tuple[Counter[int], int, list[int]]:
        first = Counter([await wrong(n).status(app) for n in range(at_once)])
        again = [asyncio.create_task(wrong(at_once + n).status(app)) for n in range(FLOOD)]
        async with asyncio.timeout(HANG_S / 2):
            # Shown for the first time, from the same address, with more refusals due than are looked up at once.
            beside = [await Ask(token).status(app) for token in (here.token(), token_of(here))]
        held = sum(not one.done() for one in again)
        for one in again:
            one.cancel()
        await asyncio.gather(*again, return_exceptions=True)
        return first, held, beside

    assert asyncio.run(flood()) == (Counter({401: at_once}), FLOOD, [200, 200])


def test_a_request_without_a_credential_takes_no_thread(here: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    class NoThreads:
        @staticmethod
        def run_sync(*_: object) -> None:
            raise AssertionError("a thread for nothing")

    monkeypatch.setattr(guard, "to_thread", NoThreads)
    app = here.client.app
    assert asyncio.run(Ask("").status(app)) == 401
    assert asyncio.run(Ask("", cookie="theme=dark").status(app)) == 401


def test_a_flood_of_refused_requests_writes_a_few_lines(here: Stage, logged: io.StringIO) -> None:
    async def flood() -> None:
        for _ in range(3 * int(LINES_AT_ONCE)):
            request = Request("POST", "/api/v1/jobs")
            await here.client.app(request.scope, request.receive, request.send)  # type: ignore[operator]

    asyncio.run(flood())
    lines = [json.loads(row)["event"] for row in logged.getvalue().splitlines()]
    assert LINES_AT_ONCE <= lines.count("http.served") < 2 * LINES_AT_ONCE
    here.submit()
    last = json.loads(logged.getvalue().splitlines()[-1])
    assert (last["event"], last["status"]) == ("http.served", 201)


def test_known_credentials_are_bounded_and_forgotten_once_they_are_wrong() -> None:
    known = KnownCredentials(most=2)
    for shown in ("a", "b", "a", "c"):
        known.note(shown)
    assert [shown in known for shown in "abc"] == [True, False, True]
    known.forget("a")
    known.forget("never seen")
    assert [shown in known for shown in "abc"] == [False, False, True]
