"""The schedules chosen for the buckets, in words that leave the process: the data of an `exchange.chosen` event."""

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from ringleader.comm.simulator import ClusterCosts, LinkCost

IN_PLACE = "in_place"
"""The name of a sum without a schedule: rows are added where they lie, in memory that all members share."""


def told(algorithm: str, chosen: Iterable[tuple[str, int]], costs: ClusterCosts | None) -> dict[str, Any]:
    """The data of the event about an exchange.

    Args:
        algorithm: as in the job file.
        chosen: (schedule, bytes) of every bucket, for a batch in which all shards have rows.
        costs: the costs behind the choice; None where nothing was measured.

    Returns:
        `algorithm`; `ways`, a schedule each with its number of buckets and their least and most bytes, the largest
        first; `costs` in seconds and bytes a second, where there are some.
    """
    sizes: dict[str, list[int]] = defaultdict(list)
    for schedule, nbytes in chosen:
        sizes[schedule].append(nbytes)
    ways = [
        {"schedule": name, "buckets": len(found), "least_bytes": min(found), "most_bytes": max(found)}
        for name, found in sorted(sizes.items(), key=lambda item: (-max(item[1]), item[0]))
    ]
    measured = {} if costs is None else {"costs": _costs(costs)}
    return {"algorithm": algorithm, "ways": ways, **measured}


def _costs(costs: ClusterCosts) -> dict[str, Any]:
    inside = _link(costs.inside)
    between = {} if costs.between == costs.inside else {"between_nodes": _link(costs.between)}
    return {"inside": inside, **between, "add_bytes_per_s": _per_s(costs.add_s_per_byte)}


def _link(link: LinkCost) -> dict[str, Any]:
    return {"latency_s": link.latency_s, "bytes_per_s": _per_s(link.s_per_byte)}


def _per_s(s_per_byte: float) -> float | None:
    """Bytes a second; None where bytes took no time that could be measured."""
    return 1 / s_per_byte if s_per_byte > 0 else None
