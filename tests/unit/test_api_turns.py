"""Who asks much at once waits for themselves: others find threads, and the interpreter, free."""

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest
from control_plane import Stage, stage
from waiting import wait_for

from ringleader_api.edge.request_turns import AT_ONCE, RequestTurn, RequestTurns

HANG_S = 30


@pytest.fixture
def here(tmp_path: Path) -> Stage:
    return stage(tmp_path)


def test_of_one_key_so_many_go_at_once_and_the_others_in_the_order_in_which_they_came() -> None:
    async def taken() -> tuple[list[int], bool]:
        turns, order = RequestTurns(at_once=2), []
        held = [await turns.begin("ada") for _ in range(2)]

        async def ask(number: int) -> None:
            turn = await turns.begin("ada")
            order.append(number)
            turn.end()
            turn.end()

        asked = [asyncio.create_task(ask(number)) for number in range(5)]
        (await turns.begin("ben")).end()
        assert order == []
        asked[1].cancel()
        held[0].end()
        await asyncio.wait(asked)
        again = [await asyncio.wait_for(turns.begin("ada"), HANG_S)]
        held[1].end()
        again[0].end()
        return order, bool(turns._taken or turns._waiting)

    assert asyncio.run(taken()) == ([0, 2, 3, 4], False)


def test_a_turn_is_over_when_the_answer_begins_or_the_body_is_asked_for() -> None:
    ended: list[str] = []

    async def nothing(*_: Any) -> dict[str, Any]:
        return {}

    async def used() -> None:
        reading, answering = (
            RequestTurn(lambda: ended.append("read")),
            RequestTurn(lambda: ended.append("answered")),
        )
        await reading.reading(nothing)()
        await reading.answering(nothing)({})  # type: ignore[arg-type]
        await answering.answering(nothing)({})  # type: ignore[arg-type]

    asyncio.run(used())
    assert ended == ["read", "answered"]


def test_a_crowd_of_requests_of_one_user_leaves_threads_to_others(here: Stage) -> None:
    job_id = here.submit()
    ada = here.user("ada", default="viewer")
    view, go = here.control.jobs.view, threading.Event()
    within: list[str] = []

    def slow(job_id: str) -> Any:
        within.append(job_id)
        assert go.wait(HANG_S)
        return view(job_id)

    here.control.jobs.view = slow  # type: ignore[method-assign]
    found: list[int] = []
    crowd = [
        threading.Thread(target=lambda: found.append(ada.get(f"/api/v1/jobs/{job_id}").status_code))
        for _ in range(3 * AT_ONCE)
    ]
    for one in crowd:
        one.start()
    wait_for("as many as may at once", lambda: len(within) == AT_ONCE)
    assert here.client.get("/api/v1/jobs").status_code == 200
    assert len(within) == AT_ONCE
    go.set()
    for one in crowd:
        one.join(HANG_S)
    assert found == [200] * 3 * AT_ONCE
