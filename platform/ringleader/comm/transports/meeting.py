"""How the members of a generation meet: over a store; then in shared memory if all of them can, else over gloo."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from torch._C._distributed_c10d import PrefixStore, TCPStore

from ringleader.comm.transports.flags import SUPPORTED
from ringleader.comm.transports.gloo import GlooTransport, first_line
from ringleader.comm.transports.shared import Place, SharedTransport
from ringleader.comm.transports.transport import Transport
from ringleader.errors import ExchangeBroken

POLL_S = 0.02
MEET_S = 15.0
"""All members of a plan are parked when it is made, so they meet at once; if not, the store or one of them is gone."""


@dataclass(frozen=True, slots=True)
class Call:
    """Where and as whom to meet.

    Attributes:
        store_host, store_port: a TCPStore server that lives outside the members.
        prefix: names job, attempt and generation; members under different prefixes never meet.
        deadline_s: for every single wait; for meeting, `MEET_S` if that is less.
        host: the address of this node that the others can reach.
        kinds: which of `KINDS` may be used; the same for all members. Memory of a device cannot be shared, and only
            `gloo` has a library's own collectives.
    """

    store_host: str
    store_port: int
    prefix: str
    rank: int
    size: int
    deadline_s: float
    host: str = "127.0.0.1"
    kinds: tuple[str, ...] = ("shared", "gloo")


class Clients:
    """A process's connections to stores, used again: a store looks up the name of whoever connects, which takes
    seconds where the name server does not answer."""

    def __init__(self) -> None:
        self._idle: dict[tuple[str, int], Any] = {}
        self._lock = threading.Lock()

    def take(self, host: str, port: int, patience: timedelta) -> Any:
        """A connection that nobody uses. Raises RuntimeError when the store cannot be reached."""
        with self._lock:
            idle = self._idle.pop((host, port), None)
        return idle or TCPStore(host, port, is_master=False, timeout=patience)

    def give_back(self, host: str, port: int, client: Any) -> None:
        """Only when no call on it is under way."""
        with self._lock:
            self._idle[host, port] = client


def meet(
    call: Call, cancelled: Callable[[], bool] = lambda: False, clients: Clients | None = None
) -> Transport:
    """Meet the other members of a generation and connect to each of them.

    Args:
        cancelled: asked while waiting; the meeting is given up when it says yes (a newer plan has come).
        clients: this process's connections to stores.

    Raises:
        ExchangeBroken: somebody did not come in time, or the meeting was cancelled.
    """
    meeting = _Meeting(call, clients or Clients())
    threading.Thread(target=meeting.hold, name=f"ringleader-meet-{call.rank}", daemon=True).start()
    return meeting.result(min(call.deadline_s, MEET_S), cancelled)


@dataclass
class _Meeting:
    """On a thread of its own: neither the store's waits nor gloo's constructor can be interrupted."""

    call: Call
    clients: Clients
    transport: Transport | None = None
    why: str = ""
    given_up: bool = False
    ended: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def hold(self) -> None:
        try:
            transport = _connect(self.call, self.clients)
        except (RuntimeError, OSError) as error:
            self.why = first_line(error)
        else:
            with self.lock:
                self.transport = transport
                late = self.given_up
            if late:
                transport.close()
        self.ended.set()

    def result(self, deadline_s: float, cancelled: Callable[[], bool]) -> Transport:
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
        raise ExchangeBroken(rank=self.call.rank, phase="connect", bucket=None, why=why or self.why)


def _connect(call: Call, clients: Clients) -> Transport:
    patience = timedelta(seconds=min(call.deadline_s, MEET_S))
    client = clients.take(call.store_host, call.store_port, patience)
    store = PrefixStore(call.prefix, client)
    store.set_timeout(patience)
    for kind, join in KINDS.items():
        transport = join(call, store) if kind in call.kinds else None
        if transport is not None:
            clients.give_back(call.store_host, call.store_port, client)
            return transport
    raise OSError(f"none of the transports {', '.join(call.kinds)} connects these members")


def _share(call: Call, store: Any) -> SharedTransport | None:
    """Shared memory if everybody can map everybody's; all members come to the same answer."""
    if not SUPPORTED:
        return None
    try:
        transport = SharedTransport(call.rank, call.size, call.host, call.deadline_s)
    except OSError:  # no memory left: the others have to know
        transport = None
    told = _tell(call, store, "place", transport.place.encode() if transport else "")
    attached = transport is not None and all(told) and transport.attach([Place.decode(t) for t in told])
    if all(answer == b"yes" for answer in _tell(call, store, "shares", "yes" if attached else "no")):
        return transport
    if transport is not None:
        transport.close()
    return None


def _gloo(call: Call, store: Any) -> GlooTransport:
    return GlooTransport.join(store, call.rank, call.size, call.deadline_s, call.host)


def _tell(call: Call, store: Any, topic: str, word: str) -> list[bytes]:
    """Everybody's word on a topic, by rank."""
    store.set(f"{topic}/{call.rank}", word)
    return [bytes(store.get(f"{topic}/{rank}")) for rank in range(call.size)]


KINDS: dict[str, Callable[[Call, Any], Transport | None]] = {"shared": _share, "gloo": _gloo}
"""Ways to connect, the fastest first. None: these members cannot, and all of them know it."""
