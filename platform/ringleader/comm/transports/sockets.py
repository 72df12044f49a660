"""The TCP sockets that a library opened in this process: how they are found, and hung up."""

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path

DESCRIPTORS = Path("/proc/self/fd")


def descriptors() -> set[str]:
    """The targets of all of this process's descriptors; empty where the system does not say."""
    return {target for _, target in _open()}


def listening_ports(before: set[str]) -> list[int]:
    """Ports of the listening sockets that are not among `before`."""
    ports = []
    for duplicate in _new_sockets(before):
        with duplicate:
            if _listens(duplicate):
                ports.append(duplicate.getsockname()[1])
    return ports


def connections(before: set[str], own: set[int], foreign: set[int]) -> list[socket.socket]:
    """Duplicates of the connections that are not among `before` and came in on a port of `own` or go to `foreign`."""
    found = []
    for duplicate in _new_sockets(before):
        if not _listens(duplicate) and _ends_at(duplicate, own, foreign):
            found.append(duplicate)
        else:
            duplicate.close()
    return found


def hang_up(duplicate: socket.socket) -> None:
    """End the connection for every descriptor of it, in this process and at the other end."""
    with contextlib.suppress(OSError):
        # Closing would end this descriptor alone, and not the connection that the library holds too.
        duplicate.shutdown(socket.SHUT_RDWR)
    duplicate.close()


def _open() -> Iterator[tuple[int, str]]:
    if not DESCRIPTORS.is_dir():
        return
    for entry in DESCRIPTORS.iterdir():
        with contextlib.suppress(OSError):
            # Some are gone by now, that of the listing itself among them.
            yield int(entry.name), str(entry.readlink())


def _new_sockets(before: set[str]) -> Iterator[socket.socket]:
    # Listed to the end first: the duplicates made below are descriptors, too.
    for number, target in list(_open()):
        if target.startswith("socket:") and target not in before:
            with contextlib.suppress(OSError):
                # A duplicate: the library may close its own descriptor, whose number is then reused.
                duplicate = socket.socket(fileno=os.dup(number))
                if (
                    duplicate.family in {socket.AF_INET, socket.AF_INET6}
                    and duplicate.type == socket.SOCK_STREAM
                ):
                    yield duplicate
                else:
                    duplicate.close()


def _listens(duplicate: socket.socket) -> bool:
    return bool(duplicate.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))


def _ends_at(duplicate: socket.socket, own: set[int], foreign: set[int]) -> bool:
    try:
        return duplicate.getsockname()[1] in own or duplicate.getpeername()[1] in foreign
    except OSError:
        return False
