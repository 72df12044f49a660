"""A wait until a cluster is warm.

`python -m ringleader.bench.processes.warmth HOST:PORT --idle 3` prints how long that took.

A process of its own: one that has been connected to a Ray cluster cannot connect to another with another token.
"""

import argparse
import json
import time

from ringleader.bench.elasticity.commits import wait_for
from ringleader.bench.processes.children import die_with_parent
from ringleader.runtime.nodes.cluster import RayCluster

DEADLINE_S = 120.0


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("address")
    parser.add_argument("--idle", type=int, required=True, help="processes ready on every node")
    asked = parser.parse_args()
    started = time.monotonic()
    cluster = RayCluster.connect(asked.address)

    def warm() -> bool | None:
        ready = cluster.warmed()
        return True if ready and min(ready.values()) >= asked.idle else None

    wait_for("a warm cluster", warm, DEADLINE_S, lambda: None)
    cluster.close()
    print(json.dumps({"seconds": time.monotonic() - started}), flush=True)


if __name__ == "__main__":
    die_with_parent()
    main()
