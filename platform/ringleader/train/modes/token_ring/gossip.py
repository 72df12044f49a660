"""What travels beside the tokens: every item's report once round the ring, and the newest buffers.

A member tells its neighbour all that it has learnt since its last message, whatever token that message brings. So
whoever holds a token that lists an item holds the item's report.
"""

import threading
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from torch import Tensor


@dataclass(slots=True)
class GossipPeer:
    """Somebody outside the ring: reports that have still to be told to it, and of which item its buffers are."""

    reports: dict[int, np.ndarray]
    buffers: int


Told = tuple[list[tuple[int, int, np.ndarray]], int, Tensor | None]
"""What goes round the ring: item, hops that its report has still to make, and the report; then the item whose buffers
are the newest, -1 where these are not told, and the buffers."""

Heard = tuple[dict[int, np.ndarray], int, Tensor | None]
"""The same for a peer outside the ring: reports by item."""

Known = tuple[dict[int, np.ndarray], int, Tensor | None]
"""Reports by item; the item whose buffers are the newest, and these."""


class Gossip:
    """Reports by item, and the buffers that the newest slice of the first shard left.

    A report is a (n,) float64 row; its meaning is the sender's.

    Attributes:
        reports: by item, until `drop`.
        newest: of which item the buffers are; -1: none yet.
        buffers: in the form of the control word; None where there are none.
    """

    def __init__(self) -> None:
        self.reports: dict[int, np.ndarray] = {}
        self.newest = -1
        self.buffers: Tensor | None = None
        self._lock = threading.Lock()
        self._hops = 0
        self._told = -1
        self._outbox: list[tuple[int, int, np.ndarray]] = []
        self._peers: list[GossipPeer] = []

    def clear(self) -> None:
        """A loop begins."""
        with self._lock:
            self.reports, self.newest, self.buffers, self._told, self._outbox = {}, -1, None, -1, []

    def open(self, members: int) -> None:
        """A generation begins, and all members know the same."""
        with self._lock:
            self._hops, self._told, self._outbox, self._peers = members - 1, self.newest, [], []

    def report(self, item: int, row: np.ndarray) -> None:
        """What this member says of an item that it has computed; before its move is owed to any token."""
        with self._lock:
            self._tell(item, row, self._hops)

    def left(self, item: int, buffers: Tensor) -> None:
        """The first shard's slice left these buffers."""
        with self._lock:
            self._keep(item, buffers)

    def take(self) -> Told | None:
        """What the neighbour has not been told; None where that is nothing."""
        with self._lock:
            outbox, self._outbox = self._outbox, []
            newer = self.newest if self.newest > self._told else -1
            if not outbox and newer < 0:
                return None
            self._told = max(self._told, newer)
            return outbox, newer, self.buffers if newer >= 0 else None

    def hear(self, news: Told) -> None:
        """Take in what a neighbour has taken."""
        told, newer, buffers = news
        with self._lock:
            for item, hops, row in told:
                self._tell(item, row, hops - 1)
            if buffers is not None:
                self._keep(newer, buffers)

    def peer(self) -> GossipPeer:
        """Somebody outside the ring who knows all that this member knows, and is told what it learns from now on."""
        with self._lock:
            self._peers.append(GossipPeer({}, self.newest))
            return self._peers[-1]

    def take_for(self, peer: GossipPeer) -> Heard | None:
        """What a peer has not been told; None where that is nothing."""
        with self._lock:
            fresh, peer.reports = peer.reports, {}
            newer = self.newest if self.newest > peer.buffers else -1
            if not fresh and newer < 0:
                return None
            peer.buffers = max(peer.buffers, newer)
            return fresh, newer, self.buffers if newer >= 0 else None

    def hear_from(self, peer: GossipPeer, news: Heard) -> None:
        """Take in what a peer has taken, and tell the ring and all other peers."""
        fresh, newer, buffers = news
        with self._lock:
            for item, row in fresh.items():
                self._tell(item, row, self._hops, but=peer)
            if buffers is not None:
                peer.buffers = max(peer.buffers, newer)
                self._keep(newer, buffers)

    def all(self) -> Known:
        """Everything, for members that may not know it."""
        with self._lock:
            return dict(self.reports), self.newest, self.buffers

    def newest_buffers(self) -> tuple[int, Tensor | None]:
        """Of which item they are, and the buffers."""
        with self._lock:
            return self.newest, self.buffers

    def join(self, known: Iterable[Known]) -> None:
        """Take in `all` of every member, by rank: then all of them know the same."""
        with self._lock:
            self.reports, self.newest, self.buffers = {}, -1, None
            for reports, newest, buffers in known:
                for item, row in reports.items():
                    self.reports.setdefault(item, row)
                if buffers is not None:
                    self._keep(newest, buffers)

    def drop(self, below: int) -> None:
        """Items below this number are recorded."""
        with self._lock:
            for item in [item for item in self.reports if item < below]:
                del self.reports[item]

    def _tell(self, item: int, row: np.ndarray, hops: int, but: GossipPeer | None = None) -> None:
        """A report is new here: so many members of the ring have still to hear it, and all peers but one."""
        self.reports[item] = row
        if hops:
            self._outbox.append((item, hops, row))
        for peer in self._peers:
            if peer is not but:
                peer.reports[item] = row

    def _keep(self, item: int, buffers: Tensor) -> None:
        if item > self.newest:
            self.newest, self.buffers = item, buffers
