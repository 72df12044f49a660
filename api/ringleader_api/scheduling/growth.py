"""How far the cluster may grow, and what it is asked to have room for: who is at work, and the gangs that wait."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from ringleader_api.scheduling.places import SLACK, Need, Node
from ringleader_api.scheduling.room import Room, Spots
from ringleader_api.scheduling.shares import Usage
from ringleader_api.scheduling.snapshot import Claim, Demand, Reach


def reaches(reach: Reach | None, claim: Claim, *, besides: tuple[float, float] = (0.0, 0.0)) -> bool:
    """Whether the gang of a job would fit on the cluster as large as it may become, beside so many CPUs and GPUs."""
    if reach is None:
        return False
    cpus, gpus = (
        has + claim.gang * each for has, each in zip(besides, (claim.need.cpus, claim.need.gpus), strict=True)
    )
    return cpus <= reach.cpus + SLACK and gpus <= reach.gpus + SLACK


MUCH_GB = 1e12
"""The bound says nothing of memory."""


class Growth:
    """What is asked for, as it adds up while a pass is decided; nothing where the cluster does not grow (None).

    Surplus is not asked for: nodes are got for gangs, and what they leave over is given out as ever.

    Args:
        usage: what the admitted jobs have been told they may have; changes with what is asked for.
    """

    def __init__(self, reach: Reach | None, admitted: Sequence[Claim], usage: Usage) -> None:
        self._reach = reach
        self._usage = usage
        self._asked: Counter[Need] = Counter()
        self._cpus = self._gpus = 0.0
        for claim in admitted:
            if claim.told:
                self._add(claim, claim.told + claim.servers)

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
        self._usage.add(claim, claim.gang)
        return True

    def bound(self, admitted: Sequence[Claim]) -> tuple[list[Claim], dict[str, Spots], Room]:
        """The admitted jobs as far as they are asked for, all on one node as large as the cluster may become, and what
        is left there: who leaves makes room for what may be asked for as they make room on nodes."""
        assert self._reach is not None
        left = Node("", self._reach.cpus - self._cpus, self._reach.gpus - self._gpus, MUCH_GB)
        claims = [replace(claim, holds=claim.told) for claim in admitted if claim.told]
        return claims, {claim.job_id: [(0, claim.holds + claim.servers)] for claim in claims}, Room([left])

    def quota_left(self, claim: Claim) -> int:
        """Such workers that its project may have beside those that have been asked for."""
        return self._usage.quota_left(claim.project, claim.need)

    def _add(self, claim: Claim, count: int) -> None:
        self._asked[claim.need] += count
        self._cpus += count * claim.need.cpus
        self._gpus += count * claim.need.gpus
