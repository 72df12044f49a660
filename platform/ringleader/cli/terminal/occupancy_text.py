"""The occupancy of the cluster, as tables: each node with the jobs on it, the queue in its order, the last days."""

from collections.abc import Iterator
from datetime import UTC

from ringleader.cli.output import ago, table
from ringleader.text import gist
from ringleader.wire.occupancy import OccupancyView, OccupiedNode, Resources, UsageHistory, WaitingJob

HIDDEN = "another project's job"
"""A job that the caller may not read."""
KINDS = ("cpus", "gpus", "memory_gb")
ID_SHOWN = 10
"""The letters of a node's id that stand beside its address: two may have the same one."""


def occupancy_text(seen: OccupancyView) -> str:
    # Not what is used of it: a job that reserves no memory may still fill the node's.
    head = "nodes: reserved of what each has" if seen.reachable else "nodes"
    return f"{head}\n{_nodes(seen)}\n\nqueue\n{_queue(seen)}"


def history_text(past: UsageHistory) -> str:
    """A line for each day, newest first: hours of CPUs and GPUs that jobs held, and that were idle. A minute that was
    not sampled counts for neither."""
    days: dict[str, list[float]] = {}
    amounts = zip(past.held_cpus, past.cpus, past.held_gpus, past.gpus, strict=True)
    for at, (held_cpus, cpus, held_gpus, gpus) in zip(past.at, amounts, strict=True):
        sums = days.setdefault(at.astimezone(UTC).date().isoformat(), [0.0] * 4)
        minute = (held_cpus, max(0.0, cpus - held_cpus), held_gpus, max(0.0, gpus - held_gpus))
        sums[:] = [total + one / 60 for total, one in zip(sums, minute, strict=True)]
    header = ("DAY", "CPU_H_HELD", "CPU_H_IDLE", "GPU_H_HELD", "GPU_H_IDLE")
    rows = ((day, *(f"{total:.2f}" for total in sums)) for day, sums in sorted(days.items(), reverse=True))
    return table(header, rows, empty="no minute was sampled")


def _nodes(seen: OccupancyView) -> str:
    """A line for each job on each node: what it has reserved of the node's resources, its workers as far as known."""
    if not seen.reachable:
        return f"out of reach: {seen.trouble or 'for no known reason'}"
    header = ("NODE", "JOB", "NAME", *map(str.upper, KINDS), "PLACES", "SERVERS", "WORKERS")
    return table(header, (row for node in seen.nodes for row in _node_rows(node)))


def _node_rows(node: OccupiedNode) -> Iterator[tuple[object, ...]]:
    named = f"{node.address} {node.id[:ID_SHOWN]}" if node.address else node.id
    for one in node.jobs:
        who = (one.job, one.name if one.job is not None else HIDDEN)
        yield (named, *who, *_shares(one, node), one.places, one.servers, " ".join(one.members))
    if any(getattr(node.others, kind) for kind in KINDS):
        yield (named, None, "other workloads", *_shares(node.others, node), None, None, None)
    elif not node.jobs:
        yield (named, None, "no job", *_shares(node.others, node), None, None, None)


def _shares(taken: Resources, node: Resources) -> list[str]:
    """`2/4`: two of four; nothing of what the node has not."""
    pairs = ((getattr(taken, kind), getattr(node, kind)) for kind in KINDS)
    return [f"{round(part, 2):g}/{round(whole, 2):g}" if whole else "" for part, whole in pairs]


def _queue(seen: OccupancyView) -> str:
    header = ("PLACE", "JOB", "NAME", "PROJECT", "WORKERS", "WAITED", "STARTS_BY", "REASON")
    shown = table(header, map(_waiting_row, seen.queue), empty="no job waits")
    behind = seen.waiting - len(seen.queue)
    return shown + (f"\nand {behind} job{'' if behind == 1 else 's'} behind them" if behind > 0 else "")


def _waiting_row(one: WaitingJob) -> tuple[object, ...]:
    name = one.name if one.job is not None else HIDDEN
    starts = f"{one.starts_by:%m-%d %H:%M}" if one.starts_by is not None else None
    reason = gist(one.why.message) if one.why is not None else None
    return (one.place, one.job, name, one.project, one.workers, ago(one.since), starts, reason)
