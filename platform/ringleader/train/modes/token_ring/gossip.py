"""Gossip beside the tokens: every item's report once round the ring, and the newest buffers.

A member tells its neighbour all that it has learnt since its last message, with whichever token goes next. So whoever
holds a token that lists an item holds the item's report.
"""

import threading
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from torch import Tensor


@dataclass(slots=True)
class GossipPeer:
    """A peer outside the ring: reports that have still to be sent to it, and the item whose buffers it has."""

    reports: dict[int, np.ndarray]
    buffers: int

    def take_reports(self) -> dict[int, np.ndarray]:
        """Remove and return the reports."""
        taken, self.reports = self.reports, {}
        return taken

    def has_buffers(self, item: int) -> None:
        """Record that it has the buffers of that item, or newer ones."""
        self.buffers = max(self.buffers, item)


Told = tuple[list[tuple[int, int, np.ndarray]], int, Tensor | None]
"""The news round the ring: item, hops that its report has still to make, and the report; then the item whose buffers
are the newest, -1 where these are not sent, and the buffers."""

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
        # The training thread adds reports, communication threads take and hear them.
        self._lock = threading.Lock()
        self._hops = 0
        self._told = -1
        self._outbox: list[tuple[int, int, np.ndarray]] = []
        self._peers: list[GossipPeer] = []

    def clear(self) -> None:
        """Begin a loop: forget everything."""
        with self._lock:
            self.reports, self.newest, self.buffers, self._told, self._outbox = {}, -1, None, -1, []

    def open(self, members: int) -> None:
        """Begin a generation, whose members all know the same."""
        with self._lock:
            # As many hops as there are others: a report does not come back to its sender.
            self._hops, self._told, self._outbox, self._peers = members - 1, self.newest, [], []

    def report(self, item: int, row: np.ndarray) -> None:
        """Add this member's report of an item that it has computed; before its move is pending for any token."""
        with self._lock:
            self._tell(item, row, self._hops)

    def left(self, item: int, buffers: Tensor) -> None:
        """Keep these buffers, which the first shard's slice left."""
        with self._lock:
            self._keep(item, buffers)

    def take(self) -> Told | None:
        """The news that the neighbour has not been sent; None where there are none."""
        with self._lock:
            outbox, self._outbox = self._outbox, []
            newer = self.newest if self.newest > self._told else -1
            if not outbox and newer < 0:
                return None
            self._told = max(self._told, newer)
            return outbox, newer, self.buffers if newer >= 0 else None

    def hear(self, news: Told) -> None:
        """Take in the news that a neighbour took."""
        told, newer, buffers = news
        with self._lock:
            for item, hops, row in told:
                self._tell(item, row, hops - 1)
            if buffers is not None:
                self._keep(newer, buffers)

    def peer(self) -> GossipPeer:
        """A peer outside the ring that knows all that this member knows, and is sent what it learns from now on."""
        with self._lock:
            self._peers.append(GossipPeer({}, self.newest))
            return self._peers[-1]

    def take_for(self, peer: GossipPeer) -> Heard | None:
        """The news that a peer has not been sent; None where there are none."""
        with self._lock:
            fresh = peer.take_reports()
            newer = self.newest if self.newest > peer.buffers else -1
            if not fresh and newer < 0:
                return None
            peer.has_buffers(newer)
            return fresh, newer, self.buffers if newer >= 0 else None

    def hear_from(self, peer: GossipPeer, news: Heard) -> None:
        """Take in the news that a peer took, and pass them on to the ring and all other peers."""
        fresh, newer, buffers = news
        with self._lock:
            for item, row in fresh.items():
                self._tell(item, row, self._hops, but=peer)
            if buffers is not None:
                peer.has_buffers(newer)
                self._keep(newer, buffers)

    def all(self) -> Known:
        """Everything that this member knows, for members that may not know it."""
        with self._lock:
            return dict(self.reports), self.newest, self.buffers

    def newest_buffers(self) -> tuple[int, Tensor | None]:
        """The item whose buffers are the newest, and these."""
        with self._lock:
            return self.newest, self.buffers

    def join(self, known: Iterable[Known]) -> None:
        """Take in `all` of every member, by rank: then all of them know the same."""
        with self._lock:
            self.reports, self.newest, self.buffers = {}, -1, None
            for reports, newest, buffers in known:
                for item, row in reports.items():
                    # An item that was computed twice may have two reports: the lowest rank's is taken by all.
                    self.reports.setdefault(item, row)
                if buffers is not None:
                    self._keep(newest, buffers)

    def drop(self, below: int) -> None:
        """Forget reports of items below this number, which are recorded."""
        with self._lock:
            for item in [item for item in self.reports if item < below]:
                del self.reports[item]

    def _tell(self, item: int, row: np.ndarray, hops: int, but: GossipPeer | None = None) -> None:
        """Store a report that is new here, for so many members of the ring that have still to hear it, and all peers
        but one."""
        self.reports[item] = row
        if hops:
            self._outbox.append((item, hops, row))
        for peer in self._peers:
            if peer is not but:
                peer.reports[item] = row

    def _keep(self, item: int, buffers: Tensor) -> None:
        # Items are numbered in the order of steps, so a higher one has the newer buffers.
        if item > self.newest:
            self.newest, self.buffers = item, buffers
