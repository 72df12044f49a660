"""Gangs find their places wherever the cluster puts those that were promised room with them: Ray chooses, not we."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from hypothesis import given, settings
from hypothesis import strategies as st

from ringleader_api.scheduling import (
    Admit,
    Claim,
    ClusterSnapshot,
    Decision,
    Grant,
    Hold,
    NodeShape,
    WorkerNeed,
    decide,
)
from ringleader_api.scheduling.needs import room

NEEDS = (
    WorkerNeed(1, 0, 0),
    WorkerNeed(2, 0, 1),
    WorkerNeed(4, 0, 0),
    WorkerNeed(1, 1, 2),
    WorkerNeed(0.5, 0, 3),
)
NODES = st.lists(
    st.tuples(st.integers(1, 8), st.integers(0, 2), st.integers(1, 8)), min_size=1, max_size=4
).map(lambda rows: [NodeShape(f"n{i}", *row) for i, row in enumerate(rows)])


@dataclass
class Chance:
    """A cluster that puts each group of bundles, whole or not at all, on any nodes with room, in any order."""

    nodes: Sequence[NodeShape]
    draw: random.Random
    others: dict[str, WorkerNeed] = field(default_factory=dict)
    places: dict[str, list[str]] = field(default_factory=dict)
    needs: dict[str, WorkerNeed] = field(default_factory=dict)
    pending: list[tuple[str, int]] = field(default_factory=list)

    def told(self, queued: Sequence[Claim], admitted: Sequence[Claim], decisions: Sequence[Decision]) -> None:
        """What follows from a pass: a gang's group, and one more for each worker of surplus."""
        waiting, running = {c.job_id: c for c in queued}, {c.job_id: c for c in admitted}
        for deed in decisions:
            match deed:
                case Admit(job_id=job_id, workers=workers):
                    claim = waiting[job_id]
                    self.needs[job_id], self.places[job_id] = claim.need, []
                    surplus = (claim.floor if workers is None else workers) - claim.floor
                    self.pending += [(job_id, claim.gang), *[(job_id, 1)] * surplus]
                case Grant(job_id=job_id, workers=workers):
                    more = workers - running[job_id].told
                    self.pending += [(job_id, 1)] * more
                    del self.places[job_id][len(self.places[job_id]) + min(0, more) :]

    def settle(self, share: float) -> list[tuple[str, int]]:
        """Place about such a share of what is pending; what has no room stays, and is returned."""
        self.draw.shuffle(self.pending)
        later = [group for group in self.pending if self.draw.random() > share]
        without = [group for group in self.pending if group not in later and not self._put(*group)]
        self.pending = later + without
        return without

    def end(self, job_id: str) -> None:
        del self.places[job_id]
        self.pending = [group for group in self.pending if group[0] != job_id]

    def spots(self, job_id: str) -> list[tuple[str, int]]:
        return [(node, 1) for node in self.places[job_id]]

    def _put(self, job_id: str, count: int) -> bool:
        found: list[str] = []
        for _ in range(count):
            fitting = [n.id for n in self.nodes if room(self._left(n, job_id, found), self.needs[job_id])]
            if not fitting:
                return False
            found.append(self.draw.choice(fitting))
        self.places[job_id] += found
        return True

    def _left(self, node: NodeShape, job_id: str, found: Sequence[str]) -> NodeShape:
        for other, spots in self.places.items():
            for _ in range(spots.count(node.id)):
                node = node.without(self.needs[other])
        for _ in range(found.count(node.id)):
            node = node.without(self.needs[job_id])
        return node.without(self.others.get(node.id))


@settings(max_examples=300, deadline=None)
@given(NODES, st.randoms(use_true_random=False))
def test_every_gang_that_starts_is_placed_whole_wherever_the_cluster_puts_the_others(
    nodes: list[NodeShape], draw: random.Random
) -> None:
    cluster = Chance(nodes, draw, {nodes[0].id: draw.choice(NEEDS)} if draw.random() < 0.5 else {})
    admitted: list[Claim] = []
    for turn in range(5):
        floors = [draw.randint(1, 3) for _ in range(6)]
        queued = [
            Claim(
                f"j{turn}-{n}", draw.choice(NEEDS), low, low + draw.randint(0, 3), elastic=True,
                servers=draw.choice((0, 0, 1)),
            )
            for n, low in enumerate(floors)
        ]  # fmt: skip
        admitted = [replace(c, placed=cluster.spots(c.job_id)) for c in admitted]
        decisions = decide(ClusterSnapshot(nodes, admitted, queued, others=cluster.others))
        cluster.told(queued, admitted, decisions)
        assert cluster.settle(draw.choice((0.5, 1.0))) == [], "promised room that is not there"
        admitted = carried_out(admitted, queued, decisions)
        for claim in [c for c in admitted if draw.random() < 0.4]:
            cluster.end(claim.job_id)
            admitted.remove(claim)


def carried_out(
    admitted: Sequence[Claim], queued: Sequence[Claim], decisions: Sequence[Decision]
) -> list[Claim]:
    told = {d.job_id: d.workers for d in decisions if isinstance(d, Admit | Grant)}
    at_work = [replace(c, holds=told.get(c.job_id, c.holds) or c.holds) for c in admitted]
    fresh = [replace(c, holds=told[c.job_id] or c.floor, wants=c.holds) for c in queued if c.job_id in told]
    return at_work + fresh


def test_where_jobs_are_decides_who_fits() -> None:
    """Three single workers on two nodes: what first fit would leave whole the cluster has broken up."""
    one, two = WorkerNeed(1, 0, 0), WorkerNeed(2, 0, 0)
    nodes = [NodeShape("a", 2, 0, 0), NodeShape("b", 2, 0, 0)]
    pair = Claim("pair", one, 2, 2, elastic=True, placed=[("a", 1), ("b", 1)])
    head = Claim("head", two, 1, 1)
    assert [type(d) for d in decide(ClusterSnapshot(nodes, [pair], [head]))] == [Hold]
    together = replace(pair, placed=[("b", 2)])
    assert [type(d) for d in decide(ClusterSnapshot(nodes, [together], [head]))] == [Admit]
    unknown = replace(pair, placed=[])
    decision = decide(ClusterSnapshot(nodes, [unknown], [head]))[0]
    assert isinstance(decision, Hold)
    assert "starting or growing" in decision.why.message
    assert [type(d) for d in decide(ClusterSnapshot(nodes, [unknown], [replace(head, need=one)]))] == [Admit]


def test_what_others_use_is_not_there_for_jobs() -> None:
    nodes = [NodeShape("a", 2, 0, 0)]
    head = Claim("head", WorkerNeed(1, 0, 0), 2, 2)
    decision = decide(ClusterSnapshot(nodes, [], [head], others={"a": WorkerNeed(1, 0, 0)}))[0]
    assert isinstance(decision, Hold)
    assert (decision.why.code, "is in use by other workloads" in decision.why.message) == (
        "waiting_for_capacity",
        True,
    )
