"""The layout of the cluster: its nodes, the places that attempts have there, and what others use."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ringleader.runtime.messages import parse_name

_GROUP = re.compile(r"(?P<attempt>job-.+-a\d+)-(floor|surplus-(?P<worker>.+))")
# Also groups that have lost a node: their other bundles still hold what they have.
_PLACED = ("CREATED", "RESCHEDULING")
RAY_UNITS = {"CPU": 1.0, "GPU": 1.0, "memory": 1.0 / (1 << 30)}
# Differences of sums of floats are seldom exactly 0.
_NOISE = 1e-3

Amounts = tuple[float, float, float]
"""CPUs, GPUs, GB of memory."""


@dataclass(frozen=True, slots=True)
class ClusterLayout:
    """The cluster at one moment.

    Attributes:
        nodes: the total amounts of each living node, by its id; nothing where it is being drained.
        others: the amounts used there by whatever is no attempt.
        places: by (job id, attempt) the nodes of its members, the gang's first, then the surplus as it came.
        servers: the same for servers that have another shape than the first worker.
        addresses: the IP address of each living node.
    """

    nodes: Mapping[str, Amounts]
    others: Mapping[str, Amounts]
    places: Mapping[tuple[str, int], "Spots"]
    servers: Mapping[tuple[str, int], "Spots"] = field(default_factory=dict)
    addresses: Mapping[str, str] = field(default_factory=dict)


Spots = tuple[tuple[str, int], ...]
"""(node, number of places there)"""


def look() -> ClusterLayout:
    """The cluster as Ray reports it now. Free amounts lag a little behind: `others` may hold what attempts have just
    released."""
    import ray
    from ray._private.state import available_resources_per_node, state
    from ray.util.placement_group import placement_group_table

    free = {node: _amounts(resources) for node, resources in available_resources_per_node().items()}
    groups = [g for g in placement_group_table().values() if g["state"] in _PLACED]
    draining = state.get_draining_nodes()
    living = [node for node in ray.nodes() if node["Alive"]]
    alive = {node["NodeID"]: _amounts(node["Resources"]) for node in living}
    used: dict[str, Amounts] = dict.fromkeys(alive, (0.0, 0.0, 0.0))
    for group in groups:
        if _GROUP.fullmatch(group["name"]):
            for bundle, node in group["bundles_to_node_id"].items():
                if node in used:
                    used[node] = _sum(used[node], _amounts(group["bundles"][bundle]))
    # Free, total and reserved amounts are of three moments: their difference may fall below zero.
    others = {
        node: tuple(max(0.0, t - f - u) for t, f, u in zip(total, free[node], used[node], strict=True))
        for node, total in alive.items()
        # A node that has just come has no free amounts yet.
        if node in free
    }
    places, servers = places_of(groups)
    return ClusterLayout(
        nodes={node: (0.0, 0.0, 0.0) if node in draining else total for node, total in alive.items()},
        others={node: (c, g, m) for node, (c, g, m) in others.items() if max(c, g, m) > _NOISE},
        places=places,
        servers=servers,
        addresses={node["NodeID"]: node["NodeManagerAddress"] for node in living},
    )


def lasting(before: ClusterLayout | None, now: ClusterLayout) -> Mapping[str, Amounts]:
    """The amounts that others use in both looks: what has just been released shows in one of them only."""
    if before is None:
        return {}
    return {
        node: (min(amounts[0], was[0]), min(amounts[1], was[1]), min(amounts[2], was[2]))
        for node, amounts in now.others.items()
        if (was := before.others.get(node)) is not None
    }


def places_of(
    groups: Iterable[Mapping[str, Any]],
) -> tuple[dict[tuple[str, int], Spots], dict[tuple[str, int], Spots]]:
    """The nodes by (job id, attempt): those of the gang, then those of the surplus in the order of their workers; and
    beside them the same for servers that need something else than a worker."""
    found: dict[tuple[str, int], list[tuple[tuple[int, str], Mapping[str, Any]]]] = {}
    for group in groups:
        match = _GROUP.fullmatch(group["name"])
        who = parse_name(match["attempt"]) if match else None
        if match is None or who is None:
            continue
        worker = match["worker"] or ""
        # The gang, which names no worker, sorts first, and w10 behind w9.
        found.setdefault(who, []).append(((len(worker), worker), group))
    places, servers = {}, {}
    for who, parts in found.items():
        gang, *surplus = [group for _, group in sorted(parts, key=lambda part: part[0])]
        first = gang.get("bundles", {}).get(0)  # the gang's first bundle is a worker's
        places[who] = _spots([gang, *surplus], first, same=True)
        servers[who] = _spots([gang, *surplus], first, same=False)
    return places, {who: spots for who, spots in servers.items() if spots}


def _spots(groups: Iterable[Mapping[str, Any]], shape: object, *, same: bool) -> Spots:
    """The nodes of the bundles that have that shape (`same`), or any other one, group by group."""
    found: list[tuple[str, int]] = []
    for group in groups:
        bundles = group.get("bundles", {})
        on = group["bundles_to_node_id"].items()
        nodes = [node for number, node in on if (bundles.get(number) == shape) == same]
        # A bundle that is being placed anew has no node.
        found += Counter(str(node) for node in nodes if node).items()
    return tuple(found)


def _amounts(resources: Mapping[str, float]) -> Amounts:
    cpus, gpus, memory_gb = (float(resources.get(name, 0)) * unit for name, unit in RAY_UNITS.items())
    return cpus, gpus, memory_gb


def _sum(one: Amounts, other: Amounts) -> Amounts:
    return one[0] + other[0], one[1] + other[1], one[2] + other[2]
