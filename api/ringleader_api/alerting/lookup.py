"""The look-up of a host's addresses, within a deadline of its own: the system's may take half a minute."""

import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from ipaddress import ip_address

LOOKUP_S = 5.0
LEAST_S = 0.02
Lookup = Callable[[str, int, float], Sequence[str]]
"""Takes a host, a port, and the seconds that it may take."""


def look_up(host: str, port: int, within_s: float) -> Sequence[str]:
    """The addresses of a host, from the system; none where it has none, or does not say so in time."""
    with suppress(ValueError):  # it is an address itself
        return [str(ip_address(host))]
    found: list[str] = []

    def ask() -> None:
        with suppress(OSError, ValueError):  # UnicodeError too: a name that no resolver takes
            found.extend(str(one[4][0]) for one in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))

    # A daemon: one that hangs keeps neither whoever asked nor the end of the process.
    asking = threading.Thread(target=ask, name="alert-lookup", daemon=True)
    asking.start()
    asking.join(within_s)
    return list(found)


class Hosts:
    """Look-ups of one request: each host once, all of them together within `LOOKUP_S`."""

    def __init__(self, look_up: Lookup) -> None:
        self._look_up = look_up
        self._until = time.monotonic() + LOOKUP_S
        self._found: dict[tuple[str, int], Sequence[str]] = {}

    def addresses(self, host: str, port: int) -> Sequence[str]:
        if (host, port) not in self._found:
            within_s = max(LEAST_S, self._until - time.monotonic())
            self._found[host, port] = self._look_up(host, port, within_s)
        return self._found[host, port]
