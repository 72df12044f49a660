"""HTTP connections below our middleware: unreadable requests are refused as a problem, and a connection that sends no
request, or does not read its answer, is not waited for."""

import asyncio
import secrets
import socket
import sys
from http import HTTPStatus
from typing import Any

import h11
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from ringleader_api.edge.chunks import Messages, SmallChunks
from ringleader_api.edge.connections import Connections
from ringleader_api.edge.guard import PRINCIPAL
from ringleader_api.edge.head_turns import HeadTurns, credential_in
from ringleader_api.problems import problem
from ringleader_api.rights import Caller, SupervisorCaller

HEAD_S = 10.0
"""The seconds that a connection may take for its first byte and the whole head of a request, and for the next one after
an answer; further bytes do not restart them."""
READ_S, READ_BYTES = 30.0, 64 << 10
"""The seconds in which so many more bytes of an answer have to be read, or all that is left of it: a client that takes
less holds a connection, and what its request holds, for ever."""
UNSENT_BYTES = 128 << 10
"""The most bytes that the kernel keeps of an answer before they are on their way: without a bound it takes megabytes
for each client that reads nothing."""
HEAD_BYTES = 64 << 10
"""The most bytes of a request's head."""
DISCARD_EVERY_S = 0.01
"""The interval at which more of an unwanted body is read: its sender may go on, and takes no time from others."""


class Http(H11Protocol):
    """uvicorn's HTTP/1.1 protocol, one connection `among` others, whose requests are begun in the turns of `heads`.
    uvicorn's own deadline runs only between requests, and any byte ends it."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        among: Connections,
        heads: HeadTurns,
        head_s: float = HEAD_S,
        read_s: float = READ_S,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.conn = Messages(config.h11_max_incomplete_event_size or HEAD_BYTES)
        self._among = among
        self._heads = heads
        self._unparsed = b""
        self._head_s = head_s
        self._read_s = read_s
        self._deadline: asyncio.TimerHandle | None = None
        self._reader_deadline: asyncio.TimerHandle | None = None
        self._unread_bytes = 0
        self._holder = ""

    @property
    def address(self) -> str:
        return self.client[0] if self.client else ""

    @property
    def known(self) -> bool:
        """Whether a valid credential was shown, also in the midst of a request: the guard has put it into the scope."""
        return bool(self.holder)

    @property
    def holder(self) -> str:
        """The user, or the job whose supervisor it is; empty as long as neither is known."""
        principal = None if self.scope is None else self.scope.get(PRINCIPAL)
        if isinstance(principal, Caller):
            self._holder = principal.name
        elif isinstance(principal, SupervisorCaller):
            self._holder = principal.job_id
        # Remembered: uvicorn replaces the scope with each request, and the next one's guard has not run yet.
        return self._holder

    def send_away(self) -> None:
        # Not `close`: that waits until the other end has read what is buffered for it, which it may never do.
        self.transport.abort()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        _bound_unsent(transport)
        self._await_head()
        self._among.enter(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._await_nothing()
        self._await_no_reader()
        self._among.leave(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._unparsed:  # read before reading paused
            self._unparsed += data
        elif self._is_at_work() or self._heads.has_room():
            self._parse(data)
        else:
            self._unparsed = data
            self.flow.pause_reading()
            self._heads.wait((self.address, credential_in(data)), self._parse_waiting)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._await_reader()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._await_no_reader()
        if not self._is_at_work():
            self._await_reader()

    def handle_events(self) -> None:
        super().handle_events()
        if self._is_at_work():
            self._await_nothing()
            # An answer that waits for room keeps its deadline, whatever else the client sends.
            if not self.flow.write_paused:
                self._await_no_reader()
            self._among.work(self)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self._is_at_work():
            self._await_reader()
            self._await_head()
            self._among.rest(self)

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        """Hand the connection over. The guard refuses it; from here on it is none of ours."""
        self._await_nothing()
        self._await_no_reader()
        self._among.leave(self)
        super().handle_websocket_upgrade(event)

    def send_400_response(self, msg: str) -> None:
        """Answer a request that h11 cannot read with a problem; called in the handler of its exception."""
        error = sys.exception()
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):  # an answer is under way, or was given
            self.transport.abort()
            return
        if isinstance(error, SmallChunks):
            msg = str(error)
        if self.cycle is not None and self._is_at_work():
            # As when the connection is lost: its application sends nothing after this answer, and is told to end.
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        status = error.error_status_hint if isinstance(error, h11.RemoteProtocolError) else 400
        number = secrets.token_hex(8)
        answer = problem(status, msg, request_id=number)
        headers = [*answer.raw_headers, (b"x-request-id", number.encode()), (b"connection", b"close")]
        for event in (
            h11.Response(status_code=status, headers=headers, reason=HTTPStatus(status).phrase.encode()),
            h11.Data(data=bytes(answer.body)),
            h11.EndOfMessage(),
        ):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def _parse_waiting(self) -> None:
        data, self._unparsed = self._unparsed, b""
        if not self.transport.is_closing():
            self.flow.resume_reading()
            self._parse(data)

    def _parse(self, data: bytes) -> None:
        super().data_received(data)
        # After an answer uvicorn reads on unthrottled: each read of a body that nobody wants takes a turn of the loop.
        if self._discards():
            self.flow.pause_reading()
            self.loop.call_later(DISCARD_EVERY_S, self._read_on)

    def _discards(self) -> bool:
        """Whether the bytes that come in belong to a body whose request was answered already."""
        answered = self.cycle is not None and self.cycle.response_complete
        return answered and self.conn.their_state is h11.SEND_BODY and not self.transport.is_closing()

    def _read_on(self) -> None:
        if not self.transport.is_closing():
            self.flow.resume_reading()

    def _is_at_work(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _await_head(self) -> None:
        self._await_nothing()
        if not self.transport.is_closing():
            self._deadline = self.loop.call_later(self._head_s, self._give_up)

    def _await_nothing(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _give_up(self) -> None:
        """Abort the connection, unless it still has to read its last answer."""
        if self.transport.get_write_buffer_size():
            # For that there is another deadline.
            self._await_head()
        else:
            self.transport.abort()

    def _await_reader(self) -> None:
        """Begin the deadline for what is unread now, if anything is."""
        self._await_no_reader()
        # Nothing more is written meanwhile: the answer is complete, or waits for room.
        self._unread_bytes = self.transport.get_write_buffer_size()
        if self._unread_bytes:
            self._reader_deadline = self.loop.call_later(self._read_s, self._require_read)

    def _await_no_reader(self) -> None:
        if self._reader_deadline is not None:
            self._reader_deadline.cancel()
            self._reader_deadline = None

    def _require_read(self) -> None:
        """Abort the connection where too little was read since the deadline began."""
        left = self.transport.get_write_buffer_size()
        if left and self._unread_bytes - left < READ_BYTES:
            # Not `close`: that would wait until the rest is read.
            self.transport.abort()
        else:
            self._await_reader()


def _bound_unsent(transport: asyncio.Transport) -> None:
    connected = transport.get_extra_info("socket")
    # A Unix socket has no such option.
    if connected is not None and connected.family in (socket.AF_INET, socket.AF_INET6):
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)
