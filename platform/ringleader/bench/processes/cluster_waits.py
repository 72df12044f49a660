"""Waits on a cluster: until idle workers stand ready on it, and until nothing of a job is left there.

`python -m ringleader.bench.processes.cluster_waits HOST:PORT warm 3` prints how long it took until every node had 3,
`… HOST:PORT gone JOB` what is left after `GONE_S`, by kind.

A process of its own: one that has been connected to a Ray cluster cannot connect to another with another token.
"""

import argparse
import json
import time
from typing import Any

from ringleader.bench.elasticity.commits import wait_for
from ringleader.bench.processes.children import die_with_parent
from ringleader.runtime.nodes.cluster import RayCluster

WARM_S = 120.0
GONE_S = 60.0
LOOK_S = 0.5


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("address")
    waits = parser.add_subparsers(dest="wait", required=True)
    waits.add_parser("warm").add_argument("idle", type=int, help="processes ready on every node")
    waits.add_parser("gone").add_argument("job")
    asked = parser.parse_args()
    cluster = RayCluster.connect(asked.address)
    told = _until_warm(cluster, asked.idle) if asked.wait == "warm" else _until_gone(cluster, asked.job)
    cluster.close()
    print(json.dumps(told), flush=True)


def _until_warm(cluster: RayCluster, idle: int) -> dict[str, Any]:
    started = time.monotonic()

    def warm() -> bool | None:
        ready = cluster.warmed()
        return True if ready and min(ready.values()) >= idle else None

    wait_for("a warm cluster", warm, WARM_S, lambda: None)
    return {"seconds": time.monotonic() - started}


def _until_gone(cluster: RayCluster, job: str) -> dict[str, Any]:
    until = time.monotonic() + GONE_S
    while (left := _left(cluster, job)) and time.monotonic() < until:
        time.sleep(LOOK_S)
    return {"left": left}


def _left(cluster: RayCluster, job: str) -> dict[str, Any]:
    from ray._private.state import actors
    from ray.util.placement_group import placement_group_table

    capacity = cluster.capacity()
    groups = [g["name"] for g in placement_group_table().values() if g["state"] != "REMOVED"]
    workers = [a for a in actors().values() if a["ActorClassName"] == "WorkerActor" and a["State"] != "DEAD"]
    # Idle workers of the pool are actors of the same class as a job's.
    idle = sum(cluster.warmed().values())
    found = {
        "supervisors": [name for name in cluster.supervisors() if name[0] == job],
        "placement groups": [name for name in groups if job in name],
        "actors": [a["Pid"] for a in workers] if len(workers) > idle else [],
        "CPUs": capacity.cpus - capacity.available.get("CPU", 0.0),
    }
    return {kind: some for kind, some in found.items() if some}


if __name__ == "__main__":
    die_with_parent()
    main()
