"""The reasons why jobs wait, with what would let them run, in words. They hold no figure that changes by itself: a
reason is stored once. All who may read the job read it, so it names jobs of the same project only, and tells nothing of
the jobs of others."""

from collections.abc import Sequence

from ringleader.wire.views import Why
from ringleader_api.scheduling.needs import count_of
from ringleader_api.scheduling.snapshot import Claim, Reach


def too_big(claim: Claim, most: int, reach: Reach | None) -> Why:
    further = f" and can grow to at most {reach}" if reach else ""
    return Why(
        code="cluster_too_small",
        message=f"needs {gang(claim)}; the whole cluster has room for {most}{_alone(claim)}{further}",
        hint="Add nodes, or lower workers.min or the resources of each worker.",
    )


def behind(blocker: Claim, project: str, hold_s: float | None) -> Why:
    """The reason for a job of `project` that comes behind `blocker`.

    Args:
        hold_s: for how long nobody overtakes a blocker of which nobody knows when it can start. None: it is known.
    """
    first = "It starts in its turn, or earlier"
    if hold_s is None:
        hint = f"{first} if its max_runtime_s ends before that job can start."
    else:
        hint = (
            f"{first} if there is room once that job has waited for {hold_s / 60:g} minutes without a known start "
            "time; it then makes room again as soon as that job can start."
        )
    theirs = f" and needs {gang(blocker)}" if blocker.project == project else ""
    return Why(
        code="behind_in_queue",
        message=f"waits behind {_named(blocker, project)}, which is ahead in the queue{theirs}",
        hint=hint,
    )


def over_quota(claim: Claim, left: int) -> Why:
    return Why(
        code="quota_used_up",
        message=f"needs {gang(claim)}; the quota of project {claim.project} has room for {max(0, left)}",
        hint="It starts when a job of the project ends or shrinks, or when an admin raises the quota.",
    )


def above_quota(claim: Claim, most: int) -> Why:
    return Why(
        code="quota_too_small",
        message=f"needs {gang(claim)}; the quota of project {claim.project} allows at most {most}",
        hint="Lower workers.min or the resources of each worker, or ask an admin to raise the quota.",
    )


def no_room(claim: Claim, found: int, admitted: Sequence[Claim], missing: str | None) -> Why:
    own = [f"{c.job_id} ({count_of(c.holds, 'worker')})" for c in admitted if c.project == claim.project]
    holders = _listed(own, others=len(own) < len(admitted)) or "other workloads"
    fit = f"{found} of the workers fit" if claim.apart else f"{found} fit"
    # An empty reason: the autoscaler could not provide nodes, and did not say why.
    nodes = (
        ""
        if missing is None
        else f"; the autoscaler could not provide more nodes{missing and f': {missing}'}"
    )
    return Why(
        code="waiting_for_capacity",
        message=f"needs {gang(claim)}; {fit} now, and the rest of the cluster is in use by {holders}{nodes}",
        hint="It starts when a job ends or when workers.max of a running job is lowered (ringleader resize).",
    )


def waiting_for_nodes(claim: Claim) -> Why:
    return Why(
        code="waiting_for_nodes",
        message=f"needs {gang(claim)}; more nodes have been requested from the autoscaler",
        hint="It starts once they have joined.",
    )


def nodes_unavailable(claim: Claim, trouble: str) -> Why:
    return Why(
        code="nodes_unavailable",
        message=f"needs {gang(claim)}; the autoscaler could not provide the nodes{trouble and f': {trouble}'}",
        hint="The request stays open, behind those of other jobs. Check the autoscaler's log and node types, or "
        "lower the job's needs.",
    )


def nodes_first(blocker: Claim, project: str) -> Why:
    """The reason for a job of `project` that would take the bound from a job that waits for nodes."""
    return Why(
        code="behind_in_queue",
        message=f"waits behind {_named(blocker, project)}, for which nodes have been requested from the autoscaler; "
        "both together would exceed the size that the cluster may grow to",
        hint="It starts in its turn, once that job has started or its nodes turn out to be unavailable.",
    )


def grown(claim: Claim, reach: Reach | None, hold_s: float) -> Why:
    return Why(
        code="waiting_for_capacity",
        message=f"needs {gang(claim)}; together with the active jobs that is more than the cluster may grow to "
        f"({reach})",
        hint="It starts once enough of them have ended. Jobs behind it wait until then; if it is not known when that "
        f"will be, they wait {hold_s / 60:g} minutes, then start where there is room and make room for it again.",
    )


def others_first(claim: Claim) -> Why:
    return Why(
        code="waiting_for_capacity",
        message=f"needs {gang(claim)}; there is room unless jobs that are starting or growing take it",
        hint="It starts once those jobs have been placed, usually within moments.",
    )


def making_room(claim: Claim, shrinking: Sequence[Claim], leaving: Sequence[Claim]) -> Why:
    parts = [
        f"{action} {_names(claims, claim.project)}"
        for claims, action in ((shrinking, "taking workers back from"), (leaving, "preempting"))
        if claims
    ]
    return Why(
        code="waiting_for_capacity",
        message=f"needs {gang(claim)}; the scheduler makes room by {' and by '.join(parts)}",
        hint="It starts as soon as that is done.",
    )


def preempted(head: Claim, claim: Claim) -> Why:
    """The reason for `claim`, which is evicted for `head`."""
    level = (
        f"which has priority {head.priority}"
        if head.project == claim.project
        else "which has a higher priority"
    )
    if claim.overtook:
        level = "which it had overtaken in the queue"
    return Why(
        code="preempted",
        message=f"made room for {_named(head, claim.project)}, {level}",
        hint="It continues from its checkpoint once there is room again; this does not count against max_failures.",
    )


def gang(claim: Claim) -> str:
    """The gang and its needs, in words."""
    if claim.apart is None:
        besides = f" and {count_of(claim.servers, 'server')}" if claim.servers else ""
        return f"{count_of(claim.floor, 'worker')}{besides} of {claim.need}"
    need, servers = claim.apart
    return f"{count_of(claim.floor, 'worker')} of {claim.need} each and {count_of(servers, 'server')} of {need} each"


def _alone(claim: Claim) -> str:
    return " of these workers (without the servers)" if claim.apart else ""


def _named(other: Claim, project: str) -> str:
    return other.job_id if other.project == project else "a job of another project"


def _names(claims: Sequence[Claim], project: str) -> str:
    own = [claim.job_id for claim in claims if claim.project == project]
    return _listed(own, others=len(own) < len(claims))


def _listed(own: Sequence[str], *, others: bool) -> str:
    """The first three, the number of the rest, and whether there are others besides."""
    parts = [*own[:3], *([f"{len(own) - 3} more"] if len(own) > 3 else [])]
    parts += ["jobs of other projects"] if others else []
    return " and ".join(part for part in (", ".join(parts[:-1]), *parts[-1:]) if part)
