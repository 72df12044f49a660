"""`python -m ringleader_api`: the control plane as a process. Prints one JSON line {"url": …} once it listens."""

import asyncio
import gc
import json
import os
import signal
import socket
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType
from typing import cast

import uvicorn
from fastapi import FastAPI

from ringleader.errors import RingleaderError
from ringleader.files import write_over
from ringleader.home_folder import make_home
from ringleader_api.app import create_app
from ringleader_api.backend import Backend, RayBackend
from ringleader_api.control import Control
from ringleader_api.edge.connections import Bounds, Connections, descriptors, raise_descriptors
from ringleader_api.edge.credentials import require_set_up
from ringleader_api.edge.head_turns import HeadTurns
from ringleader_api.edge.protocol import Http
from ringleader_api.log import to_stderr
from ringleader_api.settings import Settings

GRACE_S = 5
TURN_S = 0.0005
FULL_EVERY = 200
"""The collections of middle-aged objects for each one of all."""
ACCEPTED_A_TURN = 32
"""The most connections that are accepted in one turn of the event loop. A turn takes a few milliseconds during an
attack, a connection a tenth of one."""
LAST_PORT = 65_535


class Server(uvicorn.Server):
    """The uvicorn server: prints its address once it listens, and tells open streams to end when it is asked to end."""

    def __init__(self, config: uvicorn.Config, url: str, control: Control) -> None:
        super().__init__(config)
        self._url = url
        self._control = control

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        # Whoever started this process waits for the line: it may be printed only once the socket listens.
        if self.started:
            print(json.dumps({"url": self._url}), flush=True)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        # Streams never end by themselves: without this uvicorn would wait for them until `GRACE_S`.
        self._control.leaving.set()
        super().handle_exit(sig, frame)


def on_ray(settings: Settings) -> Backend:
    return RayBackend(
        settings.ray_address,
        warm_per_node=settings.warm_per_node,
        idle_s=settings.autoscale_cool_down_s if settings.reach else None,
    )


def main(backend_of: Callable[[Settings], Backend] = on_ray) -> int:
    """Serve until a signal ends it; `backend_of` makes the cluster that jobs run on."""
    # Standard output belongs to the one line with the address.
    to_stderr()
    # Before the settings: the bounds on connections are shares of the limit that holds then.
    raise_descriptors()
    os.umask(0o077)  # the database holds jobs' environments: its owner's alone
    try:
        settings = Settings.from_env(os.environ)
        require_set_up(settings.home, settings.host, settings.oidc_issuer)
        listening = _listen(settings)
        # Port 0 has become a number; links and supervisors need the real one.
        settings = settings.model_copy(update={"port": listening.getsockname()[1]})
        app = create_app(settings, backend_of(settings))
    except RingleaderError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    server = Server(config_of(app, settings), settings.url, app.state.control)
    for number in (signal.SIGTERM, signal.SIGINT):
        # Holds until uvicorn takes over; it raises them again after its shutdown: an end as asked is no error.
        signal.signal(number, lambda *_: setattr(server, "should_exit", True))
    _answer_at_once()
    server.run(sockets=accepting(listening))
    return 0


def config_of(app: FastAPI, settings: Settings) -> uvicorn.Config:
    """The uvicorn configuration. The client's address is the peer's, unless a trusted proxy names another one."""
    among = Connections(Bounds.within(descriptors()))
    return uvicorn.Config(
        app,
        # uvicorn makes the protocol itself, with its own arguments only; what all share has to be bound beforehand.
        http=cast(type[asyncio.Protocol], partial(Http, among=among, heads=HeadTurns())),
        loop="uvloop",
        # uvicorn would replace our format with its own; `edge/requests.py` writes a line for each request.
        log_config=None,
        access_log=False,
        timeout_graceful_shutdown=GRACE_S,
        server_header=False,
        proxy_headers=bool(settings.proxies),
        forwarded_allow_ips=settings.proxies,
    )


def accepting(listening: socket.socket) -> list[socket.socket]:
    """The socket, several times over."""
    # libuv accepts one connection of each in a turn of the event loop, and a client that comes behind a thousand others
    # would wait for a thousand turns.
    return [listening, *(listening.dup() for _ in range(ACCEPTED_A_TURN - 1))]


def _answer_at_once() -> None:
    """Keep requests from waiting for the interpreter: a thread that only computes gives it back after `TURN_S`."""
    sys.setswitchinterval(TURN_S)
    # A collection over all modules and routes takes 0.1 s, and none of them ever goes: they are frozen.
    gc.collect()
    gc.freeze()
    # One over two hundred streams that come together takes 0.02 s, and would be made while they do.
    gc.set_threshold(*gc.get_threshold()[:2], FULL_EVERY)


class PortTaken(RingleaderError):
    """Another process listens on that port."""

    code = "port_taken"


def _listen(settings: Settings) -> socket.socket:
    """The listening socket. Port 0 takes the port used last: supervisors that outlived us still post there."""
    remembered = settings.home / "port"
    last = settings.port or _port_in(remembered)
    # The remembered port first, then the one asked for; one try where they are the same.
    for port in dict.fromkeys((last, settings.port)):
        try:
            listening = _bind(settings.host, port)
        except OSError as error:
            trouble = error
            continue
        make_home(settings.home)
        write_over(remembered, str(listening.getsockname()[1]))
        return listening
    raise PortTaken(
        f"cannot listen on {settings.host}:{settings.port} ({trouble.strerror}).",
        hint="Set RINGLEADER_PORT to a free port, or to 0 to use any.",
    )


def _port_in(remembered: Path) -> int:
    """The port that the file holds; 0 where it holds none, as after a power cut."""
    try:
        port = int(remembered.read_bytes())
    except (OSError, ValueError):
        return 0
    return port if 0 < port <= LAST_PORT else 0


def _bind(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    # Without it a restart would wait for the connections of the process before to leave TIME_WAIT.
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
    except OSError:
        listening.close()
        raise
    return listening


if __name__ == "__main__":
    raise SystemExit(main())
