"""Requests that are refused cost others nothing: their rows are gathered, bounded, and what is beyond is counted."""

import asyncio
import threading
from concurrent.futures import wait
from pathlib import Path
from typing import Any

import pytest
from control_plane import Stage, no_pause, stage
from test_api_audit import told
from test_api_stalls import Request

from ringleader_api.edge import guard
from ringleader_api.edge.rate import Allowance
from ringleader_api.edge.refusals import PER_MINUTE, Refusals
from ringleader_api.edge.request_turns import AT_ONCE
from ringleader_api.store.audit import AuditedAction

HANG_S = 30


@pytest.fixture
def here(tmp_path: Path) -> Stage:
    return stage(tmp_path)


def deed(here: Stage, who: str, path: str = "/x") -> AuditedAction:
    return AuditedAction(here.time(), who, None, "POST", path, "192.0.2.1", "r")


def refusals(here: Stage, clock: list[float]) -> Refusals:
    return Refusals(here.control.store, here.time, lambda: clock[0])


async def answered(app: Any, method: str, path: str, token: str) -> int:
    one = Request(method, path, token, length=0)
    await app(one.scope, one.receive, one.send)
    return int(one.told[0]["status"])


def test_a_flood_of_refusals_leaves_so_many_rows_and_their_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = stage(tmp_path, pause=no_pause)
    monkeypatch.setattr(here.control.refusals, "_rows", Allowance(1, PER_MINUTE, lambda: 0.0))
    nobody = here.user("nobody")
    before, version = told(here), here.control.store.version
    answers = [
        nobody.post("/api/v1/projects", json={"name": "x"}).status_code for _ in range(PER_MINUTE + 40)
    ]
    assert set(answers) == {403}
    assert here.control.store.version - version <= PER_MINUTE + 1, "the note of the token's use is one"
    here.control.refusals.store_counts()
    new = told(here)[len(before) :]
    assert [row[-1] for row in new] == ["403"] * PER_MINUTE + ["refused"]
    assert (new[-1][0], new[-1][3]) == ("nobody", "40 more requests")
    here.control.refusals.store_counts()
    assert len(told(here)) == len(before) + PER_MINUTE + 1, "counted once"


def test_who_is_refused_again_and_again_is_answered_later_and_nobody_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[float] = []

    async def later(seconds: float) -> None:
        waited.append(seconds)

    here = stage(tmp_path, pause=later)
    monkeypatch.setattr(here.control.refusals, "_rows", Allowance(1, PER_MINUTE, lambda: 0.0))
    nobody, ada = here.user("nobody"), here.user("ada")
    while here.control.refusals._rows.take("nobody") == 0:
        pass
    nobody.post("/api/v1/projects", json={"name": "x"})
    nobody.get("/api/v1/me")
    nobody.post("/api/v1/tokens", json={"name": "right"})
    ada.post("/api/v1/projects", json={"name": "x"})
    here.client.post("/api/v1/projects", json={"name": "y"})
    assert waited == [guard.LATER_S]


def test_of_a_crowd_that_is_refused_again_and_again_a_few_wait_at_a_time_and_nobody_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting, most, crowd, go = 0, 0, 5 * AT_ONCE, asyncio.Event()

    async def later(_: float) -> None:
        nonlocal waiting, most
        waiting += 1
        most = max(most, waiting)
        await go.wait()
        waiting -= 1

    here = stage(tmp_path, pause=later)
    here.user("nobody")
    app, token, other = here.client.app, here.token(user="nobody"), here.token()

    async def flood() -> tuple[list[int], int]:
        asked = [asyncio.create_task(answered(app, "POST", "/api/v1/projects", token)) for _ in range(crowd)]
        async with asyncio.timeout(HANG_S):
            while waiting < AT_ONCE:
                await asyncio.sleep(0)
            beside = await answered(app, "GET", "/api/v1/jobs", other)
            go.set()
            return [await one for one in asked], beside

    monkeypatch.setattr(here.control.refusals, "_rows", Allowance(1, 0, lambda: 0.0))
    assert asyncio.run(flood()) == ([403] * crowd, 200)
    assert most == AT_ONCE


def test_refusals_that_come_while_others_are_written_share_the_next_transaction(here: Stage) -> None:
    rows, begun, go = refusals(here, [0.0]), threading.Event(), threading.Event()

    def hold() -> None:
        with here.control.store.write():
            begun.set()
            assert go.wait(HANG_S)

    other = threading.Thread(target=hold)
    other.start()
    assert begun.wait(HANG_S)
    version = here.control.store.version
    written = [rows.record(deed(here, "nobody", f"/{n}"), "403") for n in range(50)]
    go.set()
    assert not wait(written, HANG_S).not_done
    other.join(HANG_S)
    assert here.control.store.version - version <= 3, "the other one, who was under way, and all the rest"
    assert {row[2] for row in told(here)} >= {f"/{n}" for n in range(50)}
    rows.close()


def test_each_user_has_rows_of_their_own_and_new_ones_each_minute(here: Stage) -> None:
    clock = [0.0]
    rows = refusals(here, clock)
    granted: dict[str, Any] = {}
    for who in ("ada", "ben"):
        granted[who] = sum(rows.has_row(deed(here, who)) for _ in range(2 * PER_MINUTE))
    clock[0] = 60.0
    granted["later"] = sum(rows.has_row(deed(here, "ada")) for _ in range(2 * PER_MINUTE))
    assert granted == {"ada": PER_MINUTE, "ben": PER_MINUTE, "later": PER_MINUTE}
    rows.close()
    counted = {(row[0], row[3]) for row in told(here) if row[-1] == "refused"}
    assert counted == {("ada", f"{2 * PER_MINUTE} more requests"), ("ben", f"{PER_MINUTE} more requests")}
