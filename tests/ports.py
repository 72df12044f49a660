"""Ports for services of tests that have to be told theirs."""

import itertools
import os
import socket
from contextlib import suppress

FIRST, LAST = 20_000, 32_000
"""Below those that Linux gives to connections: one of them, of whatever process, would take a port that is free now
before the service is up, or while it is away."""
STEP = 97
_turns = itertools.count(os.getpid() * STEP)


def free_port(host: str = "127.0.0.1") -> int:
    """One that nobody listens at and that no other call has named; processes beside this one begin elsewhere."""
    for _ in range(LAST - FIRST):
        port = FIRST + next(_turns) % (LAST - FIRST)
        with suppress(OSError), socket.socket() as probe:
            probe.bind((host, port))
            return port
    raise OSError(f"no port of {host} can be had")
