"""The watcher beside a Ray node in a cloud: tells Ray to drain the node when the cloud is about to take the machine.

`python -m ringleader.runtime.spot --cloud aws --address HOST:PORT --node-ip ADDRESS`, with the cluster's token in
RAY_AUTH_TOKEN_PATH. It ends when Ray has accepted: the jobs' supervisors see the node and its deadline from there.
"""

import argparse
import time
from collections.abc import Callable

import httpx

from ringleader.errors import RingleaderError
from ringleader.runtime.clouds import CLOUDS, Cloud, Notice
from ringleader.runtime.nodes import environment

ANSWER_S = 2.0
AGAIN_S = 1.0
LONGEST_SILENCE_S = 60.0

Say = Callable[[str], None]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m ringleader.runtime.spot", description=__doc__)
    parser.add_argument("--cloud", required=True, choices=sorted(CLOUDS))
    parser.add_argument("--address", required=True, help="address of the cluster's head, host:port")
    parser.add_argument("--node-ip", required=True, help="this machine's address in the cluster")
    parser.add_argument(
        "--metadata", default="", help="the address of the cloud's metadata service, if not the usual one"
    )
    given = parser.parse_args()
    kind = CLOUDS[given.cloud]
    # No proxy: the metadata address is answered by the machine's own host.
    with httpx.Client(
        base_url=given.metadata or kind.METADATA, timeout=ANSWER_S, trust_env=False
    ) as metadata:
        found = awaited(kind(metadata), _say, time.sleep)
    _say(f"{found.why}: this machine goes away in {found.at - time.time():.0f} s")
    drained(lambda: drain(given.address, given.node_ip, found), _say, time.sleep)
    _say("Ray is draining the node")


def awaited(cloud: Cloud, say: Say, pause: Callable[[float], None]) -> Notice:
    """The cloud's notice, once it comes. A cloud that does not answer is asked again, and reported once a minute."""
    silent_s = 0.0
    while True:
        try:
            found = cloud.notice(time.time())
        except (httpx.HTTPError, ValueError, KeyError) as error:
            silent_s += cloud.EVERY_S
            if silent_s >= LONGEST_SILENCE_S:
                say(f"the cloud's metadata service does not answer: {type(error).__name__}: {error}")
                silent_s = 0.0
        else:
            if found is not None:
                return found
            silent_s = 0.0
        pause(cloud.EVERY_S)


def drained(drain: Callable[[], None], say: Say, pause: Callable[[float], None]) -> None:
    """Call `drain` until Ray has accepted."""
    while True:
        try:
            drain()
        # However often: the machine goes anyway, and a head may be away for a moment.
        except Exception as error:  # whatever Ray's client raises
            say(f"Ray could not be notified: {type(error).__name__}: {error}")
            pause(AGAIN_S)
        else:
            return


def drain(address: str, node_ip: str, notice: Notice) -> None:
    """Have Ray drain the living node at `node_ip`. Raises NotDrained, and Ray's errors."""
    environment.for_address(address)
    import ray
    from ray.core.generated.autoscaler_pb2 import DrainNodeReason

    # The control store is asked without `ray.init`: this process is no driver.
    head = ray._raylet.GcsClient(address=address)
    # State 0 is ALIVE: a node of an earlier machine at the same address may still be listed.
    nodes = [
        node.node_id.hex()
        for node in head.get_all_node_info().values()
        if node.state == 0 and node.node_manager_address == node_ip
    ]
    if not nodes:
        raise NotDrained(f"no live node of the cluster has the address {node_ip}.", hint="See --node-ip.")
    for node in nodes:
        accepted, why = head.drain_node(
            node, DrainNodeReason.Value("DRAIN_NODE_REASON_PREEMPTION"), notice.why, int(notice.at * 1000)
        )
        if not accepted:
            raise NotDrained(f"Ray refused to drain node {node}: {why}")


class NotDrained(RingleaderError):
    """The node is not drained: it takes on work as before."""

    code = "not_drained"


def _say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    main()
