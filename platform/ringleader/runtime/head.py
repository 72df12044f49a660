"""A local Ray cluster on loopback that ends with this process: `python -m ringleader.runtime.head --home DIR`.

Prints one JSON line {address, temp_dir} when it is ready. Ends on SIGTERM or SIGINT, or when its parent is gone;
with exit status 1 when the control store or the raylet of Ray has ended, or there is no token for Ray's ports.
"""

import argparse
import json
import os
import shutil
import signal
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any, NoReturn

from ringleader.errors import RingleaderError
from ringleader.lifeline import end_with_parent
from ringleader.ray_token import token_file
from ringleader.runtime.messages import NAMESPACE
from ringleader.runtime.nodes import environment, fork_worker

# Packages and messages go through it, tensors never do; /dev/shm may be small.
OBJECT_STORE_BYTES = 150_000_000
LOOK_S = 1.0
PARTS = frozenset({"gcs_server", "raylet"})
"""The processes without which there is no cluster. A Ray driver notices their end after a minute, or never."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m ringleader.runtime.head", description=__doc__)
    parser.add_argument(
        "--home", type=Path, required=True, help="RINGLEADER_HOME, the folder with Ray's token"
    )
    parser.add_argument(
        "--num-cpus", type=int, default=None, help="logical CPUs (default: all of the machine)"
    )
    options = parser.parse_args()
    ended = threading.Event()
    # The handlers first: a parent that ends from here on has the kernel send SIGTERM.
    _on_end(lambda *_: ended.set())
    end_with_parent(signal.SIGTERM)
    # Before `import ray`: its library reads these variables when it is loaded.
    try:
        environment.for_head(token_file(options.home, os.environ.get("RAY_AUTH_TOKEN_PATH")))
    except RingleaderError as error:
        sys.exit(f"error: {error}")
    # Unix socket paths are short: not below the home, which may lie deep. Only this user can enter it.
    temp_dir = Path(tempfile.mkdtemp(prefix="rl-", dir="/tmp"))
    try:
        # Ray opens its folder, and those in it, to every account: whoever can remove a file there can put a link in
        # its place, through which Ray writes.
        address = _start(temp_dir / "ray", options.num_cpus)
        _on_end(lambda *_: ended.set())  # Ray has put its own in place
        print(json.dumps({"address": address, "temp_dir": str(temp_dir)}), flush=True)
        parent = os.getppid()
        # The signal of `end_with_parent` exists on Linux alone, and a parent that was gone before it sends none.
        while not ended.wait(LOOK_S) and os.getppid() == parent:
            if lost := _lost():
                _abandon(lost, temp_dir)
    finally:
        _stop(temp_dir)


def _start(temp_dir: Path, num_cpus: int | None) -> str:
    import ray
    from ray._private import ray_constants

    _without_what_nobody_asks()
    if fork_worker.forks():
        # Ray joins it to its own folder, which an absolute path replaces.
        ray_constants.SETUP_WORKER_FILENAME = str(Path(fork_worker.__file__).resolve())
    context = ray.init(
        num_cpus=num_cpus,
        include_dashboard=False,
        object_store_memory=OBJECT_STORE_BYTES,
        namespace=NAMESPACE,
        log_to_driver=False,
        _node_ip_address=environment.LOOPBACK,
        _temp_dir=str(temp_dir),
    )
    return str(context.address_info["address"])


def _without_what_nobody_asks() -> None:
    """Keep Ray from starting three more Python processes: the server of its dashboard, which is off, the reader of
    worker logs for drivers, and the monitor of an autoscaler."""
    from ray._private.node import Node

    for name in ("start_api_server", "start_log_monitor", "start_monitor"):
        if not hasattr(Node, name):
            raise AttributeError(
                f"Ray's Node no longer has {name}: check what it starts now, and adapt head.py."
            )
        # Nobody asks them for anything, and for one of them Ray would wait.
        setattr(Node, name, lambda self, **how: None)


def _lost() -> list[str]:
    """The processes of `PARTS` that have ended."""
    from ray._private import worker

    return sorted(PARTS.intersection(kind for kind, _ in worker._global_node.dead_processes()))


def _abandon(lost: list[str], temp_dir: Path) -> NoReturn:
    """Kill what is left and exit with 1: Ray's own shutdown would ask the parts that are gone. Agents are left to the
    guard."""
    from ray._private import worker

    said = f"Ray's {' and '.join(lost)} ended, and with it the cluster and everything that ran there."
    print(said, file=sys.stderr, flush=True)
    # Not checked: Ray would raise for the parts that have ended already.
    worker._global_node.kill_all_processes(check_alive=False)
    shutil.rmtree(temp_dir, ignore_errors=True)
    # Not `sys.exit`: `main` would shut Ray down on the way out, and ask the parts that are gone.
    os._exit(1)


def _stop(temp_dir: Path) -> None:
    import ray

    # A second signal must not end this before Ray's processes and their folder are gone.
    _on_end(signal.SIG_IGN)
    ray.shutdown()
    shutil.rmtree(temp_dir, ignore_errors=True)


def _on_end(handler: Any) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, handler)


if __name__ == "__main__":
    main()
