"""The meeting of a generation's members: over a store; then those of one node share memory, others talk over gloo."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from torch._C._distributed_c10d import PrefixStore

from ringleader.comm.seal import Seal
from ringleader.comm.store_connection import StoreConnection
from ringleader.comm.transports.flags import SUPPORTED
from ringleader.comm.transports.gloo import GlooTransport, first_line
from ringleader.comm.transports.mixed import MixedTransport
from ringleader.comm.transports.nccl import NcclTransport, apart, own_device, stay_on, this_device
from ringleader.comm.transports.shared import SharedPlace, SharedTransport
from ringleader.comm.transports.staged import StagedTransport
from ringleader.comm.transports.transport import Transport
from ringleader.comm.transports.words import LibraryStore, MeetingStore, MemberStore
from ringleader.errors import ExchangeBroken, WordRefused

SHARED, GLOO, NCCL = "shared", "gloo", "nccl"
KINDS = (SHARED, GLOO)
"""Ways to reach a member whose gradients lie in host memory, the fastest first."""

NEAR_KINDS = (SHARED,) if SUPPORTED else KINDS
"""The kinds for members known to be on one node: only memory that the kernel opens to this user alone, and no socket
that others reach."""

DEVICE_KINDS = (NCCL, GLOO)
"""The kinds for gradients that lie on devices: NCCL beside gloo, or gloo alone."""

POLL_S = 0.02
MEET_S = 15.0
"""The longest meeting. All members of a plan are parked when it is made, so they meet at once; if not, the store or one
of them is gone."""


@dataclass(frozen=True, slots=True)
class MeetingCall:
    """The address and name of a meeting, and this member's part in it.

    Attributes:
        store_host, store_port: a store that lives outside the members.
        prefix: names job, attempt and generation; members under different prefixes never meet.
        secret: the attempt's, at least `seal.SECRET_BYTES`, with which members prove that they are members.
        deadline_s: for every single wait; for meeting, `MEET_S` if that is less.
        host: the address of this node that the others can reach.
        kinds: which may be used, of `KINDS` or `DEVICE_KINDS`; the same for all members. Memory of a device cannot be
            shared, and only `gloo` and `nccl` have a library's own collectives.
        store_folder: the folder of the socket of a store on this node; None: the store is reached at its port.
    """

    store_host: str
    store_port: int
    prefix: str
    rank: int
    size: int
    deadline_s: float
    secret: bytes = field(repr=False)
    host: str = "127.0.0.1"
    kinds: tuple[str, ...] = KINDS
    store_folder: Path | None = None


class StoreClient(Protocol):
    """A connection to a store."""

    def corner(self, prefix: str, patience_s: float, /) -> MeetingStore:
        """The named meeting's part of the store, in which waits last `patience_s` at most."""

    @property
    def lost(self) -> bool:
        """Whether the store has closed the connection."""

    def close(self) -> None: ...


Connect = Callable[[MeetingCall, float], StoreClient]
"""(call, patience in seconds) → a connection to its store. Raises RuntimeError, OSError or WordRefused."""


def visit(call: MeetingCall, patience_s: float) -> StoreClient:
    """Connect to the attempt's room in a `Rendezvous`. Tries again where the store hangs up."""
    room, until = call.prefix.partition("/")[0], time.monotonic() + patience_s
    while True:
        try:
            place = call.store_host, call.store_port, patience_s
            return StoreConnection(*place, room=room, secret=call.secret, folder=call.store_folder)
        # A crowd may press at its port.
        except (ConnectionResetError, BrokenPipeError):
            if time.monotonic() > until:
                raise
            time.sleep(POLL_S)


def library(call: MeetingCall, patience_s: float) -> StoreClient:
    """Connect to a TCPStore, which takes words from anybody: for measurements and tests."""
    return LibraryStore(call.store_host, call.store_port, patience_s)


class StoreClients:
    """A process's idle connections to stores, reused because each begins with a proof on both sides."""

    def __init__(self, connect: Connect = visit) -> None:
        self._connect = connect
        self._idle: dict[tuple[str, int], StoreClient] = {}
        self._lock = threading.Lock()

    def take(self, call: MeetingCall, patience_s: float) -> StoreClient:
        """Take an idle connection, or open one. Raises RuntimeError or OSError when the store cannot be reached."""
        with self._lock:
            # Taken out while it is used: two meetings of one process never share a connection.
            idle = self._idle.pop((call.store_host, call.store_port), None)
        # A store that was started anew has closed it.
        if idle is not None and idle.lost:
            idle.close()
            idle = None
        return idle or self._connect(call, patience_s)

    def give_back(self, call: MeetingCall, client: StoreClient) -> None:
        """Keep a connection for the next meeting, once no call on it is in progress."""
        with self._lock:
            self._idle[call.store_host, call.store_port] = client


def meet(
    call: MeetingCall, cancelled: Callable[[], bool] = lambda: False, clients: StoreClients | None = None
) -> Transport:
    """Meet the other members of a generation and connect to each of them.

    Args:
        cancelled: asked while waiting; the meeting is given up when it says yes (a newer plan has come).
        clients: this process's connections to stores.

    Raises:
        ExchangeBroken: a member did not come in time, a peer was no member, or the meeting was cancelled.
        ValueError: the secret is too short.
    """
    seal = Seal(call.secret, call.prefix)
    meeting = _Meeting(call, seal, clients or StoreClients(), this_device() if NCCL in call.kinds else None)
    threading.Thread(target=meeting.hold, name=f"ringleader-meet-{call.rank}", daemon=True).start()
    return meeting.result(min(call.deadline_s, MEET_S), cancelled)


@dataclass
class _Meeting:
    """One meeting, on a thread of its own: neither the store's waits nor gloo's constructor can be interrupted."""

    call: MeetingCall
    seal: Seal
    clients: StoreClients
    device: int | None = None
    transport: Transport | None = None
    why: str = ""
    given_up: bool = False
    ended: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def hold(self) -> None:
        try:
            # CUDA's current device belongs to a thread: a new one starts on the first.
            stay_on(self.device)
            transport = _connect(self.call, self.seal, self.clients)
        except (RuntimeError, OSError, WordRefused) as error:
            self.why = first_line(error)
        else:
            with self.lock:
                self.transport = transport
                # Whichever comes second closes the transport: `result` that has given up, or this thread.
                late = self.given_up
            if late:
                transport.close()
        self.ended.set()

    def result(self, deadline_s: float, cancelled: Callable[[], bool]) -> Transport:
        until = time.monotonic() + deadline_s
        why = ""
        while not why and not self.ended.wait(POLL_S):
            if cancelled():
                why = "the meeting was cancelled"
            elif time.monotonic() > until:
                why = f"not all members came within {deadline_s} s"
        with self.lock:
            self.given_up = self.transport is None or bool(why)
            transport = self.transport
        if not self.given_up and transport is not None:
            return transport
        if transport is not None:
            transport.close()
        raise ExchangeBroken(rank=self.call.rank, phase="connect", bucket=None, why=why or self.why)


def _connect(call: MeetingCall, seal: Seal, clients: StoreClients) -> Transport:
    patience_s = min(call.deadline_s, MEET_S)
    client = clients.take(call, patience_s)
    try:
        transport = _join(call, MemberStore(client.corner(call.prefix, patience_s), seal))
    except BaseException:
        client.close()  # an answer may still be on its way
        raise
    clients.give_back(call, client)
    return transport


def _join(call: MeetingCall, words: MemberStore) -> Transport:
    """Connect by the fastest kind that serves all. Everybody comes to the same answer: it depends on what all have told
    all."""
    if NCCL in call.kinds:
        return _join_devices(call, words)
    near = _open(call, words.seal) if SHARED in call.kinds and SUPPORTED else None
    try:
        return _join_near(call, words, near)
    except BaseException:
        if near is not None:
            near.close()  # it holds descriptors of the others' processes
        raise


def _join_near(call: MeetingCall, words: MemberStore, near: SharedTransport | None) -> Transport:
    # Empty where there is no memory to share: the others wait for this word in any case.
    told = _tell(call, words, "place", near.place.encode() if near else "")
    mapped = near.attach([SharedPlace.decode(t) if t else None for t in told]) if near else frozenset()
    # Shared memory is relied on only where both ends say that they could map it.
    told = _tell(call, words, "mapped", " ".join(map(str, sorted(mapped))))
    groups = _groups([frozenset(map(int, t.split())) for t in told])
    if near is not None and len(groups) == 1:
        return near
    scattered = near is not None and len(groups) == call.size
    if near is not None and scattered:
        near.close()
        near = None
    # No socket instead for members of one node: else whoever disturbs the memory could force them onto one.
    if GLOO not in call.kinds:
        raise OSError(
            f"only {', '.join(call.kinds)} may be used, which does not connect all of these members"
        )
    # Where each is on a node of its own there is no other transport that would say so.
    apart = groups if scattered else ()
    far = GlooTransport.join(words, call.rank, call.size, call.deadline_s, call.host, groups=apart)
    return far if near is None else MixedTransport(near, far, groups)


def _join_devices(call: MeetingCall, words: MemberStore) -> Transport:
    """Connect members with devices: over NCCL if each has one of its own; where two share one, or one has none,
    everything goes through the host."""
    devices = [told.decode() for told in _tell(call, words, "device", own_device())]
    far = GlooTransport.join(words, call.rank, call.size, call.deadline_s, call.host)
    if not apart(devices):
        return StagedTransport(far)
    return NcclTransport.join(PrefixStore(NCCL, words), far, call.deadline_s)


def _open(call: MeetingCall, seal: Seal) -> SharedTransport | None:
    try:
        return SharedTransport(call.rank, call.size, call.host, call.deadline_s, seal)
    except OSError:  # no memory left: the others learn that this member maps nobody
        return None


def _groups(mapped: list[frozenset[int]]) -> tuple[tuple[int, ...], ...]:
    """The ranks that all map each other, grouped by the lowest of them; a rank in no such group stands alone."""
    groups: list[list[int]] = []
    for rank in range(len(mapped)):
        for group in groups:
            if all(rank in mapped[other] and other in mapped[rank] for other in group):
                group.append(rank)
                break
        else:
            groups.append([rank])
    return tuple(map(tuple, groups))


def _tell(call: MeetingCall, words: MemberStore, topic: str, word: str) -> list[bytes]:
    """Tell all members a word on a topic; returns everybody's, by rank."""
    words.set(f"{topic}/{call.rank}", word)
    return words.read([f"{topic}/{rank}" for rank in range(call.size)])
