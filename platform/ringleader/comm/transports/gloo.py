"""Transfers over torch's gloo (TCP): a process group of its own for every generation, made and dropped in milliseconds.

gloo ends a wait only when the connection breaks or the deadline passes; its own `abort` and `shutdown` leave a blocked
thread blocked and the sockets open (torch 2.13). So the transport keeps duplicates of its generation's sockets and
shuts them down itself: that ends the waits on both sides at once, also those of peers that wait for this member.
"""

import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from torch import Tensor
from torch.distributed import ProcessGroupGloo

from ringleader.comm.transports import sockets
from ringleader.comm.transports.transport import Work
from ringleader.errors import ExchangeBroken


@dataclass(slots=True)
class _GlooWork:
    """A transfer of a gloo group; an error or a missed deadline is the peer's loss."""

    owner: "GlooTransport"
    work: Any
    peer: int
    tensor: Tensor

    def wait(self) -> None:
        try:
            self.work.wait(self.owner.deadline)
            return
        except RuntimeError as error:
            why = first_line(error)
        # Raised outside the handler: a chained traceback would keep the broken group's sockets open.
        raise self.owner.broken(self.peer, why)


class GlooTransport:
    """One member's end of one generation. Made by `join`. Implements Transport."""

    shared = False
    together = None
    groups: tuple[tuple[int, ...], ...] = ()

    def __init__(
        self,
        group: ProcessGroupGloo,
        duplicates: list[socket.socket],
        deadline_s: float,
        rank: int,
        size: int,
    ) -> None:
        self.rank = rank
        self.size = size
        self.deadline = timedelta(seconds=deadline_s)
        self._group: Any = group
        self._duplicates = duplicates
        self._closing = threading.Lock()
        self._over = ""

    @staticmethod
    def join(store: Any, rank: int, size: int, deadline_s: float, host: str) -> "GlooTransport":
        """Connect to every other member; all of them call this.

        Args:
            store: the generation's own corner of a TCPStore that lives outside the members.
            host: the address of this node that the others can reach.

        Raises:
            RuntimeError, OSError: somebody did not come within the store's deadline.
        """
        gloo: Any = ProcessGroupGloo  # its stubs know neither the options nor send and recv
        before = sockets.descriptors()
        device = gloo.create_device(hostname=host)
        own = sockets.listening_ports(before)
        store.set(f"listens/{rank}", ",".join(map(str, own)))
        others = [r for r in range(size) if r != rank]
        foreign = {port for r in others for port in _ports(store.get(f"listens/{r}"))}
        options = gloo._Options()
        options._devices = [device]
        options._timeout = timedelta(seconds=deadline_s)
        group = gloo(store, rank, size, options)
        duplicates = sockets.connections(before, set(own), foreign)
        return GlooTransport(group, duplicates, deadline_s, rank, size)

    def isend(self, tensor: Tensor, peer: int, tag: int) -> Work:
        return self._begin(lambda group: group.send([tensor], peer, tag), peer, tensor)

    def irecv(self, tensor: Tensor, peer: int, tag: int) -> Work:
        return self._begin(lambda group: group.recv([tensor], peer, tag), peer, tensor)

    def native_all_reduce(self, tensor: Tensor) -> Work:
        return self._begin(lambda group: group.allreduce([tensor]), -1, tensor)

    def board(self, slots: int, rows: int) -> None:
        return None

    def broken(self, peer: int, why: str) -> ExchangeBroken:
        return ExchangeBroken(rank=peer, phase="transfer", bucket=None, why=self._over or why)

    def abort(self) -> None:
        self._end("the generation was given up")

    def close(self) -> None:
        self._end("the transport is closed")

    def _begin(self, start: Callable[[Any], Any], peer: int, tensor: Tensor) -> Work:
        group = self._group
        if group is None:
            raise self.broken(peer, self._over)
        try:
            return _GlooWork(self, start(group), peer, tensor)
        except RuntimeError as error:
            why = first_line(error)
        del group
        raise self.broken(peer, why)

    def _end(self, why: str) -> None:
        with self._closing:
            self._over = self._over or why
            duplicates, self._duplicates = self._duplicates, []
            self._group = None
        for duplicate in duplicates:
            sockets.hang_up(duplicate)


def _ports(listed: bytes) -> list[int]:
    return [int(port) for port in listed.decode().split(",") if port]


def first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
