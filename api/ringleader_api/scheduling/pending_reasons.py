"""The reasons why jobs wait, with what would let them run, in words. They hold no figure that changes by itself: a
reason is stored once. All who may read the job read it, so it names jobs of the same project only, and tells nothing of
the jobs of others."""

from collections.abc import Sequence

from ringleader.wire.views import Why
from ringleader_api.scheduling.snapshot import Claim, Reach


def too_big(claim: Claim, most: int, reach: Reach | None) -> Why:
    further = f" and may grow to {reach}" if reach else ""
    return Why(
        code="cluster_too_small",
        message=f"needs {gang(claim)}; the whole cluster holds {most}{_alone(claim)}{further}",
        hint="Add nodes, or lower workers.min or what a worker needs.",
    )


def behind(blocker: Claim, project: str, hold_s: float | None) -> Why:
    """The reason for a job of `project` that comes behind `blocker`.

    Args:
        hold_s: for how long nobody overtakes a blocker of which nobody knows when it can start. None: it is known.
    """
    first = "It starts in its turn, or before"
    if hold_s is None:
        hint = f"{first} with a max_runtime_s that ends before that one can start."
    else:
        hint = (
            f"{first} where there is room once that one has waited for {hold_s / 60:g} minutes: nobody knows when that "
            "one can start, and this one makes room for it again."
        )
    theirs = f" and needs {gang(blocker)}" if blocker.project == project else ""
    return Why(
        code="behind_in_queue",
        message=f"waits behind {_named(blocker, project)}, which comes first{theirs}",
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
        message=f"needs {gang(claim)}; the quota of project {claim.project} never allows more than {most}",
        hint="Lower workers.min or what a worker needs, or have an admin raise the quota.",
    )


def no_room(claim: Claim, found: int, admitted: Sequence[Claim], missing: str | None) -> Why:
    own = [f"{c.job_id} ({c.holds})" for c in admitted if c.project == claim.project]
    holders = _listed(own, others=len(own) < len(admitted)) or "others that are no jobs"
    fit = f"{found} of the workers fit" if claim.apart else f"{found} fit"
    nodes = "" if missing is None else f"; more nodes have been asked for in vain{missing and f': {missing}'}"
    return Why(
        code="waiting_for_capacity",
        message=f"needs {gang(claim)}, {fit} now; workers are held by {holders}{nodes}",
        hint="It starts when a job ends, or when workers.max of a running job is lowered (ringleader resize).",
    )


def waiting_for_nodes(claim: Claim) -> Why:
    return Why(
        code="waiting_for_nodes",
        message=f"needs {gang(claim)}; the autoscaler has been asked for nodes",
        hint="It starts when they have joined.",
    )


def nodes_unavailable(claim: Claim, trouble: str) -> Why:
    return Why(
        code="nodes_unavailable",
        message=f"needs {gang(claim)}; the nodes asked for have not come{trouble and f': {trouble}'}",
        hint="They are asked for on, after the nodes of others. See the autoscaler's log and node types, or lower what "
        "the job needs.",
    )


def nodes_first(blocker: Claim, project: str) -> Why:
    """The reason for a job of `project` that would take the bound from a job that waits for nodes."""
    return Why(
        code="behind_in_queue",
        message=f"waits behind {_named(blocker, project)}, for which the autoscaler has been asked for nodes: beside "
        "it that is more than may be asked for",
        hint="It starts in its turn once that one has started, or its nodes turn out not to be had.",
    )


def grown(claim: Claim, reach: Reach | None, hold_s: float) -> Why:
    return Why(
        code="waiting_for_capacity",
        message=f"needs {gang(claim)}; beside the jobs at work that is more than the cluster may grow to ({reach})",
        hint="It starts when enough of them have ended. Jobs behind it wait for that; where nobody knows when it will "
        f"be, for {hold_s / 60:g} minutes: then they start where there is room, and make room for it again.",
    )


def others_first(claim: Claim) -> Why:
    return Why(
        code="waiting_for_capacity",
        message=f"needs {gang(claim)}, which fit unless jobs that are starting or growing land in their way",
        hint="It starts when those have their places, in a moment.",
    )


def making_room(claim: Claim, shrinking: Sequence[Claim], leaving: Sequence[Claim]) -> Why:
    parts = [
        f"{_names(claims, claim.project)} {deed}"
        for claims, deed in ((shrinking, "give workers back"), (leaving, "leave"))
        if claims
    ]
    return Why(
        code="waiting_for_capacity",
        message=f"needs {gang(claim)}; {' and '.join(parts)} for it",
        hint="It starts as soon as they have.",
    )


def preempted(head: Claim, claim: Claim) -> Why:
    """The reason for `claim`, which is evicted for `head`."""
    level = (
        f"which has priority {head.priority}"
        if head.project == claim.project
        else "which has a higher priority"
    )
    if claim.overtook:
        level = "before which it had been let go"
    return Why(
        code="preempted",
        message=f"made room for {_named(head, claim.project)}, {level}",
        hint="It goes on from its checkpoint when there is room again; no failure is spent.",
    )


def gang(claim: Claim) -> str:
    """The gang and its needs, in words."""
    if claim.apart is None:
        besides = f" and {claim.servers} servers" if claim.servers else ""
        return f"{claim.floor} workers{besides} of {claim.need}"
    need, servers = claim.apart
    return f"{claim.floor} workers of {claim.need} each and {servers} servers of {need} each"


def _alone(claim: Claim) -> str:
    return " such workers without the servers" if claim.apart else ""


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
