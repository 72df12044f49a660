"""Transfers between threads of one process: the transport of tests and of `direct` comparisons without sockets."""

import threading
from collections import Counter, defaultdict, deque
from dataclasses import dataclass

import torch
from torch import Tensor

from ringleader.comm.seal import WITHIN
from ringleader.comm.transports.transport import Work
from ringleader.errors import ExchangeBroken

NATIVE = -1
"""The tag of `native_all_reduce`; callers use tags from 0."""


@dataclass(slots=True)
class _Transfer:
    """One end of a transfer; `broken` says why it will never be done, `awaited` wakes the thread that waits for
    either."""

    tensor: Tensor
    members: tuple[int, int]
    done: bool = False
    broken: str = ""
    awaited: threading.Event | None = None

    def await_end(self) -> threading.Event | None:
        """The event of the transfer's end; None where it has ended and nobody has waited."""
        if not (self.done or self.broken or self.awaited):
            # One for each transfer: a condition of the whole hub would wake all of its threads each time.
            self.awaited = threading.Event()
        return self.awaited

    def end(self, broken: str = "") -> None:
        self.done, self.broken = not broken, broken
        if self.awaited is not None:
            self.awaited.set()


Lane = tuple[int, int, int]


class Hub:
    """The meeting place of one generation's threads.

    Bytes move straight from the sender's tensor into the receiver's at the moment both ends are there, so a schedule
    that touches memory too early shows wrong sums here as it would over a network card.
    """

    def __init__(self, size: int, deadline_s: float = 60.0) -> None:
        self.size = size
        self.deadline_s = deadline_s
        self.bytes_sent = [0] * size
        self.bytes_between: Counter[tuple[int, int]] = Counter()
        self._lock = threading.Lock()
        self._sends: dict[Lane, deque[_Transfer]] = defaultdict(deque)
        self._receives: dict[Lane, deque[_Transfer]] = defaultdict(deque)
        self._gone: dict[int, str] = {}

    def transport(self, rank: int, groups: tuple[tuple[int, ...], ...] = ()) -> "InProcessTransport":
        return InProcessTransport(self, rank, groups)

    def lose(self, rank: int, why: str = "connection closed by peer") -> None:
        """Break every transfer with `rank`, begun or to come; from any thread."""
        with self._lock:
            self._gone.setdefault(rank, why)
            for queues in (self._sends, self._receives):
                for lane, queue in queues.items():
                    for transfer in queue if rank in lane[:2] else ():
                        transfer.end(why)

    def why_gone(self, rank: int) -> str:
        """Why that rank has left; empty before."""
        return self._gone.get(rank, "")

    def begin(self, tensor: Tensor, lane: Lane, *, sends: bool) -> _Transfer:
        """Queue one end of a transfer on (source, target, tag) and move the bytes if the other end is there.

        Raises:
            ExchangeBroken: this rank has left itself.
        """
        if not tensor.is_contiguous():
            raise ValueError("a transfer needs a contiguous tensor; call .contiguous() first")
        own = lane[0] if sends else lane[1]
        with self._lock:
            if own in self._gone:
                raise ExchangeBroken(rank=own, phase="transfer", bucket=None, why=self._gone[own])
            # Not raised here: that a peer is lost is said where its transfer is waited for.
            broken = next((why for rank, why in self._gone.items() if rank in lane[:2]), "")
            transfer = _Transfer(tensor, lane[:2], broken=broken)
            (self._sends if sends else self._receives)[lane].append(transfer)
            self._move(lane)
        return transfer

    def wait(self, transfer: _Transfer, peer: int) -> None:
        with self._lock:
            end = transfer.await_end()
        if end is not None and not end.wait(self.deadline_s):
            with self._lock:
                # Asked again under the lock: the other end may have come just after the deadline.
                if not transfer.done:
                    transfer.end(f"no answer within {self.deadline_s} s")
        if not transfer.done:
            raise ExchangeBroken(rank=peer, phase="transfer", bucket=None, why=transfer.broken)

    def _move(self, lane: Lane) -> None:
        sends, receives = self._sends[lane], self._receives[lane]
        while sends and receives and not sends[0].broken and not receives[0].broken:
            source, target = sends.popleft(), receives.popleft()
            target.tensor.copy_(source.tensor)
            self.bytes_sent[lane[0]] += source.tensor.nbytes
            self.bytes_between[lane[:2]] += source.tensor.nbytes
            source.end()
            target.end()


@dataclass(slots=True)
class _HubWork:
    hub: Hub
    transfer: _Transfer
    peer: int

    def wait(self) -> None:
        self.hub.wait(self.transfer, self.peer)


@dataclass(slots=True)
class _NativeWork:
    """Sums in rank order; every rank computes the same."""

    tensor: Tensor
    arriving: list[tuple[Work, Tensor]]
    leaving: list[Work]
    rank: int

    def wait(self) -> None:
        for work in [*(w for w, _ in self.arriving), *self.leaving]:
            work.wait()
        others = [t for _, t in self.arriving]
        parts = [*others[: self.rank], self.tensor.clone(), *others[self.rank :]]
        torch.sum(torch.stack(parts), dim=0, out=self.tensor)


class InProcessTransport:
    """One thread's end of a hub. Implements Transport.

    Args:
        groups: the ranks of each node that the hub is to look like.
    """

    shared = False
    together = None
    seal = WITHIN

    def __init__(self, hub: Hub, rank: int, groups: tuple[tuple[int, ...], ...] = ()) -> None:
        self.groups = groups
        self.rank = rank
        self.size = hub.size
        self._hub = hub

    @property
    def over(self) -> str:
        return self._hub.why_gone(self.rank)

    def isend(self, tensor: Tensor, peer: int, tag: int) -> Work:
        return _HubWork(self._hub, self._hub.begin(tensor, (self.rank, peer, tag), sends=True), peer)

    def irecv(self, tensor: Tensor, peer: int, tag: int) -> Work:
        return _HubWork(self._hub, self._hub.begin(tensor, (peer, self.rank, tag), sends=False), peer)

    def native_all_reduce(self, tensor: Tensor) -> Work:
        peers = [r for r in range(self.size) if r != self.rank]
        own = tensor.clone()
        buffers = [torch.empty_like(tensor) for _ in peers]
        arriving = [(self.irecv(b, r, NATIVE), b) for r, b in zip(peers, buffers, strict=True)]
        return _NativeWork(tensor, arriving, [self.isend(own, r, NATIVE) for r in peers], self.rank)

    def board(self, slots: int, rows: int) -> None:
        return None

    def abort(self) -> None:
        self._hub.lose(self.rank, "the generation was given up")

    def close(self) -> None:
        self._hub.lose(self.rank)
