"""The control plane over a cluster in memory, listening: what a browser needs, in a second."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvicorn
from control_plane import FakeCluster
from waiting import wait_for

from ringleader_api.app import create_app
from ringleader_api.settings import Settings

FLAGS = ["--no-sandbox", "--disable-dev-shm-usage"]  # root in a container


@contextmanager
def served(home: Path, cluster: FakeCluster, port: int = 0, **settings: Any) -> Iterator[str]:
    """Yields its address, at this port or a free one."""
    listening = socket.create_server(("127.0.0.1", port))
    url = f"http://127.0.0.1:{listening.getsockname()[1]}"
    app = create_app(Settings(home=home, public_url=url, **settings), cluster)
    server = uvicorn.Server(uvicorn.Config(app, log_config=None))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    try:
        wait_for("control plane that listens", lambda: server.started)
        yield url
    finally:
        server.should_exit = True
        thread.join(15)
