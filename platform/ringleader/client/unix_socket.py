"""Services that listen on a Unix socket: their address as one URL, and the route that httpx takes to it.

A folder's mode limits who may connect to such a socket; a port on loopback is open to every account of the machine.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Self
from urllib.parse import quote, unquote, urlsplit

SCHEME = "http+unix"
LONGEST = 107
"""The most bytes of a socket's path that the kernel takes."""


def unix_url(socket: Path, path: str = "") -> str:
    """The address of what a service serves below `path`: http+unix://%2Fhome%2F…%2Fsocket/path."""
    return f"{SCHEME}://{quote(str(socket), safe='')}{path}"


@dataclass(frozen=True, slots=True)
class ClientRoute:
    """The route by which httpx reaches an address.

    Attributes:
        url: the URL of requests.
        uds: the socket they go through; None: the network.
    """

    url: str
    uds: str | None

    @classmethod
    def to(cls, url: str) -> Self:
        parts = urlsplit(url)
        if parts.scheme != SCHEME:
            return cls(url, None)
        return cls(f"http://localhost{parts.path}", _short(Path(unquote(parts.netloc))))


def _short(socket: Path) -> str:
    """A path that the kernel takes, however deep the socket lies: through its folder, open as long as this process."""
    if len(os.fsencode(socket)) <= LONGEST or not socket.parent.is_dir():
        return str(socket)
    # Left open on purpose: the path below names this descriptor.
    folder = os.open(socket.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    return f"/proc/self/fd/{folder}/{socket.name}"
