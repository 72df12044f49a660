"""Transfers over torch's gloo (TCP): a process group of its own for every generation, made and dropped in milliseconds.

gloo ends a wait only when the connection breaks or the deadline passes; its own `abort` and `shutdown` leave a blocked
thread blocked and the sockets open (torch 2.13). So the transport keeps duplicates of its generation's sockets and
shuts them down itself: that ends the waits on both sides at once, also those of peers that wait for this member.
"""

import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from torch import Tensor
from torch._C._distributed_c10d import PrefixStore, TCPStore
from torch.distributed import ProcessGroupGloo

from ringleader.comm.transports import sockets
from ringleader.comm.transports.transport import Work
from ringleader.errors import ExchangeBroken

POLL_S = 0.02
MEET_S = 15.0
"""All members of a plan are parked when it is made, so they meet at once; if not, the store or one of them is gone."""


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
            why = _first_line(error)
        # Raised outside the handler: a chained traceback would keep the broken group's sockets open.
        raise self.owner.broken(self.peer, why)


class GlooTransport:
    """One member's end of one generation. Made by `connect`. Implements Transport."""

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
    def connect(  # noqa: PLR0917
        store_host: str,
        store_port: int,
        prefix: str,
        rank: int,
        size: int,
        deadline_s: float,
        *,
        host: str = "127.0.0.1",
        cancelled: Callable[[], bool] = lambda: False,
    ) -> "GlooTransport":
        """Meet the other members of a generation and connect to each of them.

        Args:
            store_host, store_port: a TCPStore server that lives outside the members.
            prefix: names job, attempt and generation; members under different prefixes never meet.
            deadline_s: for every single wait; for meeting, `MEET_S` if that is less.
            host: the address of this node that the others can reach.
            cancelled: asked while waiting; the meeting is given up when it says yes (a newer plan has come).

        Raises:
            ExchangeBroken: somebody did not come in time, or the meeting was cancelled.
        """
        meeting = _Meeting(store_host, store_port, prefix, rank, size, deadline_s, host)
        thread = threading.Thread(target=meeting.hold, name=f"ringleader-meet-{rank}", daemon=True)
        thread.start()
        return meeting.result(min(deadline_s, MEET_S), cancelled)

    def isend(self, tensor: Tensor, peer: int, tag: int) -> Work:
        return self._begin(lambda group: group.send([tensor], peer, tag), peer, tensor)

    def irecv(self, tensor: Tensor, peer: int, tag: int) -> Work:
        return self._begin(lambda group: group.recv([tensor], peer, tag), peer, tensor)

    def native_all_reduce(self, tensor: Tensor) -> Work:
        return self._begin(lambda group: group.allreduce([tensor]), self.rank, tensor)

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
            why = _first_line(error)
        del group
        raise self.broken(peer, why)

    def _end(self, why: str) -> None:
        with self._closing:
            self._over = self._over or why
            duplicates, self._duplicates = self._duplicates, []
            self._group = None
        for duplicate in duplicates:
            sockets.hang_up(duplicate)


@dataclass
class _Meeting:
    """Making the group, on a thread of its own: the constructor cannot be interrupted."""

    store_host: str
    store_port: int
    prefix: str
    rank: int
    size: int
    deadline_s: float
    host: str
    transport: GlooTransport | None = None
    why: str = ""
    given_up: bool = False
    ended: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def hold(self) -> None:
        try:
            transport = self._connect()
        except (RuntimeError, OSError) as error:
            self.why = _first_line(error)
        else:
            with self.lock:
                self.transport = transport
                late = self.given_up
            if late:
                transport.close()
        self.ended.set()

    def result(self, deadline_s: float, cancelled: Callable[[], bool]) -> GlooTransport:
        until = time.monotonic() + deadline_s
        why = ""
        while not why and not self.ended.wait(POLL_S):
            if cancelled():
                why = "the meeting was called off"
            elif time.monotonic() > until:
                why = f"not everybody came within {deadline_s} s"
        with self.lock:
            self.given_up = self.transport is None or bool(why)
            transport = self.transport
        if not self.given_up and transport is not None:
            return transport
        if transport is not None:
            transport.close()
        raise ExchangeBroken(rank=self.rank, phase="connect", bucket=None, why=why or self.why)

    def _connect(self) -> GlooTransport:
        patience = timedelta(seconds=min(self.deadline_s, MEET_S))
        store = TCPStore(self.store_host, self.store_port, is_master=False, timeout=patience)
        meeting = PrefixStore(self.prefix, store)
        meeting.set_timeout(patience)
        gloo: Any = ProcessGroupGloo  # its stubs know neither the options nor send and recv
        before = sockets.descriptors()
        device = gloo.create_device(hostname=self.host)
        own = sockets.listening_ports(before)
        meeting.set(f"listens/{self.rank}", ",".join(map(str, own)))
        others = [r for r in range(self.size) if r != self.rank]
        foreign = {port for r in others for port in _ports(meeting.get(f"listens/{r}"))}
        options = gloo._Options()
        options._devices = [device]
        options._timeout = timedelta(seconds=self.deadline_s)
        group = gloo(meeting, self.rank, self.size, options)
        duplicates = sockets.connections(before, set(own), foreign)
        return GlooTransport(group, duplicates, self.deadline_s, self.rank, self.size)


def _ports(listed: bytes) -> list[int]:
    return [int(port) for port in listed.decode().split(",") if port]


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
