"""How far the cluster may grow, and what it is asked to have room for: who is at work, and the gangs that wait."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from ringleader_api.scheduling.needs import SLACK, NodeShape, WorkerNeed
from ringleader_api.scheduling.reservations import HeldPlaces
from ringleader_api.scheduling.room import FreeRoom
from ringleader_api.scheduling.shares import Usage
from ringleader_api.scheduling.snapshot import Claim, Demand, Reach


def reaches(reach: Reach | None, claim: Claim, *, besides: tuple[float, float] = (0.0, 0.0)) -> bool:
    """Whether the gang of a job would fit on the cluster as large as it may become, beside so many CPUs and GPUs."""
    if reach is None:
        return False
    cpus, gpus = besides
    for need, count in _shapes(claim, claim.gang):
        cpus, gpus = cpus + count * need.cpus, gpus + count * need.gpus
    return cpus <= reach.cpus + SLACK and gpus <= reach.gpus + SLACK


MUCH_GB = 1e12
"""The bound says nothing of memory."""


class Growth:
    """What is asked for, as it adds up while a pass is decided; nothing where the cluster does not grow (None).

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
            if claim.told:
                self._add(claim, claim.told + claim.alike)

    @property
    def demand(self) -> Demand:
        return {} if self._reach is None else dict(self._asked)

    def may_ask(self, claim: Claim) -> bool:
        """False where the cluster may not grow so far, or where its project's quota is used up by what is asked for
        already."""
        if self._reach is None or self.quota_left(claim) < claim.gang:
            return False
        return reaches(self._reach, claim, besides=(self._cpus, self._gpus))

    def ask(self, claim: Claim) -> bool:
        """Ask for its gang besides; False, and nothing is asked, where that may not be."""
        if not self.may_ask(claim):
            return False
        self._add(claim, claim.gang)
        self._usage.begin(claim, claim.gang)
        return True

    def ask_surplus(self, claim: Claim) -> None:
        """Ask for what a job at work wants besides, as far as its project's quota and the bound leave it."""
        if self._reach is None or not claim.grows:
            return
        has = (
            (self._reach.cpus - self._cpus, claim.need.cpus),
            (self._reach.gpus - self._gpus, claim.need.gpus),
        )
        room = min(int((left + SLACK) // each) for left, each in has if each > 0)
        count = min(claim.headroom, room, self._usage.quota_left(claim.project, claim.need))
        if count > 0:
            self._asked[claim.need] += count
            self._cpus, self._gpus = (
                self._cpus + count * claim.need.cpus,
                self._gpus + count * claim.need.gpus,
            )
            self._usage.add(claim, count)

    def bound(self, admitted: Sequence[Claim]) -> tuple[list[Claim], HeldPlaces, FreeRoom]:
        """The admitted jobs as far as they are asked for, all on one node as large as the cluster may become, and what
        is left there: who leaves makes room for what may be asked for as they make room on nodes."""
        assert self._reach is not None
        left = NodeShape("", self._reach.cpus - self._cpus, self._reach.gpus - self._gpus, MUCH_GB)
        claims = [replace(claim, holds=claim.told) for claim in admitted if claim.told]
        held = HeldPlaces(
            {claim.job_id: [(0, claim.holds + claim.alike)] for claim in claims},
            {claim.job_id: [(0, claim.servers)] for claim in claims},
        )
        return claims, held, FreeRoom([left])

    def quota_left(self, claim: Claim) -> int:
        """Such workers that its project may have beside those that have been asked for."""
        return self._usage.left_for(claim)

    def _add(self, claim: Claim, count: int) -> None:
        for need, number in _shapes(claim, count):
            self._asked[need] += number
            self._cpus += number * need.cpus
            self._gpus += number * need.gpus


def _shapes(claim: Claim, count: int) -> list[tuple[WorkerNeed, int]]:
    """So many workers of a job, and its servers of another shape."""
    return [(claim.need, count), *([claim.apart] if claim.apart else [])]
