"""The growth of the cluster: how far it may go, and the demand for the jobs at work and the gangs that wait."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from ringleader_api.scheduling.needs import SLACK, NodeShape, WorkerNeed
from ringleader_api.scheduling.reservations import HeldPlaces
from ringleader_api.scheduling.room import FreeRoom
from ringleader_api.scheduling.shares import Usage
from ringleader_api.scheduling.snapshot import Claim, Demand, Reach


def reaches(reach: Reach | None, claim: Claim, *, besides: tuple[float, float] = (0.0, 0.0)) -> bool:
    """Whether the gang would fit on the cluster at its largest, beside so many CPUs and GPUs."""
    if reach is None:
        return False
    cpus, gpus = besides
    for need, count in _shapes(claim, claim.gang):
        cpus, gpus = cpus + count * need.cpus, gpus + count * need.gpus
    return cpus <= reach.cpus + SLACK and gpus <= reach.gpus + SLACK


MUCH_GB = 1e12
"""The memory of the node that stands for the bound, which says nothing of memory."""


class Growth:
    """The demand, as it adds up during a pass; empty where the cluster does not grow (None).

    Nodes are got for gangs, and for the surplus of jobs that say so; what they leave over is given out as ever.

    Args:
        usage: what the admitted jobs have been told they may have; changes with what is asked for.
    """

    def __init__(self, reach: Reach | None, admitted: Sequence[Claim], usage: Usage) -> None:
        self._reach = reach
        self._usage = usage
        self._asked: Counter[WorkerNeed] = Counter()
        self._cpus = self._gpus = 0.0
        for claim in admitted:
            # A job that is leaving has been told 0: no nodes are asked for it.
            if claim.told:
                self._add(claim, claim.told + claim.alike)

    @property
    def demand(self) -> Demand:
        return {} if self._reach is None else dict(self._asked)

    def may_ask(self, claim: Claim) -> bool:
        """Whether the gang may be asked for. Not where the cluster may not grow so far, or the demand so far uses up
        its project's quota."""
        if self._reach is None or self.quota_left(claim) < claim.gang:
            return False
        return reaches(self._reach, claim, besides=(self._cpus, self._gpus))

    def ask(self, claim: Claim) -> bool:
        """Add its gang to the demand; False, and nothing is added, where it may not be asked for."""
        if not self.may_ask(claim):
            return False
        self._add(claim, claim.gang)
        # Charged at once: two gangs of a project must not be asked for within one quota.
        self._usage.begin(claim, claim.gang)
        return True

    def ask_surplus(self, claim: Claim) -> None:
        """Add the workers that a job at work wants besides, as far as its project's quota and the bound allow."""
        if self._reach is None or not claim.grows:
            return
        has = (
            (self._reach.cpus - self._cpus, claim.need.cpus),
            (self._reach.gpus - self._gpus, claim.need.gpus),
        )
        room = min(int((left + SLACK) // each) for left, each in has if each > 0)
        # Below 0 where more is held than a quota that was lowered: then nothing is asked for.
        count = min(claim.headroom, room, self._usage.quota_left(claim.project, claim.need))
        if count > 0:
            self._asked[claim.need] += count
            self._cpus, self._gpus = (
                self._cpus + count * claim.need.cpus,
                self._gpus + count * claim.need.gpus,
            )
            self._usage.add(claim, count)

    def bound(self, admitted: Sequence[Claim]) -> tuple[list[Claim], HeldPlaces, FreeRoom]:
        """The admitted jobs as far as they are asked for, all on one node of the cluster's largest size, and the room
        left there."""
        assert self._reach is not None
        left = NodeShape("", self._reach.cpus - self._cpus, self._reach.gpus - self._gpus, MUCH_GB)
        # What a job still holds and was asked back is under no bound any more: no nodes are asked for it.
        claims = [replace(claim, holds=claim.told) for claim in admitted if claim.told]
        # With places on that node, so that a job that leaves makes room under the bound as it does on nodes.
        held = HeldPlaces(
            {claim.job_id: [(0, claim.holds + claim.alike)] for claim in claims},
            {claim.job_id: [(0, claim.servers)] for claim in claims},
        )
        return claims, held, FreeRoom([left])

    def quota_left(self, claim: Claim) -> int:
        """The number of such workers that its project may have beside those already asked for."""
        return self._usage.left_for(claim)

    def _add(self, claim: Claim, count: int) -> None:
        for need, number in _shapes(claim, count):
            self._asked[need] += number
            self._cpus += number * need.cpus
            self._gpus += number * need.gpus


def _shapes(claim: Claim, count: int) -> list[tuple[WorkerNeed, int]]:
    """The shapes of so many of its workers, with its servers where they differ."""
    return [(claim.need, count), *([claim.apart] if claim.apart else [])]
