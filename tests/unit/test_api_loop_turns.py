"""A turn of the event loop does a bounded amount of work, however many requests and followers there are: counted."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from control_plane import event, line, stage
from test_api_protocol import Wire
from uvicorn.config import Config
from uvicorn.server import ServerState

from ringleader_api.edge.connections import Bounds, Connections
from ringleader_api.edge.head_turns import HeadTurns, credential_in
from ringleader_api.edge.protocol import Http
from ringleader_api.routes.streams.channel import followed
from ringleader_api.routes.streams.news import WOKEN_A_TURN, News

HANG_S, CROWD, A_TURN = 30, 100, 8


class LoopTurns:
    """Counts the turns of the running event loop until all is done."""

    def __init__(self) -> None:
        self.now = 0
        self.seen: Counter[int] = Counter()

    def note(self) -> None:
        self.seen[self.now] += 1

    async def until(self, done: Callable[[], bool]) -> None:
        async with asyncio.timeout(HANG_S):
            while not done():
                await asyncio.sleep(0)
                self.now += 1


def asks(token: str) -> bytes:
    return f"GET / HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {token}\r\n\r\n".encode()


def test_requests_that_arrive_together_begin_few_in_a_turn_and_in_turn_by_credential() -> None:
    begun: list[tuple[bytes, int]] = []

    async def arrived() -> LoopTurns:
        turns, heads, among = LoopTurns(), HeadTurns(A_TURN), Connections(Bounds.within(4096))

        async def app(scope: dict[str, Any], receive: Any, send: Callable[[Any], Awaitable[None]]) -> None:
            turns.note()
            begun.append((dict(scope["headers"])[b"authorization"], turns.now))
            await send({"type": "http.response.start", "status": 204, "headers": []})
            await send({"type": "http.response.body", "body": b""})

        config = Config(app, log_config=None)  # type: ignore[arg-type]
        config.load()
        wires = []
        for token in [*["crowd"] * CROWD, "other"]:
            wires.append(Wire())
            one = Http(config, ServerState(), {}, among=among, heads=heads)
            one.connection_made(wires[-1])
            sent = asks(token)
            one.data_received(sent[:-2])
            one.data_received(sent[-2:])
        await turns.until(lambda: len(begun) > CROWD)
        assert all(wire.sent.startswith(b"HTTP/1.1 204") for wire in wires)
        return turns

    turns = asyncio.run(arrived())
    assert max(turns.seen.values()) <= A_TURN
    (other,) = (turn for token, turn in begun if token == b"Bearer other")
    ahead = sum(turn < other for _, turn in begun)
    assert ahead <= 3 * A_TURN, "it does not wait until the crowd has been begun"


def test_one_that_has_gone_and_one_that_fails_cost_the_others_no_place() -> None:
    begun: list[int] = []

    async def waited() -> None:
        told: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context["exception"]))
        turns, heads = LoopTurns(), HeadTurns(1)
        assert heads.has_room()
        assert not heads.has_room()

        def fails() -> None:
            raise ValueError

        heads.wait("a", fails)
        for number in range(3):
            heads.wait("a", lambda number=number: begun.append(number))
        assert not heads.has_room(), "those who wait come first"
        await turns.until(lambda: len(begun) == 3)
        await turns.until(heads.has_room)
        assert len(told) == 1

    asyncio.run(waited())
    assert begun == [0, 1, 2]


@pytest.mark.parametrize(
    ("sent", "found"),
    [(asks("t"), b" Bearer t"), (b"GET / HTTP/1.1\r\ncookie:a=1\r\n\r\n", b"a=1"), (b"GET / HTTP", b"")],
)
def test_the_credential_is_found_as_it_was_sent(sent: bytes, found: bytes) -> None:
    assert credential_in(sent) == found


def test_news_wakes_few_in_a_turn_and_all_in_the_end() -> None:
    async def told() -> tuple[int, int]:
        turns, news = LoopTurns(), News()

        async def waits() -> None:
            await news.wait()
            turns.note()

        waiting = [asyncio.create_task(waits()) for _ in range(CROWD)]
        await asyncio.sleep(0)
        waiting[0].cancel()
        await asyncio.sleep(0)
        news.come()
        await turns.until(lambda: all(one.done() for one in waiting))
        await asyncio.wait_for(news.wait(), HANG_S)
        return sum(turns.seen.values()), max(turns.seen.values())

    assert asyncio.run(told()) == (CROWD - 1, WOKEN_A_TURN)


@pytest.mark.parametrize("older", [False, True], ids=["new items", "older items"])
def test_followers_that_wait_for_the_same_are_woken_few_in_a_turn(
    older: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ringleader_api.routes.streams.news.WOKEN_A_TURN", A_TURN)
    here = stage(tmp_path)
    job_id = here.running()
    here.post(job_id, records=[line(1, "x"), event(1, "recovered")])

    async def woken() -> Counter[int]:
        turns = LoopTurns()
        async with followed(here.control, job_id, 0, here.control.feeds.logs) as channel:

            async def waits() -> None:
                await (channel.older(0) if older else channel.wait(HANG_S))
                turns.note()

            waiting = [asyncio.create_task(waits()) for _ in range(CROWD)]
            await turns.until(lambda: all(one.done() for one in waiting))
            assert [one.exception() for one in waiting] == [None] * CROWD
        return turns.seen

    seen = asyncio.run(woken())
    assert sum(seen.values()) == CROWD
    assert max(seen.values()) <= A_TURN + 1, "and the one that comes when all has been told"
