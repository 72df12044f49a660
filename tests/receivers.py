"""Receivers of alerts for tests: a server on loopback that notes what it was posted, and answers as it is told."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Posted:
    """One post: its path, headers (lower case) and body."""

    path: str
    headers: dict[str, str]
    body: bytes


@dataclass
class Receiver:
    """What was received, and how posts are answered: `answers` is asked for the status of each."""

    port: int
    posted: list[Posted] = field(default_factory=list)
    answer: Callable[[Posted, BaseHTTPRequestHandler], None] = field(
        default=lambda posted, handler: reply(handler, 204)
    )

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook"


def reply(handler: BaseHTTPRequestHandler, status: int, **headers: str) -> None:
    """An answer without a body."""
    handler.send_response(status)
    for name, value in headers.items():
        handler.send_header(name, value)
    handler.send_header("Content-Length", "0")
    handler.end_headers()


@contextmanager
def receiver() -> Iterator[Receiver]:
    """A receiver that takes everything."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            one = Posted(self.path, {name.lower(): value for name, value in self.headers.items()}, body)
            here.posted.append(one)
            here.answer(one, self)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        here = Receiver(server.server_address[1])
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield here
        finally:
            server.shutdown()
            thread.join()
