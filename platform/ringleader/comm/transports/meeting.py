"""How the members of a generation meet: over a store; then those of one node share memory, others talk over gloo."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from torch._C._distributed_c10d import PrefixStore

from ringleader.comm.seal import Seal
from ringleader.comm.transports.flags import SUPPORTED
from ringleader.comm.transports.gloo import GlooTransport, first_line
from ringleader.comm.transports.mixed import MixedTransport
from ringleader.comm.transports.nccl import NcclTransport, apart, own_device, stay_on, this_device
from ringleader.comm.transports.shared import SharedPlace, SharedTransport
from ringleader.comm.transports.staged import StagedTransport
from ringleader.comm.transports.transport import Transport
from ringleader.comm.transports.words import LibraryStore, MeetingStore, MemberStore
from ringleader.comm.visitor import StoreConnection
from ringleader.errors import ExchangeBroken, WordRefused

SHARED, GLOO, NCCL = "shared", "gloo", "nccl"
KINDS = (SHARED, GLOO)
"""Ways to reach a member whose gradients lie in host memory, the fastest first."""

NEAR_KINDS = (SHARED,) if SUPPORTED else KINDS
"""The same where all members are known to be on one node: memory that the kernel opens to this user alone, and no
socket that others reach."""

DEVICE_KINDS = (NCCL, GLOO)
"""Where they lie on devices: NCCL beside gloo, or gloo alone."""

POLL_S = 0.02
MEET_S = 15.0
"""All members of a plan are parked when it is made, so they meet at once; if not, the store or one of them is gone."""


@dataclass(frozen=True, slots=True)
class MeetingCall:
    """Where and as whom to meet.

    Attributes:
        store_host, store_port: a store that lives outside the members.
        prefix: names job, attempt and generation; members under different prefixes never meet.
        secret: the attempt's, at least `seal.SECRET_BYTES`; members prove with it that they are.
        deadline_s: for every single wait; for meeting, `MEET_S` if that is less.
        host: the address of this node that the others can reach.
        kinds: which may be used, of `KINDS` or `DEVICE_KINDS`; the same for all members. Memory of a device cannot be
            shared, and only `gloo` and `nccl` have a library's own collectives.
        store_folder: in which a store on this node has its socket; None: it is asked at its port.
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
        """The part of the meeting of that name; waits there last so long."""

    @property
    def lost(self) -> bool:
        """Whether the store has closed the connection."""

    def close(self) -> None: ...


Connect = Callable[[MeetingCall, float], StoreClient]
"""(call, patience in seconds) → a connection to its store. Raises RuntimeError, OSError or WordRefused."""


def visit(call: MeetingCall, patience_s: float) -> StoreClient:
    """The attempt's room in a `Rendezvous`. Asks again where it is turned away: strangers may crowd its door."""
    room, until = call.prefix.partition("/")[0], time.monotonic() + patience_s
    while True:
        try:
            place = call.store_host, call.store_port, patience_s
            return StoreConnection(*place, room=room, secret=call.secret, folder=call.store_folder)
        except (ConnectionResetError, BrokenPipeError):
            if time.monotonic() > until:
                raise
            time.sleep(POLL_S)


def library(call: MeetingCall, patience_s: float) -> StoreClient:
    """A TCPStore, which takes words of anybody: for measurements and tests."""
    return LibraryStore(call.store_host, call.store_port, patience_s)


class StoreClients:
    """A process's connections to stores, used again: each begins with a proof on both sides."""

    def __init__(self, connect: Connect = visit) -> None:
        self._connect = connect
        self._idle: dict[tuple[str, int], StoreClient] = {}
        self._lock = threading.Lock()

    def take(self, call: MeetingCall, patience_s: float) -> StoreClient:
        """A connection that nobody uses. Raises RuntimeError or OSError when the store cannot be reached."""
        with self._lock:
            idle = self._idle.pop((call.store_host, call.store_port), None)
        if idle is not None and idle.lost:
            idle.close()
            idle = None
        return idle or self._connect(call, patience_s)

    def give_back(self, call: MeetingCall, client: StoreClient) -> None:
        """Only when no call on it is under way."""
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
        ExchangeBroken: somebody did not come in time, or was no member, or the meeting was cancelled.
        ValueError: the secret is none.
    """
    seal = Seal(call.secret, call.prefix)
    meeting = _Meeting(call, seal, clients or StoreClients(), this_device() if NCCL in call.kinds else None)
    threading.Thread(target=meeting.hold, name=f"ringleader-meet-{call.rank}", daemon=True).start()
    return meeting.result(min(call.deadline_s, MEET_S), cancelled)


@dataclass
class _Meeting:
    """On a thread of its own: neither the store's waits nor gloo's constructor can be interrupted."""

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
            stay_on(self.device)
            transport = _connect(self.call, self.seal, self.clients)
        except (RuntimeError, OSError, WordRefused) as error:
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
    """Everybody comes to the same answer: it depends on what all have told all."""
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
    told = _tell(call, words, "place", near.place.encode() if near else "")
    mapped = near.attach([SharedPlace.decode(t) if t else None for t in told]) if near else frozenset()
    told = _tell(call, words, "mapped", " ".join(map(str, sorted(mapped))))
    groups = _groups([frozenset(map(int, t.split())) for t in told])
    if near is not None and len(groups) == 1:
        return near
    scattered = near is not None and len(groups) == call.size
    if near is not None and scattered:
        near.close()
        near = None
    if GLOO not in call.kinds:
        raise OSError(
            f"only {', '.join(call.kinds)} may be used, and that does not connect all of these members"
        )
    far = GlooTransport.join(words, call.rank, call.size, call.deadline_s, call.host)
    if scattered:  # each on a node of its own
        far.groups = groups
    return far if near is None else MixedTransport(near, far, groups)


def _join_devices(call: MeetingCall, words: MemberStore) -> Transport:
    """NCCL needs a device for each member; where two share one, or one has none, everything goes through the host."""
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
    """Ranks that all map each other, by the lowest of them; who is in no such group stands alone."""
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
    """Everybody's word on a topic, by rank."""
    words.set(f"{topic}/{call.rank}", word)
    return words.read([f"{topic}/{rank}" for rank in range(call.size)])
