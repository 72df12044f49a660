"""Who may start: first come, first served, by the gang floor. Pure: `decide(snapshot)` says, the reconciler does."""

from collections.abc import Sequence
from dataclasses import dataclass

from ringleader.wire.views import Why
from ringleader_api.scheduling.places import Need, Node, place


@dataclass(frozen=True, slots=True)
class Claim:
    """A job that holds workers or wants them.

    Attributes:
        floor: workers it cannot start without.
        holds: for a job that has been admitted: the workers it has or may grow to.
    """

    job_id: str
    need: Need
    floor: int
    holds: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The cluster's nodes (totals), the admitted jobs, and the queue in order of submission."""

    nodes: Sequence[Node]
    admitted: Sequence[Claim]
    queued: Sequence[Claim]


@dataclass(frozen=True, slots=True)
class Admit:
    """Start this job now."""

    job_id: str


@dataclass(frozen=True, slots=True)
class Hold:
    """Keep this job queued, and why."""

    job_id: str
    why: Why


Decision = Admit | Hold


def decide(snapshot: Snapshot) -> list[Decision]:
    """One decision for each queued job, in queue order.

    The first job that does not fit holds back those behind it, so that small jobs cannot starve a big one; a job
    that not even the empty cluster could take (a node has left) holds nobody back.
    """
    free = tuple(snapshot.nodes)
    for claim in snapshot.admitted:
        _, free = place(free, claim.need, claim.holds)
    holders = list(snapshot.admitted)
    decisions: list[Decision] = []
    blocker: Claim | None = None
    for claim in snapshot.queued:
        if not fits(snapshot.nodes, claim):
            decisions.append(Hold(claim.job_id, _too_big(snapshot.nodes, claim)))
        elif blocker is not None:
            decisions.append(Hold(claim.job_id, _behind(claim, blocker)))
        elif (found := place(free, claim.need, claim.floor)[0]) < claim.floor:
            blocker = claim
            decisions.append(Hold(claim.job_id, _no_room(claim, found, holders)))
        else:
            _, free = place(free, claim.need, claim.holds)
            holders.append(claim)
            decisions.append(Admit(claim.job_id))
    return decisions


def fits(nodes: Sequence[Node], claim: Claim) -> bool:
    """Whether the floor of a job would fit on the cluster if it were empty."""
    return place(nodes, claim.need, claim.floor)[0] >= claim.floor


def most(nodes: Sequence[Node], need: Need) -> int:
    """How many such workers the empty cluster holds."""
    return place(nodes, need, 1 << 20)[0]


def _too_big(nodes: Sequence[Node], claim: Claim) -> Why:
    return Why(
        code="cluster_too_small",
        message=f"needs {claim.floor} workers of {claim.need}; the whole cluster holds {most(nodes, claim.need)}",
        hint="Add nodes, or lower workers.min or what a worker needs.",
    )


def _behind(claim: Claim, blocker: Claim) -> Why:
    return Why(
        code="behind_in_queue",
        message=f"waits behind {blocker.job_id}, which came first and needs {blocker.floor} workers of {blocker.need}",
        hint="It starts in its turn.",
    )


def _no_room(claim: Claim, found: int, admitted: Sequence[Claim]) -> Why:
    holders = ", ".join(f"{c.job_id} ({c.holds})" for c in admitted[:3])
    more = f" and {len(admitted) - 3} more" if len(admitted) > 3 else ""
    return Why(
        code="waiting_for_capacity",
        message=f"needs {claim.floor} workers of {claim.need}, {found} fit now; workers are held by {holders}{more}",
        hint="It starts when a job ends, or when workers.max of a running job is lowered (ringleader resize).",
    )
