"""Many followers of one job's events: the latest arrival of any event, and the memory that they take."""

import asyncio
import json
import re
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from ringleader.bench.broken import BrokenPromise, PeerFailed
from ringleader.bench.control_plane.crowd import KeptConnection, Plane

POSTS, EACH, EVERY_S = 40, 5, 0.25
START_S, DEADLINE_S = 60.0, 60.0
_ID = re.compile(rb"(?:^|\n)id: (\d+)\r?\n")
_RISE = re.compile(r"VmRSS:\s+(\d+) kB")


@dataclass(frozen=True, slots=True)
class Lateness:
    """`latest_s`: the longest delay of any event at any follower; `grown_bytes`: the server's growth at its peak."""

    events: int
    latest_s: float
    grown_bytes: float


class _Follower(asyncio.Protocol):
    """A follower that notes when it first saw each event; an id may be cut in two by the network."""

    def __init__(self, request: bytes) -> None:
        self._request = request
        self._rest = b""
        self.seen: dict[int, float] = {}

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        now = time.monotonic()
        text = self._rest + data
        end = 0
        for found in _ID.finditer(text):
            self.seen.setdefault(int(found[1]), now)
            # The last line feed stays: it may be the one before the next id.
            end = found.end() - 1
        # An id that was cut is shorter than 64 bytes; a longer rest would be searched again with every packet.
        self._rest = text[max(end, len(text) - 64) :]


def lateness(server: Plane, home: Path, job_id: str, followers: int) -> Lateness:
    """Post events as the job's supervisor would, to a job that everybody follows.

    Raises:
        BrokenPromise: somebody missed an event.
    """
    launched = supervisor(home, job_id)
    return asyncio.run(_measure(server, job_id, launched["token"], followers))


def supervisor(home: Path, job_id: str) -> dict[str, str]:
    """What the job's supervisor was started with. Raises PeerFailed where it is not."""
    file = home.parent / "cluster" / "alive" / f"{job_id}.1"
    give_up_at = time.monotonic() + START_S
    while not file.exists():
        if time.monotonic() > give_up_at:
            raise PeerFailed("the job was not started.")
        time.sleep(0.02)
    told: dict[str, str] = json.loads(file.read_text())
    return told


async def _measure(server: Plane, job_id: str, token: str, followers: int) -> Lateness:
    before = _resident(server)
    address = urlsplit(server.url)
    request = (
        f"GET /api/v1/jobs/{job_id}/events HTTP/1.1\r\nHost: {address.netloc}\r\n"
        f"Authorization: Bearer {server.token}\r\nAccept: text/event-stream\r\n\r\n"
    ).encode()
    loop = asyncio.get_running_loop()
    assert address.hostname is not None
    assert address.port is not None
    crowd: list[_Follower] = []
    for _ in range(followers):
        _, one = await loop.create_connection(lambda: _Follower(request), address.hostname, address.port)
        crowd.append(one)
    await _until(lambda: all(one.seen for one in crowd), "not every follower was served")
    # Events of the job's start have the lower numbers; posted ones follow.
    known = max(max(one.seen) for one in crowd)
    posted: list[float] = []
    peak = [before]
    # A blocking call would keep this loop from noting when events arrive.
    posting = threading.Thread(target=_post, args=(server, job_id, token, posted, peak), daemon=True)
    posting.start()
    last = known + POSTS * EACH
    await _until(
        lambda: not posting.is_alive() and all(last in one.seen for one in crowd), "an event was missed"
    )
    late = [_latest(one, known, posted) for one in crowd]
    return Lateness(POSTS * EACH, max(late), max(0.0, max(peak) - before))


def _post(server: Plane, job_id: str, token: str, posted: list[float], peak: list[float]) -> None:
    body = {
        "generation": 1,
        "world_size": 1,
        "progress": {"step": 0, "total_steps": 9, "epoch": 0},
        "workers": [],
    }
    with KeptConnection(server.url, token) as caller:
        for number in range(POSTS):
            records = [_event(number * EACH + n + 1) for n in range(EACH)]
            posted.append(time.monotonic())
            status, told = caller.call(
                "POST",
                f"/api/v1/jobs/{job_id}/ingest",
                {"attempt": 1, "records": records, "status": {"state": "starting", **body}},
            )
            if status != 200:
                raise PeerFailed(f"ingest answered {status}: {told}")
            peak.append(_resident(server))
            time.sleep(EVERY_S)


def _event(seq: int) -> dict[str, object]:
    data = {"workers": ["w0", "w1", "w2"], "cause": "bench", "step": seq}
    at = "2026-11-21T12:00:00Z"
    return {
        "stream": "events",
        "seq": seq,
        "at": at,
        "generation": 1,
        "type": "generation.formed",
        "data": data,
    }


def _latest(one: _Follower, known: int, posted: Sequence[float]) -> float:
    late = [
        one.seen[known + n + 1] - posted[n // EACH] for n in range(POSTS * EACH) if known + n + 1 in one.seen
    ]
    if len(late) != POSTS * EACH:
        raise BrokenPromise(f"a follower got {len(late)} of {POSTS * EACH} events.")
    return max(late)


async def _until(condition: object, what: str) -> None:
    assert callable(condition)
    give_up_at = time.monotonic() + DEADLINE_S
    while not condition():
        if time.monotonic() > give_up_at:
            raise BrokenPromise(f"{what} within {DEADLINE_S:g} s.")
        await asyncio.sleep(0.02)


def _resident(server: Plane) -> float:
    found = _RISE.search(Path(f"/proc/{server.child.pid}/status").read_text())
    assert found is not None
    return float(found[1]) * 1024
