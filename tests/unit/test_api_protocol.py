"""What is no HTTP, or too much of it, is refused as a problem before any layer of ours has seen it."""

import asyncio
from pathlib import Path

import pytest
from control_plane import stage
from uvicorn.server import ServerState

from ringleader.wire.views import Problem
from ringleader_api.__main__ import config_of
from ringleader_api.edge.protocol import Http
from ringleader_api.settings import Settings


class Wire(asyncio.Transport):
    """Keeps what is sent."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 5000), "sockname": ("127.0.0.1", 80)})
        self.sent = b""
        self.closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.sent += data

    def close(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed


@pytest.mark.parametrize(
    ("sent", "status", "code"),
    [
        (b"nonsense\r\n\r\n", 400, "bad_request"),
        (b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"a" * 70_000, 431, "request_header_fields_too_large"),
    ],
    ids=["no HTTP", "long headers"],
)
def test_what_is_no_http_is_refused_as_a_problem(tmp_path: Path, sent: bytes, status: int, code: str) -> None:
    config = config_of(stage(tmp_path).client.app, Settings(home=tmp_path))  # type: ignore[arg-type]
    config.load()

    async def answered() -> Wire:
        serve = config.http_protocol_class
        assert serve is Http
        wire, protocol = Wire(), Http(config, ServerState(), {})
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
