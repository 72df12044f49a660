"""Why a job waits, and what would let it run, in words. No figure that changes by itself: a reason is stored once."""

from collections.abc import Sequence

from ringleader.wire.views import Why
from ringleader_api.scheduling.snapshot import Claim, Reach


def too_big(claim: Claim, most: int, reach: Reach | None) -> Why:
    further = f" and may grow to {reach}" if reach else ""
    return Why(
        code="cluster_too_small",
        message=f"needs {gang(claim)}; the whole cluster holds {most}{further}",
        hint="Add nodes, or lower workers.min or what a worker needs.",
    )


def behind(blocker: Claim) -> Why:
    return Why(
        code="behind_in_queue",
        message=f"waits behind {blocker.job_id}, which comes first and needs {gang(blocker)}",
        hint="It starts in its turn, or before with a max_runtime_s that ends before that one can start.",
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
    holders = ", ".join(f"{c.job_id} ({c.holds})" for c in admitted[:3]) or "others that are no jobs"
    more = f" and {len(admitted) - 3} more" if len(admitted) > 3 else ""
    nodes = "" if missing is None else f"; more nodes have been asked for in vain{missing and f': {missing}'}"
    return Why(
        code="waiting_for_capacity",
        message=f"needs {gang(claim)}, {found} fit now; workers are held by {holders}{more}{nodes}",
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
        hint="They are still asked for. See the autoscaler's log and node types, or lower what the job needs.",
    )


def grown(claim: Claim, reach: Reach | None) -> Why:
    return Why(
        code="waiting_for_capacity",
        message=f"needs {gang(claim)}; beside the jobs at work that is more than the cluster may grow to ({reach})",
        hint="It starts when enough of them have ended; jobs behind it wait for that.",
    )


def others_first(claim: Claim) -> Why:
    return Why(
        code="waiting_for_capacity",
        message=f"needs {gang(claim)}, which fit unless jobs that are starting or growing land in their way",
        hint="It starts when those have their places, in a moment.",
    )


def making_room(claim: Claim, shrinking: Sequence[str], leaving: Sequence[str]) -> Why:
    parts = [
        f"{_names(ids)} {deed}" for ids, deed in ((shrinking, "give workers back"), (leaving, "leave")) if ids
    ]
    return Why(
        code="waiting_for_capacity",
        message=f"needs {gang(claim)}; {' and '.join(parts)} for it",
        hint="It starts as soon as they have.",
    )


def preempted(head: Claim) -> Why:
    return Why(
        code="preempted",
        message=f"made room for {head.job_id}, which has priority {head.priority}",
        hint="It goes on from its checkpoint when there is room again; no failure is spent.",
    )


def gang(claim: Claim) -> str:
    servers = f" and {claim.servers} servers" if claim.servers else ""
    return f"{claim.floor} workers{servers} of {claim.need}"


def _names(ids: Sequence[str]) -> str:
    return ", ".join(ids[:3]) + (f" and {len(ids) - 3} more" if len(ids) > 3 else "")
