"""What is no HTTP, or too much of it, is refused as a problem before any layer of ours has seen it; who sends nothing
is not waited for, and takes no place of others."""

import asyncio
import io
import json
import resource
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path

import pytest
import uvloop
from control_plane import Stage, event, stage
from uvicorn.config import Config
from uvicorn.server import ServerState

from ringleader.wire.views import Problem
from ringleader_api.__main__ import ACCEPTED_A_TURN, accepting, config_of
from ringleader_api.edge import body_limit, protocol
from ringleader_api.edge.chunks import FREE, LEAST_BYTES
from ringleader_api.edge.connections import Bounds, Connections
from ringleader_api.edge.head_turns import HeadTurns
from ringleader_api.edge.protocol import UNSENT_BYTES, Http
from ringleader_api.problems import TooMany
from ringleader_api.settings import Settings

FEW = Bounds(together=12, strangers=6, of_address=4, streams=3, of_user=2)
HANG_S = 30
EVENT = event(1, "recovered")


class Wire(asyncio.Transport):
    """Keeps what is sent."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 5000), "sockname": ("127.0.0.1", 80)})
        self.sent = b""
        self.closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.sent += data

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def get_write_buffer_size(self) -> int:
        return 0

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed


def served(here: Stage) -> Config:
    config = config_of(here.client.app, Settings(home=here.home))  # type: ignore[arg-type]
    config.load()
    return config


@pytest.mark.parametrize(
    ("sent", "status", "code"),
    [
        (b"nonsense\r\n\r\n", 400, "bad_request"),
        (b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"a" * 70_000, 431, "request_header_fields_too_large"),
    ],
    ids=["no HTTP", "long headers"],
)
def test_what_is_no_http_is_refused_as_a_problem(tmp_path: Path, sent: bytes, status: int, code: str) -> None:
    config = served(stage(tmp_path))

    async def answered() -> Wire:
        serve = config.http_protocol_class
        wire, protocol = Wire(), serve(config, ServerState(), {})  # type: ignore[call-arg]
        protocol.connection_made(wire)
        protocol.data_received(sent)
        return wire

    wire = asyncio.run(answered())
    head, _, body = wire.sent.partition(b"\r\n\r\n")
    problem = Problem.model_validate_json(body)
    assert (head.startswith(b"HTTP/1.1 %d " % status), wire.closed) == (True, True)
    assert (problem.status, problem.code, bool(problem.hint)) == (status, code, True)
    assert b"content-type: application/problem+json" in head.lower()
    assert f"x-request-id: {problem.request_id}".encode() in head.lower()


class Visit:
    """A connection that is only counted."""

    def __init__(self, address: str, known: bool = False, holder: str = "") -> None:
        self.address = address
        self.known = known
        self._holder = holder or f"user {id(self)}"
        self.gone = False

    @property
    def holder(self) -> str:
        return self._holder if self.known else ""

    def send_away(self) -> None:
        self.gone = True


def test_who_waited_longest_without_a_credential_goes_and_the_newest_never() -> None:
    among = Connections(FEW)
    flood = [Visit("evil") for _ in range(20)]
    user = Visit("office")
    for one in (*flood[:10], user, *flood[10:]):
        among.enter(one)
    assert [one.gone for one in flood] == [True] * 16 + [False] * 4
    assert not user.gone
    others = [Visit(f"10.0.0.{n}") for n in range(20)]
    for one in others:
        among.enter(one)
    assert [one.gone for one in others] == [True] * 14 + [False] * 6
    assert len(among) == 6


def test_who_has_shown_a_credential_makes_room_last_and_only_while_idle() -> None:
    among = Connections(FEW)
    known = [Visit("office", known=True) for _ in range(FEW.together)]
    for one in known:
        among.enter(one)
    stranger, late = Visit("evil"), Visit("office")
    among.enter(stranger)
    assert stranger.gone, "all others are at work"
    among.rest(known[3])
    among.enter(late)
    assert [one.gone for one in known] == [n == 3 for n in range(FEW.together)]
    among.rest(known[5])
    among.work(known[5])
    among.enter(Visit("evil"))
    assert (late.gone, known[5].gone) == (True, False)
    for one in known:
        among.leave(one)
    assert len(among) == 1


def test_a_user_who_is_at_work_on_all_connections_keeps_nobody_else_out() -> None:
    among = Connections(FEW)
    dribbled = [Visit("office", known=True, holder="mallory") for _ in range(FEW.together)]
    others = [Visit("office", known=True, holder=name) for name in ("ada", "ben")]
    for one in (*dribbled, *others):
        among.enter(one)
    assert [one.gone for one in others] == [False, False]
    assert [one.gone for one in dribbled] == [n < 2 for n in range(FEW.together)]


@asynccontextmanager
async def listening(
    config: Config, head_s: float, bounds: Bounds = FEW, read_s: float = HANG_S
) -> AsyncIterator[tuple[int, Connections]]:
    """A server of this process; its port."""
    among = Connections(bounds)
    made = partial(
        Http, config, ServerState(), {}, among=among, heads=HeadTurns(), head_s=head_s, read_s=read_s
    )
    server = await asyncio.get_running_loop().create_server(made, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1], among


async def dial(port: int, sent: bytes = b"") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(sent)
    await writer.drain()
    return reader, writer


async def until_closed(reader: asyncio.StreamReader) -> bytes:
    """What came until the other end closed."""
    told = b""
    async with asyncio.timeout(HANG_S):
        try:
            while piece := await reader.read(1 << 16):
                told += piece
        except ConnectionResetError:
            pass
    return told


HEAD = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n"
UNREAD = b"POST /api/v1/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100000\r\n\r\n{"


@pytest.mark.parametrize(
    ("sent", "answers"),
    [(b"", 0), (b"GET", 0), (HEAD, 0), (HEAD + b"\r\n" + HEAD, 1), (UNREAD, 1)],
    ids=["nothing", "a method", "half a head", "half a second head", "half a body behind the refusal"],
)
def test_a_connection_that_sends_no_whole_request_is_closed_however_it_dribbles(
    tmp_path: Path, sent: bytes, answers: int
) -> None:
    config = served(stage(tmp_path))

    async def held() -> bytes:
        async with listening(config, head_s=0.2) as (port, among):
            reader, writer = await dial(port, sent)
            closed = asyncio.ensure_future(until_closed(reader))
            while not closed.done():  # each byte would begin uvicorn's own deadline anew
                writer.write(b"x")
                await asyncio.wait({closed}, timeout=0.01)
            writer.close()
            assert len(among) == 0
            return closed.result()

    assert asyncio.run(held()).count(b"HTTP/1.1 ") == answers


def test_an_answer_that_takes_longer_than_a_head_may_is_given(tmp_path: Path) -> None:
    release = asyncio.Event()

    async def slow(
        scope: object, receive: object, send: Callable[[dict[str, object]], Awaitable[None]]
    ) -> None:
        await release.wait()
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    config = Config(slow, log_config=None)  # type: ignore[arg-type]
    config.load()

    async def asked() -> bytes:
        async with listening(config, head_s=0.02) as (port, _):
            reader, _writer = await dial(port, HEAD + b"Connection: close\r\n\r\n")
            late = await asyncio.open_connection("127.0.0.1", port)
            await until_closed(late[0])  # one that came later was given up meanwhile
            release.set()
            return await until_closed(reader)

    assert asyncio.run(asked()).startswith(b"HTTP/1.1 204")


LARGE = 8 << 20
GET = b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n%s\r\n"


def answering(pieces: int, each: int, left: list[str]) -> Config:
    """An application that answers with so many pieces of so many bytes, and notes when a request is over."""

    async def answer(
        scope: dict[str, object],
        receive: Callable[[], Awaitable[dict[str, object]]],
        send: Callable[[dict[str, object]], Awaitable[None]],
    ) -> None:
        length = [(b"content-length", b"%d" % (pieces * each))]
        try:
            await send({"type": "http.response.start", "status": 200, "headers": length})
            for n in range(1, pieces + 1):
                await send({"type": "http.response.body", "body": b"x" * each, "more_body": n < pieces})
        finally:
            left.append("over")

    config = Config(answer, log_config=None)  # type: ignore[arg-type]
    config.load()
    return config


@pytest.mark.parametrize(("pieces", "close"), [(1, b""), (1, b"Connection: close\r\n"), (128, b"")])
def test_who_does_not_read_the_answer_loses_the_connection(pieces: int, close: bytes) -> None:
    left: list[str] = []
    config = answering(pieces, LARGE // pieces, left)

    async def held() -> int:
        async with listening(config, head_s=0.02, read_s=0.1) as (port, among):
            with socket.create_connection(("127.0.0.1", port)) as deaf:
                deaf.sendall(GET % close)
                await until(lambda: len(among) == 1)
                await until(lambda: len(among) == 0)
                await until(lambda: len(left) == 1)
                return len(among)

    assert asyncio.run(held()) == 0


def test_whoever_sends_on_without_reading_the_answer_loses_the_connection_too() -> None:
    left: list[str] = []
    config = answering(128, LARGE // 128, left)

    async def held() -> int:
        async with listening(config, head_s=HANG_S, read_s=0.2) as (port, among):
            with socket.create_connection(("127.0.0.1", port)) as deaf:
                deaf.sendall(GET % b"")
                await until(lambda: len(among) == 1)
                (one,) = among._there
                assert isinstance(one, Http)
                await until(lambda: one.flow is not None and one.flow.write_paused)
                deaf.sendall(b"G")
                await until(lambda: len(among) == 0)
                await until(lambda: len(left) == 1)
                return len(among)

    assert asyncio.run(held()) == 0


@pytest.mark.parametrize(("pieces", "close"), [(1, b""), (1, b"Connection: close\r\n"), (128, b"")])
def test_who_reads_slowly_gets_the_whole_answer_however_long_it_takes(pieces: int, close: bytes) -> None:
    config = answering(pieces, LARGE // pieces, [])
    read_s = 0.5

    async def read() -> tuple[int, float]:
        got, loop = 0, asyncio.get_running_loop()
        async with listening(config, head_s=0.02, read_s=read_s) as (port, _):
            with socket.create_connection(("127.0.0.1", port)) as slow:
                slow.setblocking(False)
                slow.sendall(GET % close)
                began = loop.time()
                while got < LARGE and (piece := await loop.sock_recv(slow, 1 << 17)):
                    got += len(piece)
                    await asyncio.sleep(read_s / 20)
            return got, loop.time() - began

    got, took_s = asyncio.run(read())
    assert got >= LARGE
    assert took_s > 2 * read_s


def test_the_kernel_takes_no_more_for_a_client_than_is_on_its_way() -> None:
    config = answering(1, 1, [])

    async def bound() -> int:
        async with listening(config, head_s=HANG_S) as (port, among):
            reader, writer = await dial(port, GET % b"")
            await reader.readuntil(b"\r\n\r\n")
            (one,) = among._there
            assert isinstance(one, Http)
            connected = one.transport.get_extra_info("socket")
            writer.close()
            return int(connected.getsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT))

    assert asyncio.run(bound()) == UNSENT_BYTES


def test_a_body_that_nobody_wants_is_read_a_piece_at_a_time_and_the_connection_goes_on(
    tmp_path: Path,
) -> None:
    config = served(stage(tmp_path))
    size_bytes = 8 << 20
    head = b"POST /api/v1/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: %d\r\n\r\n" % size_bytes
    paused: list[str] = []

    class Slow(Http):
        def data_received(self, data: bytes) -> None:
            assert not self.flow.read_paused
            super().data_received(data)
            if self.flow.read_paused:
                paused.append(str(self.conn.their_state))

    async def refused() -> bytes:
        shared = {"among": Connections(FEW), "heads": HeadTurns()}
        made = partial(Slow, config, ServerState(), {}, **shared, head_s=HANG_S)
        server = await asyncio.get_running_loop().create_server(made, "127.0.0.1", 0)
        async with server:
            reader, writer = await dial(server.sockets[0].getsockname()[1], head)
            writer.write(b"x" * size_bytes + HEAD + b"Connection: close\r\n\r\n")
            return await until_closed(reader)

    told = asyncio.run(refused())
    assert (told.count(b"HTTP/1.1 401"), told.count(b"HTTP/1.1 200")) == (1, 1)
    assert set(paused) == {"SEND_BODY"}


def test_silent_connections_take_no_place_of_who_comes_behind_them(tmp_path: Path) -> None:
    config = served(stage(tmp_path))

    async def attacked() -> tuple[int, bytes]:
        async with listening(config, head_s=HANG_S) as (port, among):
            crowd = [await dial(port) for _ in range(40)]
            reader, _ = await dial(port, HEAD + b"Connection: close\r\n\r\n")
            told = await until_closed(reader)
            sent_away = [await until_closed(one) for one, _ in crowd[: 40 - FEW.of_address]]
            assert len(among) <= FEW.of_address
            for _, writer in crowd:
                writer.close()
            return len(sent_away), told

    count, told = asyncio.run(attacked())
    assert count == 40 - FEW.of_address
    assert told.startswith(b"HTTP/1.1 200")


def test_who_comes_behind_a_crowd_waits_for_a_fraction_of_so_many_turns() -> None:
    config, crowd = answering(1, 1, []), 10 * ACCEPTED_A_TURN

    async def turns() -> tuple[int, int]:
        loop, among = asyncio.get_running_loop(), Connections(Bounds.within(4096))
        with socket.create_server(("127.0.0.1", 0), backlog=crowd) as listening, ExitStack() as opened:
            made = partial(Http, config, ServerState(), {}, among=among, heads=HeadTurns())
            # The backlog anew: `create_server` would set its own, which is smaller.
            servers = [
                await loop.create_server(made, sock=one, backlog=crowd) for one in accepting(listening)
            ]
            for _ in range(crowd):
                opened.enter_context(socket.create_connection(listening.getsockname()))
            count, most = 0, 0
            async with asyncio.timeout(HANG_S):
                while (before := len(among)) < crowd:
                    await asyncio.sleep(0)
                    count, most = count + 1, max(most, len(among) - before)
            for server in servers:
                server.close()
        return count, most

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        count, most = runner.run(turns())
    assert most <= ACCEPTED_A_TURN
    assert count <= crowd // 2


def test_who_shows_a_credential_is_no_stranger_while_its_request_lasts(tmp_path: Path) -> None:
    here = stage(tmp_path)
    job_id = here.running()
    config = served(here)
    token = (tmp_path / "token").read_text()
    follow = f"GET /api/v1/jobs/{job_id}/events HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: text/event-stream\r\n"

    async def attacked() -> bytes:
        async with listening(config, head_s=HANG_S) as (port, _):
            reader, writer = await dial(port, f"{follow}Authorization: Bearer {token}\r\n\r\n".encode())
            async with asyncio.timeout(HANG_S):
                await reader.readuntil(b"job.running")
            crowd = [await dial(port) for _ in range(40)]
            await asyncio.to_thread(here.post, job_id, records=[EVENT])
            async with asyncio.timeout(HANG_S):
                told = await reader.readuntil(b"recovered")
            for _, one in (*crowd, (reader, writer)):
                one.close()
            here.control.leaving.set()
            return told

    assert b"recovered" in asyncio.run(attacked())


@contextmanager
def descriptors(soft: int) -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_streams_leave_descriptors_to_all_else(tmp_path: Path) -> None:
    with descriptors(512):
        streams = stage(tmp_path).control.streams
    most = Bounds.within(512)
    assert most.of_user < most.streams < most.together < 512
    for user in ("ada", "ben"):
        for n in range(most.of_user):
            streams.begin(user, f"job{n}", filtered=False)
        with pytest.raises(TooMany):
            streams.begin(user, "one more", filtered=False)
    with pytest.raises(TooMany):
        streams.begin("eve", "all together", filtered=False)


def test_the_process_takes_the_descriptors_that_it_may_have() -> None:
    code = (
        "import resource as r; from ringleader_api.edge.connections import descriptors, raise_descriptors;"
        "r.setrlimit(r.RLIMIT_NOFILE, (64, 999)); raise_descriptors(); print(descriptors())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=HANG_S, check=True
    )
    assert done.stdout.strip() == "999"


LEAVES = {
    "a log-in": b"POST /api/v1/login HTTP/1.1\r\nHost: 127.0.0.1\r\n%sContent-Length: 100\r\n\r\n{",
    "an upload": b"PUT /api/v1/packages/%s HTTP/1.1\r\nHost: 127.0.0.1\r\n%%sContent-Length: 99\r\n\r\nPK"
    % (b"0" * 64),
    "a job": b"POST /api/v1/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\n%sContent-Type: application/json\r\n"
    b"Content-Length: 100\r\n\r\n{",
}


@pytest.mark.parametrize("sent", LEAVES.values(), ids=LEAVES)
def test_a_client_that_leaves_is_no_failure_in_the_log(
    tmp_path: Path, logged: io.StringIO, caplog: pytest.LogCaptureFixture, sent: bytes
) -> None:
    here = stage(tmp_path)
    config = served(here)
    credential = b"Authorization: Bearer %s\r\n" % (tmp_path / "token").read_bytes()

    async def left() -> None:
        async with listening(config, head_s=HANG_S) as (port, among):
            _, writer = await dial(port, sent % credential)
            await until(lambda: len(among) == 1)
            writer.close()
            await until(lambda: "http." in logged.getvalue())

    asyncio.run(left())
    assert "Traceback" not in logged.getvalue() + caplog.text
    assert [json.loads(row)["event"] for row in logged.getvalue().splitlines()].count("http.failed") == 0


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(HANG_S):
        while not condition():
            await asyncio.sleep(0.01)


def test_the_served_process_waits_for_nobody_longer_than_the_pages_say(tmp_path: Path) -> None:
    """The deadlines of silent connections and of bodies that do not go on; the other tests set shorter ones."""
    app, settings = stage(tmp_path).client.app, Settings(home=tmp_path)
    served = config_of(app, settings).http  # type: ignore[arg-type]
    assert isinstance(served, partial)
    assert "head_s" not in served.keywords
    assert (protocol.HEAD_S, body_limit.TURN_S, body_limit.UPLOAD_TURN_S) == (10.0, 10.0, 60.0)


def chunked(sizes: list[int], target: bytes = b"/api/v1/jobs") -> bytes:
    body = b"".join(b"%x\r\n%s\r\n" % (size, b" " * size) for size in sizes)
    return b"POST %s HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n%s0\r\n\r\n" % (
        target,
        body,
    )


@pytest.mark.parametrize(
    ("sizes", "status"),
    [
        ([1] * (FREE + 1), 400),
        ([LEAST_BYTES - 1] * LEAST_BYTES * (FREE + 1), 400),
        ([1] * FREE, 401),
        ([LEAST_BYTES] * 2000, 401),
        ([1] * FREE + [64 << 10] * 4, 401),
    ],
    ids=["one too many", "small", "few", "large enough", "mixed"],
)
def test_a_body_in_tiny_chunks_is_refused(tmp_path: Path, sizes: list[int], status: int) -> None:
    config = served(stage(tmp_path))

    async def answer() -> Wire:
        wire, protocol = Wire(), config.http_protocol_class(config, ServerState(), {})  # type: ignore[call-arg]
        protocol.connection_made(wire)
        protocol.data_received(chunked(sizes))
        await until(lambda: b"\r\n\r\n" in wire.sent)
        return wire

    wire = asyncio.run(answer())
    assert wire.sent.startswith(b"HTTP/1.1 %d " % status)
    assert (b"chunks of less than 256 bytes" in wire.sent, wire.closed) == (status == 400,) * 2


def test_no_more_of_a_body_is_parsed_than_the_first_chunk_too_many(tmp_path: Path) -> None:
    """Each takes tens of microseconds of the loop: a stranger's megabyte of them stopped all others for seconds."""
    config = served(stage(tmp_path))
    sent = chunked([1] * 200_000, b"/api/v1/login")

    async def unread_bytes() -> int:
        protocol = config.http_protocol_class(config, ServerState(), {})  # type: ignore[call-arg]
        protocol.connection_made(Wire())
        protocol.data_received(sent)
        return len(protocol.conn.trailing_data[0])  # type: ignore[attr-defined]

    assert asyncio.run(unread_bytes()) > len(sent) - 10 * FREE


def test_the_request_of_a_refused_body_ends_without_an_answer_or_an_error_of_its_own(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = served(stage(tmp_path))

    async def ended(sent: bytes) -> bytes:
        state, wire = ServerState(), Wire()
        protocol = config.http_protocol_class(config, state, {})  # type: ignore[call-arg]
        protocol.connection_made(wire)
        protocol.data_received(sent)
        await until(lambda: not state.tasks)
        return wire.sent

    for sent in (chunked([1] * 300), chunked([1]).replace(b"1\r\n", b"z\r\n")):
        assert asyncio.run(ended(sent)).count(b"HTTP/1.1 ") == 1
    assert not [record for record in caplog.records if record.exc_info]


def test_chunks_that_come_after_the_answer_end_the_connection(tmp_path: Path) -> None:
    config = served(stage(tmp_path))

    async def ended() -> tuple[bool, bool]:
        serve = config.http_protocol_class
        wire, protocol = Wire(), serve(config, ServerState(), {})  # type: ignore[call-arg]
        protocol.connection_made(wire)
        head, _, body = chunked([1] * 300).partition(b"\r\n\r\n")
        protocol.data_received(head + b"\r\n\r\n")
        await until(lambda: b"HTTP/1.1 401" in wire.sent)
        before = wire.closed
        protocol.data_received(body)
        return before, wire.closed

    assert asyncio.run(ended()) == (False, True)
