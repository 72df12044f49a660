"""Fair shares: what each project uses, what it is due, and the order of the queue that follows."""

import heapq
from collections.abc import Iterator, Mapping, Sequence

from ringleader_api.scheduling.needs import SLACK, NodeShape, WorkerNeed
from ringleader_api.scheduling.snapshot import Claim, ProjectShare, SchedulerRules

PLAIN = ProjectShare()
_Used = tuple[int, float, float, float]
"""Workers and servers, CPUs, GPUs, GB of memory."""
NOTHING: _Used = (0, 0.0, 0.0, 0.0)


class Usage:
    """The resources held by each project's jobs, as they change during a pass."""

    def __init__(
        self, nodes: Sequence[NodeShape], admitted: Sequence[Claim], projects: Mapping[str, ProjectShare]
    ) -> None:
        self._projects = projects
        self._totals = (
            sum(n.cpus for n in nodes),
            sum(n.gpus for n in nodes),
            sum(n.memory_gb for n in nodes),
        )
        self._used: dict[str, _Used] = {}
        for claim in admitted:
            self.begin(claim, claim.holds + claim.alike)

    @classmethod
    def told(
        cls, nodes: Sequence[NodeShape], admitted: Sequence[Claim], projects: Mapping[str, ProjectShare]
    ) -> "Usage":
        """The usage once every job has released what it was asked for."""
        usage = cls(nodes, (), projects)
        for claim in admitted:
            usage.begin(claim, claim.told + claim.alike)
        return usage

    def begin(self, claim: Claim, places: int) -> None:
        """Add a whole job, with so many workers and servers of the same size."""
        self.add(claim, places)
        if claim.apart is not None:
            self._used[claim.project] = _plus(self._of_project(claim), *claim.apart)

    def end(self, claim: Claim, places: int) -> None:
        """Remove a whole job."""
        self.add(claim, -places)
        if claim.apart is not None:
            need, servers = claim.apart
            self._used[claim.project] = _plus(self._of_project(claim), need, -servers)

    def add(self, claim: Claim, places: int) -> None:
        """Add `places` workers; negative for fewer."""
        self._used[claim.project] = _plus(self._of_project(claim), claim.need, places)

    def share(self, project: str) -> float:
        """The greatest share of any resource that the project holds, divided by its weight (dominant resource fairness,
        Ghodsi et al. 2011)."""
        used = self._used.get(project, NOTHING)[1:]
        return self._dominant(used) / self._of(project).weight

    def unit(self, claim: Claim) -> float:
        """The most by which one more worker raises the share of its project."""
        need = claim.need
        return self._dominant((need.cpus, need.gpus, need.memory_gb)) / self._of(claim.project).weight

    def quota_left(self, project: str, need: WorkerNeed) -> int:
        """The number of such workers that the quotas still allow; negative where too many are held."""
        return _within(self._of(project), need, self._used.get(project, NOTHING))

    def left_for(self, claim: Claim) -> int:
        """The same for a job that would begin, beside its servers of another shape."""
        used = self._of_project(claim)
        if claim.apart is not None:
            used = _plus(used, *claim.apart)
        return _within(self._of(claim.project), claim.need, used)

    def quota(self, claim: Claim) -> int:
        """The number of the job's workers that the quotas allow at all, beside its servers of another shape."""
        used = NOTHING if claim.apart is None else _plus(NOTHING, *claim.apart)
        return _within(self._of(claim.project), claim.need, used)

    def _of_project(self, claim: Claim) -> _Used:
        return self._used.get(claim.project, NOTHING)

    def _of(self, project: str) -> ProjectShare:
        return self._projects.get(project, PLAIN)

    def _dominant(self, used: tuple[float, float, float]) -> float:
        # A resource that no node has is nobody's share of it, and must not divide by 0.
        return max((u / total for u, total in zip(used, self._totals, strict=True) if total > 0), default=0.0)


def _plus(used: _Used, need: WorkerNeed, count: int) -> _Used:
    members, cpus, gpus, memory_gb = used
    return (
        members + count,
        cpus + count * need.cpus,
        gpus + count * need.gpus,
        memory_gb + count * need.memory_gb,
    )


def _within(project: ProjectShare, need: WorkerNeed, used: _Used) -> int:
    limits = (
        (project.workers, 1, used[0]),
        (project.cpus, need.cpus, used[1]),
        (project.gpus, need.gpus, used[2]),
    )
    return min(
        # The slack: sums of fractions of CPUs end a little beside the whole number that they should be.
        (int((limit - has + SLACK) // each) for limit, each, has in limits if limit is not None and each > 0),
        default=1 << 30,
    )


def in_turn(
    queued: Sequence[Claim], usage: Usage, projects: Mapping[str, ProjectShare], rules: SchedulerRules
) -> Iterator[tuple[Claim, int]]:
    """The queue in the order in which it is served, each job with its level: levels come first, then the project with
    the smallest share as it is by then, then who came first."""
    top = max((claim.priority for claim in queued), default=0)
    weights = {name: projects.get(name, PLAIN).weight for name in {claim.project for claim in queued}}
    # Below its fair share: its weight's part of the cluster, among the projects that wait.
    due = {name: usage.share(name) * sum(weights.values()) < 1 for name in weights}
    lines: dict[str, list[tuple[int, int]]] = {}
    for number, claim in enumerate(queued):
        level = _level(claim, top, rules, is_due=due[claim.project])
        lines.setdefault(claim.project, []).append((-level, number))
    heads: list[tuple[int, float, int, str]] = []
    # Kept backwards, so that the next of a line is taken off its end.
    for project, line in lines.items():
        line.sort(reverse=True)
        heads.append((line[-1][0], usage.share(project), line[-1][1], project))
    heapq.heapify(heads)
    while heads:
        # The share is read again after each job: the caller charges it as it takes the job.
        lowered, _, number, project = heads[0]
        yield queued[number], -lowered
        line = lines[project]
        line.pop()
        if line:
            heapq.heapreplace(heads, (line[-1][0], usage.share(project), line[-1][1], project))
        else:
            heapq.heappop(heads)


def _level(claim: Claim, top: int, rules: SchedulerRules, *, is_due: bool) -> int:
    # Above every level that a priority can reach: such a job goes before all others.
    if is_due and claim.waited_s >= rules.patience_s:
        return top + 1
    # Waiting alone lifts a job up to the highest priority that anybody waits with, never above; so without priorities
    # it changes nothing.
    return min(claim.priority + int(claim.waited_s // rules.age_s), top)
