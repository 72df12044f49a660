"""Nodes of Ray's autoscaler as processes of this machine, begun with `ray start` as a cluster file's commands do."""

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from typing import Any

from ray._private import ray_constants
from ray.autoscaler._private.fake_multi_node.node_provider import FakeMultiNodeProvider
from ray.autoscaler.tags import (
    NODE_KIND_WORKER,
    STATUS_UP_TO_DATE,
    TAG_RAY_NODE_KIND,
    TAG_RAY_NODE_NAME,
    TAG_RAY_NODE_STATUS,
    TAG_RAY_USER_NODE_TYPE,
)

END_S = 10.0


class LocalNodeProvider(FakeMultiNodeProvider):  # type: ignore[misc]
    """Ray's node provider for tests, with nodes begun by `ray start`: those of Ray's own class are made inside the
    autoscaler, without what `ray start` is told. `node_ip` of its configuration is the address of all nodes."""

    def _create_node_with_resources_and_labels(
        self, node_config: Any, tags: Any, count: int, resources: Any, labels: Any
    ) -> None:
        with self.lock:
            node_id, kind = self._next_hex_node_id(), tags[TAG_RAY_USER_NODE_TYPE]
            self._nodes[node_id] = {
                "tags": {
                    TAG_RAY_NODE_KIND: NODE_KIND_WORKER,
                    TAG_RAY_USER_NODE_TYPE: kind,
                    TAG_RAY_NODE_NAME: node_id,
                    TAG_RAY_NODE_STATUS: STATUS_UP_TO_DATE,
                    **tags,
                },
                "node": subprocess.Popen(
                    self._command(resources),
                    env={**os.environ, **_identity(node_id, kind, labels)},
                    # A group of its own, so that `_terminate_node` kills all that the raylet has started.
                    start_new_session=True,
                ),
            }

    def _command(self, resources: Any) -> list[str]:
        return [
            *(sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--disable-usage-stats"),
            f"--address={self._gcs_address}",
            f"--node-ip-address={self.provider_config['node_ip']}",
            f"--num-cpus={int(resources['CPU'])}",
            f"--object-store-memory={int(resources['object_store_memory'])}",
            # Nodes share one address: Ray's fixed ports would be taken by the first of them.
            *("--min-worker-port=0", "--max-worker-port=0", "--dashboard-agent-listen-port=0"),
        ]

    def _terminate_node(self, node: Any) -> None:
        process = node["node"]
        # Asked first: a raylet that is killed is missed by the control store only after a while.
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(END_S)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(END_S)


def _identity(node_id: str, kind: str, labels: Any) -> dict[str, str]:
    """Variables by which the autoscaler recognizes the node."""
    return {
        "RAY_OVERRIDE_NODE_ID_FOR_TESTING": node_id,
        "RAY_CLOUD_INSTANCE_ID": node_id,
        "RAY_NODE_TYPE_NAME": kind,
        ray_constants.LABELS_ENVIRONMENT_VARIABLE: json.dumps(labels or {}),
    }
