"""The environment of a hosted program: what torchrun gives to a script, from one member's place in a plan."""

import fcntl
import json
import os
import socket
import struct
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from urllib.parse import unquote, urlparse

from ringleader.elastic import Plan
from ringleader.runtime.messages import MemberTask

CHECKPOINT_DIR = "RINGLEADER_CHECKPOINT_DIR"
PARAMS = "RINGLEADER_PARAMS"
SNAPSHOTS = "hosted"
"""The folder of a job's checkpoints in which its program saves what it likes."""
RAYS = (
    "RAY_AUTH_MODE",
    "RAY_AUTH_TOKEN",
    "RAY_AUTH_TOKEN_PATH",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER",
    "RAY_USAGE_STATS_ENABLED",
)
"""Those of them by which a hosted Ray Train job reaches Ray."""
OF_THE_PLATFORM = ("RAY_", "RINGLEADER_")
"""The prefixes of variables that belong to the worker's process: they name Ray's token, among others."""
SIOCGIFADDR = 0x8915
"""Asks for an interface's address, see netdevice(7)."""
INTERFACES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")


def snapshots_of(checkpoints: str) -> Path:
    """The folder in which a job's program saves, below the URI of the job's checkpoints."""
    path = unquote(urlparse(checkpoints).path) if checkpoints.startswith("file:") else checkpoints
    return Path(path) / SNAPSHOTS


def variables(
    task: MemberTask, plan: Plan, host: str, python_path: Sequence[str], base: Mapping[str, str]
) -> dict[str, str]:
    """The variables of the program of one member.

    Args:
        host: the address by which Ray knows this node.
        base: those of the worker's process, with the job's own and its secrets.
    """
    own = {*task.spec.env, *task.spec.secrets}
    kept = {
        name: value for name, value in base.items() if name in own or not name.startswith(OF_THE_PLATFORM)
    }
    rays = {}
    if task.spec.framework == "ray_train_hosted":
        rays = {name: base[name] for name in RAYS if name in base} | {"RAY_ADDRESS": _rays_address()}
    # Where gloo and NCCL listen: they would ask the host's name for an address, which may lead anywhere.
    interface = _interface(host)
    listen = dict.fromkeys(INTERFACES, interface) if interface else {}
    # In this order: what the job sets counts more than the first two, and less than all that follow.
    return {
        **listen,
        **rays,
        **kept,
        "PYTHONPATH": os.pathsep.join(python_path),
        # Into a pipe Python would hold lines back until some kilobytes have come together.
        "PYTHONUNBUFFERED": "1",
        **_of_torchrun(task, plan),
        "RINGLEADER_JOB_ID": task.job_id,
        "RINGLEADER_ATTEMPT": str(task.attempt),
        "RINGLEADER_GENERATION": str(plan.generation),
        PARAMS: json.dumps(task.spec.params),
        CHECKPOINT_DIR: str(snapshots_of(task.checkpoints)),
    }


def _of_torchrun(task: MemberTask, plan: Plan) -> dict[str, str]:
    """The variables that torchrun sets, for a node of its own with one process, which sees its own device alone."""
    rank, world = str(plan.rank_of(task.worker)), str(len(plan.members))
    address, _, port = plan.meeting.torch_store.rpartition(":")
    ranks = {"RANK": rank, "GROUP_RANK": rank, "ROLE_RANK": rank, "LOCAL_RANK": "0"}
    worlds = {
        "WORLD_SIZE": world,
        "GROUP_WORLD_SIZE": world,
        "ROLE_WORLD_SIZE": world,
        "LOCAL_WORLD_SIZE": "1",
    }
    return {
        **ranks,
        **worlds,
        "MASTER_ADDR": address,
        "MASTER_PORT": port,
        "ROLE_NAME": "default",
        "TORCHELASTIC_RUN_ID": task.job_id,
        "TORCHELASTIC_RESTART_COUNT": str(plan.generation - 1),
        "TORCHELASTIC_MAX_RESTARTS": str(task.spec.max_failures),
        # No rank hosts the store: with it torch only connects.
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
    }


def _interface(host: str) -> str:
    """The network interface with that IPv4 address; empty without one."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for _, name in socket.if_nameindex():
            with suppress(OSError):  # it has none
                asked = struct.pack("256s", name.encode()[:15])
                if socket.inet_ntoa(fcntl.ioctl(any_socket, SIOCGIFADDR, asked)[20:24]) == host:
                    return name
    return ""


def _rays_address() -> str:
    import ray  # only here: what trains under another account has no part of Ray in it

    return str(ray.get_runtime_context().gcs_address)
