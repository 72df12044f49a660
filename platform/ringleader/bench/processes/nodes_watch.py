"""A watch of a growing cluster: the times at which nodes were asked for, the first was there, the last was gone.

`python -m ringleader.bench.processes.nodes_watch HOST:PORT` prints them in monotonic seconds, for each growth anew.

A process of its own: one that has been connected to a Ray cluster cannot connect to another with another token.
"""

import argparse
import json
import time
from collections.abc import Callable

from ringleader.bench.processes.children import die_with_parent
from ringleader.runtime.nodes.cluster import RayCluster

LOOK_S = 0.01


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("address")
    RayCluster.connect(parser.parse_args().address)

    import ray
    from ray._private.ray_constants import AUTOSCALER_RESOURCE_REQUEST_CHANNEL
    from ray.experimental.internal_kv import _internal_kv_get

    def asked() -> bool:
        # Ray keeps there what was asked of its autoscaler, and has no public way to read it.
        return (_internal_kv_get(AUTOSCALER_RESOURCE_REQUEST_CHANNEL) or b"[]") != b"[]"

    def there() -> bool:
        return any(node["Alive"] and node["Resources"].get("CPU") for node in ray.nodes())

    print(json.dumps({"watching": time.monotonic()}), flush=True)
    while True:
        _say("asked", asked)
        _say("there", there)
        _say("gone", lambda: not there())


def _say(what: str, look: Callable[[], bool]) -> None:
    while not look():
        time.sleep(LOOK_S)
    print(json.dumps({what: time.monotonic()}), flush=True)


if __name__ == "__main__":
    die_with_parent()
    main()
