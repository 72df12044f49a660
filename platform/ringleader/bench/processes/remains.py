"""A job's remains on a cluster.

`python -m ringleader.bench.processes.remains HOST:PORT JOB` waits until there are none.

A process of its own, as warmth.py. Prints what is left after `DEADLINE_S`, by kind.
"""

import argparse
import json
import time
from typing import Any

from ringleader.bench.processes.children import die_with_parent
from ringleader.runtime.nodes.cluster import RayCluster

DEADLINE_S = 60.0
LOOK_S = 0.5


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("address")
    parser.add_argument("job")
    asked = parser.parse_args()
    cluster = RayCluster.connect(asked.address)
    until = time.monotonic() + DEADLINE_S
    while (left := _left(cluster, asked.job)) and time.monotonic() < until:
        time.sleep(LOOK_S)
    cluster.close()
    print(json.dumps({"left": left}), flush=True)


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
