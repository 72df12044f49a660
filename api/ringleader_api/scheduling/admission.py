"""Admission: the jobs that start, grow, shrink and leave. Pure: `decide(snapshot)` decides, the reconciler acts.

A gang is admitted whole or not at all. The queue is served in turn (`shares.in_turn`); the first job that could run on
this cluster but finds no room is the head, for which others make room (`preemption`), and which nobody overtakes but
jobs that will have ended before it can start. Where nobody knows when that will be, because it takes the end of a job
without a known one, or of others than jobs, all may overtake it once it has waited for `hold_s`; they make room for it
again, and for whoever else waited then, as soon as that lets one of these start. While there is a head, or nodes come
for a gang, nobody grows; else what is left over is given out (`surplus`). A job that only its project's quota holds
back holds back its own project alone; one that cannot run at all holds nobody back, and one whose nodes are not to be
had asks for them when all others have asked.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf

from ringleader.wire.views import Why
from ringleader_api.scheduling import pending_reasons, surplus
from ringleader_api.scheduling.empty_cluster import EmptyCluster
from ringleader_api.scheduling.growth import Growth, reaches
from ringleader_api.scheduling.needs import WorkerNeed
from ringleader_api.scheduling.preemption import ends_at, make_room, may_leave
from ringleader_api.scheduling.reservations import HeldPlaces, taken
from ringleader_api.scheduling.room import FreeRoom, together
from ringleader_api.scheduling.shares import Usage, in_turn
from ringleader_api.scheduling.snapshot import (
    Admit,
    Apart,
    Claim,
    ClusterSnapshot,
    Decision,
    Demand,
    EvictJob,
    Grant,
    Hold,
)

MOST_SHAPES = 64
"""The most shapes of worker tried behind the head in one pass."""


def decide(snapshot: ClusterSnapshot) -> list[Decision]:
    """The decisions: one for each queued job, in queue order, then those for admitted jobs."""
    return plan(snapshot)[0]


def plan(snapshot: ClusterSnapshot) -> tuple[list[Decision], Demand]:
    """The decisions, and the workers for which the cluster has to have room where it grows."""
    one = _Pass(snapshot)
    return one.decide(), one.demand


@dataclass(frozen=True, slots=True)
class Outlook:
    """The queue as a pass sees it.

    Attributes:
        turn: the ids of the waiting jobs, in the order in which they are served.
        head: the job that others make room for.
        head_by_s: the seconds after which it starts at the latest, unless others come before it in the queue; None:
            nobody knows.
    """

    turn: Sequence[str]
    head: str | None
    head_by_s: float | None


def outlook(snapshot: ClusterSnapshot) -> Outlook:
    """The order of the queue, and when its head can start."""
    one = _Pass(snapshot)
    one.decide()
    return one.outlook


class _Pass:
    """One pass over the queue; its state is built from the snapshot and discarded with the pass."""

    def __init__(self, snapshot: ClusterSnapshot) -> None:
        self._snapshot = snapshot
        self._free, self._held, self._reservations = taken(snapshot)
        told = Usage.told(snapshot.nodes, snapshot.admitted, snapshot.projects)
        self._growth = Growth(snapshot.reach, snapshot.admitted, told)
        self._usage = Usage(snapshot.nodes, snapshot.admitted, snapshot.projects)
        self._empty = EmptyCluster(snapshot.nodes)
        self._tried: set[WorkerNeed] = set()
        self._no_room: dict[tuple[WorkerNeed, Apart | None], int] = {}
        self._holders = list(snapshot.admitted)
        self._fresh, self._ask_last = list[Claim](), list[Claim]()
        self._admitted, self._overtaking = set[str](), set[str]()
        self._held_back, self._behind, self._stopped = dict[str, Why](), dict[str, Why](), dict[str, Why]()
        self._head_at_s = 0.0
        self._head: Claim | None = None
        self._awaits_nodes: Claim | None = None
        self._grants: dict[str, int] = {}
        self._evicted: list[EvictJob] = []
        self._turn: list[str] = []

    @property
    def outlook(self) -> Outlook:
        known = self._head is not None and 0 < self._head_at_s < inf
        return Outlook(
            self._turn, self._head.job_id if self._head else None, self._head_at_s if known else None
        )

    @property
    def demand(self) -> Demand:
        return self._growth.demand

    def decide(self) -> list[Decision]:
        queued, admitted, projects = self._snapshot.queued, self._snapshot.admitted, self._snapshot.projects
        # First: surplus above a lowered quota goes back, whatever else is decided.
        self._grants = surplus.within_quota(admitted, Usage.told(self._snapshot.nodes, admitted, projects))
        in_vain = []
        for claim, level in in_turn(queued, self._usage, projects, self._snapshot.rules):
            # Jobs whose nodes have not come are decided last, so that their demand takes the bound from nobody else.
            if self._snapshot.trouble(claim) is not None and not self._empty.fits(claim):
                in_vain.append((claim, level))
            else:
                self._decide(claim, level)
        for claim in self._ask_last:
            self._growth.ask(claim)
        for claim, level in in_vain:
            self._decide(claim, level)
        # Surplus only where nobody waits for room: else it would have to be taken back for the head at once.
        if self._head is None and self._awaits_nodes is None and not self._grants:
            for claim in sorted(admitted, key=lambda claim: -claim.priority):
                if claim.need not in self._snapshot.missing:
                    self._growth.ask_surplus(claim)
            self._share_out()
        return [
            *(self._answer(claim) for claim in queued),
            *(Grant(c.job_id, self._grants[c.job_id]) for c in admitted if c.job_id in self._grants),
            *self._evicted,
        ]

    def _decide(self, claim: Claim, level: int) -> None:
        self._turn.append(claim.job_id)
        if (why := self._refusal(claim, level)) is not None:
            self._held_back[claim.job_id] = why

    def _refusal(self, claim: Claim, level: int) -> Why | None:
        """The reason why the job does not start now; None when it does."""
        fits = self._empty.fits(claim)
        if not fits and not reaches(self._snapshot.reach, claim):
            return pending_reasons.too_big(claim, self._empty.most(claim.need), self._snapshot.reach)
        # The quota before the demand: no nodes are asked for a job that its own project holds back.
        if (why := self._beyond_quota(claim)) is not None:
            return why
        asked = self._ask(claim, fits=fits)
        if not fits:
            return self._wait_for_nodes(claim, level, asked=asked)
        if (why := self._others_first(claim, asked=asked)) is not None:
            return why
        overtakes = self._head is not None and not self._ends_in_time(claim)
        if not self._finds_room(claim):
            return self._waits_behind(self._head, claim.project) if self._head else self._wait(claim, level)
        if self._ask_last and self._ask_last[-1] is claim:
            self._growth.ask(self._ask_last.pop())  # it is at work from now on
        self._take(claim)
        self._holders.append(claim)
        self._fresh.append(claim)
        self._admitted.add(claim.job_id)
        if overtakes:
            self._overtaking.add(claim.job_id)
        return None

    def _take(self, claim: Claim) -> None:
        """Charge the job with everything that it may come to hold."""
        self._usage.begin(claim, claim.least)
        if claim.apart is None:
            self._reservations.add(claim.need, claim.least)
            self._held.workers[claim.job_id] = self._free.take(claim.need, claim.least) or []
            return
        self._reservations.add_gang(claim.need, claim.least, claim.apart)
        found = together(self._free, claim.need, claim.least, claim.apart) or ([], [])
        self._held.workers[claim.job_id], self._held.servers[claim.job_id] = found

    def _ask(self, claim: Claim, *, fits: bool) -> bool:
        """Ask the autoscaler for the gang; returns whether it may be asked for. A gang that would fit on the cluster as
        it is only waits for room: if its nodes have turned out to be unavailable, it asks when all others have
        asked."""
        if self._snapshot.trouble(claim) is None or not fits:
            return self._growth.ask(claim)
        if may := self._growth.may_ask(claim):
            self._ask_last.append(claim)
        return may

    def _others_first(self, claim: Claim, *, asked: bool) -> Why | None:
        """The reason why others come first: the job that waits for nodes, if this one takes what was asked for with
        them, or the head."""
        if self._awaits_nodes is not None and not asked:
            return pending_reasons.nodes_first(self._awaits_nodes, claim.project)
        if self._head is not None and not self._may_go_before(self._head, claim):
            return self._waits_behind(self._head, claim.project)
        return None

    def _finds_room(self, claim: Claim) -> bool:
        """Whether the gang finds room. Room only shrinks during a pass, so no gang of a shape looks for it where an
        equally small one found none."""
        shape = claim.need, claim.apart
        if claim.gang >= self._no_room.get(shape, inf):
            return False
        if self._reservations.gang(claim):
            return True
        self._no_room[shape] = claim.gang
        return False

    def _beyond_quota(self, claim: Claim) -> Why | None:
        """The reason why the quotas do not let it start; None when they do."""
        if (allowed := self._usage.quota(claim)) < claim.least:
            return pending_reasons.above_quota(claim, allowed)
        if claim.project in self._stopped:
            return self._stopped[claim.project]
        if (left := self._usage.left_for(claim)) < claim.least:
            # A job that the quota holds back holds back its whole project: the others wait behind it, whatever their
            # size.
            self._stopped[claim.project] = pending_reasons.behind(claim, claim.project, None)
            return pending_reasons.over_quota(claim, left)
        return None

    def _wait_for_nodes(self, claim: Claim, level: int, *, asked: bool) -> Why:
        """The reason for a gang that cannot fit on the cluster as it is. If the cluster could grow so far once others
        have ended, the job is a head like any other, for which room is made within the bound."""
        if (trouble := self._snapshot.trouble(claim)) is not None:
            return pending_reasons.nodes_unavailable(claim, trouble)
        if asked:
            self._awaits_nodes = self._awaits_nodes or claim
            return pending_reasons.waiting_for_nodes(claim)
        if (left := self._growth.quota_left(claim)) < claim.gang:
            return pending_reasons.over_quota(claim, left)
        if self._head is None:
            self._head = claim
            admitted, held, free = self._growth.bound(self._snapshot.admitted)
            if (why := self._make_room(claim, level, admitted, held, free)) is not None:
                return why
            self._head_at_s = ends_at(claim, admitted, held, free)
        return pending_reasons.grown(claim, self._snapshot.reach, self._snapshot.rules.hold_s)

    def _waits_behind(self, head: Claim, project: str) -> Why:
        """The reason given to the jobs of a project that wait behind the head; made once for all of them."""
        if project not in self._behind:
            hold_s = self._snapshot.rules.hold_s if self._head_at_s == inf else None
            self._behind[project] = pending_reasons.behind(head, project, hold_s)
        return self._behind[project]

    def _wait(self, head: Claim, level: int) -> Why:
        """Make this job the head: find the jobs that can make room for it, and the latest time at which it fits."""
        self._head = head
        found = self._free.fits(head.need, head.gang)
        # There is room, but not for certain: jobs that have no places yet could still break it up.
        if found >= head.gang and together(self._free.copy(), head.need, head.gang, head.apart) is not None:
            return pending_reasons.others_first(head)
        why = self._make_room(head, level, self._snapshot.admitted, self._held, self._free)
        if why is not None:
            return why
        self._head_at_s = ends_at(head, self._holders, self._held, self._free)
        return pending_reasons.no_room(head, found, self._holders, self._snapshot.trouble(head))

    def _make_room(
        self, head: Claim, level: int, admitted: Sequence[Claim], held: HeldPlaces, free: FreeRoom
    ) -> Why | None:
        """The reason with which others give workers back or leave for the head; None where that would not help, or is
        not its turn."""
        rules = self._snapshot.rules
        way = make_room(head, admitted, held, free, level=level, usage=self._usage, rules=rules)
        if way is None or (way.evict and not self._stays_first(head, way.evict)):
            return None
        # Nobody ends before 0: no job overtakes a head for which room is being made.
        self._head_at_s = 0.0
        for claim, count in way.shrink:
            self._grants[claim.job_id] = min(claim.told - count, self._grants.get(claim.job_id, claim.told))
        # One that has begun just now is waited for: it is part of the way, and evicted in a later pass.
        leaving = [claim for claim in way.evict if may_leave(claim, rules)]
        self._evicted = [EvictJob(claim.job_id, pending_reasons.preempted(head, claim)) for claim in leaving]
        return pending_reasons.making_room(head, [*way.going, *(claim for claim, _ in way.shrink)], way.evict)

    def _stays_first(self, head: Claim, evicted: Sequence[Claim]) -> bool:
        """Whether it would still be the head's turn once they are gone: their projects hold less by then, and they
        wait, too."""
        snapshot = self._snapshot
        for claim in evicted:
            self._usage.end(claim, claim.holds + claim.alike)
        # They would wait anew, without the age of their last wait.
        again = [replace(claim, waited_s=0.0) for claim in evicted]
        waiting = [claim for claim in snapshot.queued if claim.job_id not in self._admitted]
        waiting = sorted([*waiting, *again], key=lambda claim: claim.job_id) if again else waiting
        turns = in_turn(waiting, self._usage, snapshot.projects, snapshot.rules)
        first = next(claim for claim, _ in turns if claim is head or self._may_start(claim))
        # Restored: the rest of the pass goes on with what they hold today.
        for claim in evicted:
            self._usage.begin(claim, claim.holds + claim.alike)
        return first is head

    def _may_start(self, claim: Claim) -> bool:
        """Whether only other jobs hold it back."""
        return self._usage.left_for(claim) >= claim.least and self._empty.fits(claim)

    def _ends_in_time(self, claim: Claim) -> bool:
        """Whether the job has released everything by the time the head can start."""
        return claim.ends_in_s is not None and claim.ends_in_s <= self._head_at_s < inf

    def _may_go_before(self, head: Claim, claim: Claim) -> bool:
        """Whether the job may overtake the head. Only so many shapes of worker are tried, so that a pass stays
        short."""
        is_held = self._head_at_s < inf or head.waited_s < self._snapshot.rules.hold_s
        if is_held and not self._ends_in_time(claim):
            return False
        self._tried.add(claim.need)
        return len(self._tried) <= MOST_SHAPES

    def _share_out(self) -> None:
        admitted, rules = self._snapshot.admitted, self._snapshot.rules
        self._grants = surplus.give_out(
            admitted, self._fresh, self._free, usage=self._usage, reservations=self._reservations, rules=rules
        )
        if not self._grants and not self._fresh:
            moved = surplus.level_out(admitted, self._held, self._free, self._usage, rules)
            self._grants = dict([moved]) if moved else {}

    def _answer(self, claim: Claim) -> Decision:
        if claim.job_id not in self._admitted:
            return Hold(claim.job_id, self._held_back[claim.job_id])
        workers = self._grants.get(claim.job_id, claim.floor) if claim.elastic else None
        return Admit(claim.job_id, workers, overtakes=claim.job_id in self._overtaking)
