"""The demand on the cluster's autoscaler: raised at once, lowered after a while, written by nobody else."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from ringleader_api.backend import Backend
from ringleader_api.clock import Clock
from ringleader_api.log import Log
from ringleader_api.scheduling import Demand, NodeShape, Reach, Seen, WorkerNeed
from ringleader_api.scheduling.needs import SLACK, place, room

log = Log("ringleader.growing")

FIRST_AGAIN = 10
"""Multiples of the patience after which a shape comes first again whose nodes were unavailable, and which gave way to
others."""


class Autoscaling:
    """The demand as it was last sent, and the nodes that have not come. Used by the reconciler only.

    `awaits_nodes`: more has been asked for than was there at the last look.

    Args:
        reach: the size the cluster may grow to; None: it does not, and is asked once, for nothing.
        cool_down_s: workers that nobody needs any more stay asked for so much longer.
        patience_s: nodes of which none has come for so long, since they were asked for or the last one came, count as
            unavailable.
    """

    def __init__(
        self, backend: Backend, reach: Reach | None, now: Clock, *, cool_down_s: float, patience_s: float
    ) -> None:
        self._backend = backend
        self._reach = reach
        self._now = now
        self._cool_down_s = cool_down_s
        self._patience_s = patience_s
        self._kept: dict[WorkerNeed, tuple[int, datetime]] = {}
        self._told: Demand | None = None
        self._nodes: set[str] = set()
        self._since: dict[WorkerNeed, datetime] = {}
        self._missing: dict[WorkerNeed, str] = {}
        self.awaits_nodes = False

    def watch(self, seen: Seen) -> Seen:
        """The cluster as seen, with the size it may grow to and the shapes whose nodes have not come in time."""
        if self._reach is None:
            return seen
        absent = _absent(seen.nodes, self._told or {})
        self.awaits_nodes = bool(absent)
        self._wait(absent, [node for node in seen.nodes if node.id not in self._nodes])
        self._nodes = {node.id for node in seen.nodes}
        self._missing = {
            need: seen.trouble if need in absent else self._missing.get(need, "")
            for need in self._since
            if self._waited_s(need) >= self._patience_s
        }
        return replace(seen, reach=self._reach, missing=self._missing)

    def _wait(self, absent: Sequence[WorkerNeed], came: Sequence[NodeShape]) -> None:
        """Update the times since which nodes of each shape have been waited for: they restart with each node that
        comes. A shape whose nodes were unavailable counts as such for a while after others were asked for in its place,
        since those would never get theirs otherwise; that period begins when it gives way, however long it was asked
        for before."""
        # A copy: entries are deleted on the way.
        for need in list(self._since):
            waited = self._waited_s(need) / self._patience_s
            kept = need in absent or 1 <= waited < FIRST_AGAIN
            if not kept or any(room(node, need) for node in came):
                del self._since[need]
            elif need in absent and waited > 1:
                # Held at the patience: the period begins in the round in which it gives way.
                self._since[need] = self._now() - timedelta(seconds=self._patience_s)
        for need in absent:
            self._since.setdefault(need, self._now())

    def _waited_s(self, need: WorkerNeed) -> float:
        return (self._now() - self._since[need]).total_seconds()

    @property
    def asked(self) -> Demand | None:
        """The demand as the autoscaler has it from here; None where it has not been sent."""
        return self._told

    def ask(self, demand: Demand) -> None:
        """Send the demand to the autoscaler, if it has changed. May raise: it is sent again next time."""
        if self._reach is None:
            self._take_back()
            return
        wanted = self._cooled(demand)
        if wanted == self._told:
            return
        self._backend.ask(wanted)
        # More may have been asked for than is there: look at the nodes each round until they have come.
        self.awaits_nodes = True
        # Only after the call: one that raised is made again in the next round.
        self._told = wanted
        log.info("growing.asked", demand={str(need): count for need, count in wanted.items()})

    def _take_back(self) -> None:
        """Withdraw the demand of an earlier process that had a bound; once."""
        # Ray keeps the last request until another replaces it, also over a restart of the control plane.
        if self._told is None:
            self._backend.ask({})
            self._told = {}

    def forget(self) -> None:
        """Forget what was sent: the cluster was out of reach, and a new one has not been told anything."""
        if self._reach is not None:
            self._told = None

    def _cooled(self, demand: Demand) -> Demand:
        """The demand, and, as far as the cluster may grow, what was needed until a moment ago."""
        now = self._now()
        for need in demand.keys() | self._kept.keys():
            count = demand.get(need, 0)
            kept, at = self._kept.get(need, (0, now))
            if count >= kept or (now - at).total_seconds() >= self._cool_down_s:
                self._kept[need] = (count, now)
        self._kept = {need: (kept, at) for need, (kept, at) in self._kept.items() if kept}
        # The present demand is served first; only the room it leaves under the bound goes to what is cooling down.
        wanted = dict(demand)
        for need, (kept, _) in self._kept.items():
            more = min(kept - demand.get(need, 0), self._left(wanted, need))
            if more > 0:
                wanted[need] = wanted.get(need, 0) + more
        return wanted

    def _left(self, wanted: Demand, need: WorkerNeed) -> int:
        """The number of further workers of a shape for which the cluster may grow."""
        assert self._reach is not None
        limits = (
            (self._reach.cpus - sum(n * one.cpus for one, n in wanted.items()), need.cpus),
            (self._reach.gpus - sum(n * one.gpus for one, n in wanted.items()), need.gpus),
        )
        return min((int((left + SLACK) // each) for left, each in limits if each > 0), default=0)


def _absent(nodes: Sequence[NodeShape], demand: Demand) -> list[WorkerNeed]:
    """Shapes of which the cluster, if it were empty, could not hold all workers; the largest are placed first."""
    absent = []
    for need in sorted(demand, key=lambda one: (one.gpus, one.cpus, one.memory_gb), reverse=True):
        placed, nodes = place(nodes, need, demand[need])
        if placed < demand[need]:
            absent.append(need)
    return absent
