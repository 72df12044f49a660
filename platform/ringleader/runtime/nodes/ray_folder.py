"""Ray's folder on this node, as a process of Ray's knows it."""

import sys
from pathlib import Path


def rays_sockets() -> Path | None:
    """The folder in which Ray has its own sockets; None in a process that is not Ray's, which does not import it."""
    # Never imported here: what trains under another account has no part of Ray in it.
    worker = sys.modules.get("ray._private.worker")
    node = None if worker is None else worker._global_node
    return None if node is None else Path(node.get_session_dir_path()) / "sockets"
