"""One worker of a group: its process as the supervisor holds it, and the part of that which is written down."""

import os
import pickle
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import NodeDiedError, OutOfMemoryError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from ringleader.elastic import events as ev
from ringleader.elastic.instructions import Role
from ringleader.runtime.messages import ParkMessage, ProcessIdentity
from ringleader.runtime.supervisor.failure_detector import ProcessGlance

DIED = "died"
"""The cause of a death of which nothing more is known."""


@dataclass(slots=True)
class WorkerHandle:
    """One worker of the group.

    Attributes:
        gone: whether it shall not live any more.
        over: whether its run has returned, or its process died.
        watched: whether a thread waits for that process's death.
        cause: the cause of its death, as it was reported.
        result: its result, once it finished.
    """

    role: Role
    actor: Any = None
    identity: ProcessIdentity | None = None
    running: Any = None
    look: Any = None
    gone: bool = False
    dismissed: bool = False
    over: bool = False
    watched: bool = False
    cause: str = ""
    result: dict[str, Any] = field(default_factory=dict)

    def written(self) -> bytes:
        """The bytes for the next process of the supervisor: all but the pending call."""
        kept = (self.role, self.identity, self.gone, self.dismissed, self.result)
        return pickle.dumps((kept, ray.cloudpickle.dumps(self.actor)))


def read(written: bytes) -> WorkerHandle:
    """The handle that `WorkerHandle.written` wrote."""
    kept, actor = pickle.loads(written)  # noqa: S301 - the supervisor's own file
    role, identity, gone, dismissed, result = kept
    process = ray.cloudpickle.loads(actor)
    return WorkerHandle(role, process, identity, gone=gone, dismissed=dismissed, result=result)


def end_process(handle: WorkerHandle) -> None:
    ray.kill(handle.actor, no_restart=True)


def end_frozen(handle: WorkerHandle) -> None:
    """End the process with SIGKILL too, for one that does not listen to Ray."""
    end_process(handle)
    if handle.identity is not None:
        if handle.identity.node == ray.get_runtime_context().get_node_id():
            _sigkill(handle.identity.pid)
        else:
            on_node(handle.identity.node, _sigkill, handle.identity.pid)


def glance(pid: int) -> ProcessGlance | None:
    """The state of a process by /proc; None where it is gone, or there is no /proc."""
    try:
        # The name, in brackets, may hold anything.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    # Behind the name: the state, and utime and stime, the fields 3, 14 and 15 of proc(5).
    return ProcessGlance(fields[0] == "T", (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"))


def on_node(node: str, function: Callable[..., Any], *args: Any) -> Any:
    """Run a small function on a node. Returns its pending result, which is lost with the node."""
    there = NodeAffinitySchedulingStrategy(node, soft=False)
    # No CPU: it has to run on a full node. No second try: by then the pid may be another process's.
    return ray.remote(function).options(num_cpus=0, scheduling_strategy=there, max_retries=0).remote(*args)


def cause_of(error: BaseException) -> str:
    """The cause of a death in a few words; Ray's own sentences list all that might have happened."""
    if isinstance(error, OutOfMemoryError):
        return "killed by Ray's memory monitor"
    return ev.NODE_DIED if isinstance(error, NodeDiedError) else DIED


def cause_by(status: int | None) -> str:
    """The cause of a death by the status of the process, as `os.wait` has it; None: it is not known."""
    if status is None:
        return DIED
    if not os.WIFSIGNALED(status):
        return f"{DIED} (exit code {os.waitstatus_to_exitcode(status)})"
    number = os.WTERMSIG(status)
    known = number in set(signal.Signals)
    return f"{DIED} ({signal.Signals(number).name if known else f'signal {number}'})"


def tells_more(cause: str, told: str) -> bool:
    """Whether a cause is news after the one that was told: what Ray knows counts more than a status."""
    return bool(told) and cause != told and (told == DIED or not cause.startswith(DIED))


def parked(park_message: ParkMessage, now: float) -> ev.Parked:
    """The event of a worker's park message."""
    return ev.Parked(
        worker=park_message.worker,
        generation=park_message.generation,
        applied=park_message.applied,
        step=park_message.step,
        why=park_message.why,
        now=now,
        followed=park_message.followed,
        astray=park_message.astray,
        call=park_message.call,
        caught_up=park_message.caught_up,
    )


def end_stopped(pid: int) -> None:
    """End a process that a signal has stopped, and no other."""
    look = glance(pid)
    if look is not None and look.stopped:
        _sigkill(pid)


def _sigkill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
