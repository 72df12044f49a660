"""A process on some node of the cluster: looked at by /proc, and ended by a signal."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from ringleader.runtime.supervisor.failure_detector import ProcessGlance


def on_node(node: str, function: Callable[..., Any], *args: Any) -> Any:
    """Run a small function on a node. Returns its pending result, which is lost with the node."""
    there = NodeAffinitySchedulingStrategy(node, soft=False)
    # No CPU: it has to run on a full node. No second try: by then the pid may be another process's.
    return ray.remote(function).options(num_cpus=0, scheduling_strategy=there, max_retries=0).remote(*args)


def is_here(node: str) -> bool:
    """Whether this process runs on that node."""
    return bool(node == ray.get_runtime_context().get_node_id())


def glance(pid: int) -> ProcessGlance | None:
    """The state of a process by /proc; None where it is gone, or there is no /proc."""
    try:
        # The name, in brackets, may hold anything.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    # Behind the name: the state, and utime and stime, the fields 3, 14 and 15 of proc(5).
    return ProcessGlance(fields[0] == "T", (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"))


def end_stopped(pid: int) -> None:
    """End a process that a signal has stopped, and no other."""
    look = glance(pid)
    if look is not None and look.stopped:
        end(pid)


def end(pid: int) -> None:
    """Kill a process that may be gone."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
