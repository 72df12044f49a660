"""Ray in this process: its settings (authentication, loopback, no usage reports), to be made before it is imported, and
its folder."""

import os
import sys
from pathlib import Path

LOOPBACK = "127.0.0.1"
ONLY_LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
"""Ray replaces a loopback address by the machine's own one, unless it is told that it cannot form a cluster, as on
macOS. With this every one of its sockets is bound to 127.0.0.1."""
HASH_SEED = "0"
"""Python draws another seed for each process, by which `hash` of a text and the order of a set differ among the members
of one job, and between two runs of it. A constant, since a process starts before it knows its job; nobody outside of a
job chooses the keys that its workers hash."""


def for_address(address: str) -> None:
    """Prepare this process to connect to the Ray cluster at `address` (host:port). Call before `import ray`."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Else a call without a connection starts a cluster of its own.
    os.environ["RAY_ENABLE_AUTO_CONNECT"] = "0"
    # In any case: without it Ray's default differs between `ray.init`, an address and `ray start`.
    if "RAY_AUTH_MODE" not in os.environ:
        has_token = "RAY_AUTH_TOKEN" in os.environ or "RAY_AUTH_TOKEN_PATH" in os.environ
        os.environ["RAY_AUTH_MODE"] = "token" if has_token else "disabled"
    if address.rpartition(":")[0] in (LOOPBACK, "localhost"):
        os.environ.update(ONLY_LOOPBACK)


def for_head(token: Path) -> None:
    """Prepare this process to start a local cluster on loopback whose ports ask for the token in a file."""
    os.environ.update(ONLY_LOOPBACK)
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ["RAY_AUTH_MODE"] = "token"
    os.environ["RAY_AUTH_TOKEN_PATH"] = str(token)
    # Left over from elsewhere, it would be a second source of the token.
    os.environ.pop("RAY_AUTH_TOKEN", None)
    seed_hashes()
    # For its first driver Ray would start a process for each CPU; here the warm pool starts them.
    os.environ["RAY_prestart_worker_first_driver"] = "0"  # noqa: SIM112 - Ray spells it so


def seed_hashes() -> None:
    """Have the Python processes of a node that this one starts hash alike, unless whoever runs it says otherwise."""
    os.environ.setdefault("PYTHONHASHSEED", HASH_SEED)


def rays_sockets() -> Path | None:
    """The folder in which Ray has its own sockets; None in a process that is not Ray's, which does not import it."""
    # Never imported here: what trains under another account has no part of Ray in it.
    worker = sys.modules.get("ray._private.worker")
    node = None if worker is None else worker._global_node
    return None if node is None else Path(node.get_session_dir_path()) / "sockets"
