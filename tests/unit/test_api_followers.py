"""Followers cost what they follow, not what they are: counted in items read, pieces sent a turn, and places held."""

import asyncio
import re
import socket
import threading
from collections import Counter
from pathlib import Path

import anyio
import pytest
from anyio import fail_after, to_thread
from control_plane import Stage, event, line, stage
from test_api_protocol import listening, served, until

from ringleader.wire.views import LogLine
from ringleader_api import control
from ringleader_api.routes.streams.follow import LONG_BYTES, PIECE_BYTES, PING, items

HANG_S = 30
CROWD = 40


@pytest.fixture
def here(tmp_path: Path) -> Stage:
    return stage(tmp_path)


def seqs(piece: bytes) -> list[int]:
    return [int(found) for found in re.findall(rb"id: (\d+)", piece)]


def test_a_long_history_is_read_and_encoded_once_for_all_that_catch_up_with_it(
    here: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines, kept = 300, 10
    for name, most in (("KEPT", kept), ("CHUNK_BYTES", 4000)):
        monkeypatch.setattr(f"ringleader_api.routes.streams.channel.{name}", most)
    job_id = here.running()
    here.post(job_id, records=[line(n, "x" * 50) for n in range(1, lines + 1)])
    read: Counter[int] = Counter()

    def counted(job_id: str, after: int, limit: int) -> list[LogLine]:
        found = here.control.feeds.logs(job_id, after, limit)
        read.update(one.seq for one in found)
        return found

    async def follow() -> list[int]:
        seen: list[int] = []
        async for piece in items(here.control, job_id, 0, counted, lambda: True):
            seen += seqs(piece)
            if len(seen) >= lines:
                break
        return seen

    async def crowd() -> list[list[int]]:
        with fail_after(HANG_S):
            return await asyncio.gather(*(follow() for _ in range(CROWD)))

    assert anyio.run(crowd) == [list(range(1, lines + 1))] * CROWD
    assert set(read) == set(range(1, lines + 1))
    # Once as older lines; what the channel keeps is read by itself too, and so is what it lies behind.
    assert sum(read.values()) <= lines + 10 * kept


def test_the_end_of_a_job_is_looked_up_only_for_a_stream_that_is_resumed(here: Stage) -> None:
    job_id = here.submit()
    here.client.post(f"/api/v1/jobs/{job_id}/cancel")
    ended, asked = here.control.feeds.ended, Counter[str]()

    def counted(job_id: str) -> bool:
        asked[job_id] += 1
        return ended(job_id)

    here.control.feeds.ended = counted  # type: ignore[method-assign]
    feed, accept = f"/api/v1/jobs/{job_id}/events", {"Accept": "text/event-stream"}
    begun = here.client.get(feed, headers=accept)
    assert (begun.status_code, asked[job_id]) == (200, 0)
    resumed = here.client.get(feed, headers={**accept, "Last-Event-ID": str(seqs(begun.content)[-1])})
    assert (resumed.status_code, asked[job_id]) == (204, 1)


def test_a_follower_that_goes_takes_nothing_from_those_who_wait_for_the_same(
    here: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ringleader_api.routes.streams.channel.KEPT", 1)
    job_id = here.running()
    here.post(job_id, records=[line(n, "x") for n in range(1, 9)])

    async def follow() -> list[int]:
        async for piece in items(here.control, job_id, 0, here.control.feeds.logs, lambda: True):
            if piece != PING:
                return seqs(piece)
        return []

    release = threading.Event()

    async def crowd() -> list[int]:
        held = here.control.catching_up.submit(release.wait, HANG_S)
        first, second = asyncio.create_task(follow()), asyncio.create_task(follow())
        while not any(channel._older for channel in here.control.channels.values()):
            await asyncio.sleep(0.001)
        first.cancel()
        await asyncio.wait({first})
        release.set()
        with fail_after(HANG_S):
            await asyncio.wrap_future(held)
            return await second

    assert anyio.run(crowd)[:1] == [1]


def test_a_channel_that_ends_while_older_lines_are_read_leaves_no_error(
    here: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reads that are cancelled together end in the same turn of the event loop."""
    monkeypatch.setattr("ringleader_api.routes.streams.channel.KEPT", 1)
    job_id = here.running()
    here.post(job_id, records=[line(n, "x") for n in range(1, 9)])
    release, errors = threading.Event(), list[str]()

    async def follow() -> None:
        async for _ in items(here.control, job_id, 0, here.control.feeds.logs, lambda: True):
            pass

    async def ended() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, told: errors.append(told["message"]))
        held = here.control.catching_up.submit(release.wait, HANG_S)
        reads = [asyncio.create_task(follow())]
        while not any(channel._older for channel in here.control.channels.values()):
            await asyncio.sleep(0.001)
        (channel,) = here.control.channels.values()
        reads += [asyncio.create_task(channel.older(after)) for after in (1, 2)]
        while len(channel._older) < 3:
            await asyncio.sleep(0.001)
        channel.end()
        await asyncio.wait(reads, timeout=HANG_S)
        release.set()
        await asyncio.wrap_future(held)

    anyio.run(ended)
    assert errors == []


def test_an_event_reaches_all_followers_a_few_in_each_turn_of_the_event_loop(here: Stage) -> None:
    job_id = here.running()
    turn, sent = 0, Counter[int]()

    async def follow(got: asyncio.Semaphore) -> None:
        feed = items(here.control, job_id, 0, here.control.feeds.events, lambda: True)
        async for piece in feed:
            if b"recovered" in piece:
                sent[turn] += 1
                return
            got.release()

    def count() -> None:
        nonlocal turn
        turn += 1
        asyncio.get_running_loop().call_soon(count)

    async def crowd() -> None:
        got = asyncio.Semaphore(0)
        with fail_after(HANG_S):
            followers = [asyncio.create_task(follow(got)) for _ in range(CROWD)]
            for _ in followers:
                await got.acquire()
            count()
            await to_thread.run_sync(lambda: here.post(job_id, records=[event(1, "recovered")]))
            await asyncio.gather(*followers)

    anyio.run(crowd)
    assert sum(sent.values()) == CROWD
    assert max(sent.values()) <= control.SENT_A_TURN


def test_those_that_catch_up_are_sent_a_bounded_number_of_bytes_in_each_turn_of_the_event_loop(
    here: Stage,
) -> None:
    lines, long = 400, "x" * 1000
    job_id = here.running()
    here.post(job_id, records=[line(n, long) for n in range(1, lines + 1)])
    turn, sent = 0, Counter[int]()

    async def follow() -> list[int]:
        told = b""
        async for piece in items(here.control, job_id, 0, here.control.feeds.logs, lambda: True):
            sent[turn] += len(piece)
            told += piece
            if told.endswith(b"\n\n") and told.count(long.encode()) == lines:
                break
        return seqs(told)

    def count() -> None:
        nonlocal turn
        turn += 1
        asyncio.get_running_loop().call_soon(count)

    async def crowd() -> list[list[int]]:
        with fail_after(HANG_S):
            count()
            return await asyncio.gather(*(follow() for _ in range(8)))

    assert anyio.run(crowd) == [list(range(1, lines + 1))] * 8
    assert max(sent.values()) <= PIECE_BYTES + control.SENT_A_TURN * LONG_BYTES


def test_a_follower_that_reads_nothing_is_closed_and_leaves_nothing_behind(tmp_path: Path) -> None:
    here = stage(tmp_path)
    job_id = here.running()
    for first in range(1, 4000, 500):
        here.post(job_id, records=[line(n, "x" * 2000) for n in range(first, first + 500)])
    config = served(here)
    asked = (
        f"GET /api/v1/jobs/{job_id}/logs HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: text/event-stream\r\n"
        f"Authorization: Bearer {(tmp_path / 'token').read_text()}\r\n\r\n"
    )

    async def deaf() -> int:
        async with listening(config, head_s=HANG_S, read_s=0.2) as (port, among):
            with socket.create_connection(("127.0.0.1", port)) as one:
                one.sendall(asked.encode())
                await until(lambda: here.control.streams.open_of("admin") == 1)
                await until(lambda: len(among) == 0)
                await until(lambda: here.control.streams.open_of("admin") == 0)
                return len(here.control.channels)

    assert asyncio.run(deaf()) == 0
