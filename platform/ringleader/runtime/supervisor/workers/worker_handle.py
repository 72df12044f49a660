"""One worker of a group: its process as the supervisor holds it, and the part of that which is written down."""

import os
import pickle
import signal
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, cast

import ray
from ray.exceptions import NodeDiedError, OutOfMemoryError, RayError

from ringleader.elastic import events as ev
from ringleader.elastic.instructions import Role
from ringleader.runtime.messages import ParkMessage, ProcessIdentity
from ringleader.runtime.nodes import node_process
from ringleader.runtime.nodes.node_process import is_here, on_node
from ringleader.runtime.supervisor.failure_detector import ProcessGlance

PATIENT_S = 2.0
ENDING_S = 10.0
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
    _turn: Lock = field(default_factory=Lock, repr=False, compare=False)

    def meet(self, identity: ProcessIdentity) -> bool:
        """Note the process that it says it is. Returns whether that is news: it was not known until now, or is the
        actor's own, where the program runs in a child of it."""
        news = self.identity != identity
        self.identity = identity
        return news

    def begin(self, actor: Any, identity: ProcessIdentity | None) -> None:
        """Note the process that it was given."""
        self.actor, self.identity = actor, identity

    def run(self, *task: Any) -> None:
        """Begin its run, `WorkerActor.run`, a call that is pending until the run is over, unless it was given up."""
        # One after the other: whoever gives it up sees a run to wait for, or none begins.
        with self._turn:
            if not self.gone:
                self.running = self.actor.run.remote(*task)

    def watch(self) -> None:
        """A thread waits for the death of its process from now on."""
        self.watched = True

    def give_up(self) -> None:
        """It shall not live any more, if it does."""
        with self._turn:
            self.gone = True

    def returned(self, result: dict[str, Any]) -> None:
        """Its run is over, with a result if it finished."""
        self.over, self.result = True, result

    def died(self, cause: str) -> None:
        self.over, self.gone, self.cause = True, True, cause

    def glance(self, begin: Callable[[ProcessIdentity], Any] | None = None) -> ProcessGlance | None:
        """A look at its process; None where there is none, or not yet: the look at another node's comes back with a
        later call.

        Args:
            begin: begins such a look; by default `look_there`.
        """
        if self.identity is None or self.gone:
            return None
        if is_here(self.identity.node):
            return node_process.glance(self.identity.pid)
        if self.look is None:
            self.look = (begin or look_there)(self.identity)
            return None
        if not ray.wait([self.look], timeout=0)[0]:
            return None
        look, self.look = self.look, None
        try:
            return cast("ProcessGlance | None", ray.get(look))
        except RayError:  # the node is gone: its notice or the missing heartbeats say so
            return None

    def befall(self, function: Callable[..., None], *args: Any) -> None:
        """Call `function(pid, *args)` on the node of its process, whatever it does to that; nothing without one."""
        if self.identity is None:
            return
        if is_here(self.identity.node):
            function(self.identity.pid, *args)
        else:
            on_node(self.identity.node, function, self.identity.pid, *args)

    def end(self) -> None:
        """End its process."""
        ray.kill(self.actor, no_restart=True)

    def end_frozen(self) -> None:
        """End its process with SIGKILL too, for one that does not listen to Ray."""
        self.end()
        self.befall(node_process.end)

    def written(self) -> bytes:
        """The bytes for the next process of the supervisor: all but the pending call."""
        kept = (self.role, self.identity, self.gone, self.dismissed, self.result)
        return pickle.dumps((kept, ray.cloudpickle.dumps(self.actor)))


def look_there(identity: ProcessIdentity) -> Any:
    """A look at a process of another node, pending: in a process that this node has, or starts for it."""
    return on_node(identity.node, node_process.glance, identity.pid)


def read(written: bytes) -> WorkerHandle:
    """The handle that `WorkerHandle.written` wrote."""
    kept, actor = pickle.loads(written)  # noqa: S301 - the supervisor's own file
    role, identity, gone, dismissed, result = kept
    process = ray.cloudpickle.loads(actor)
    return WorkerHandle(role, process, identity, gone=gone, dismissed=dismissed, result=result)


def end_all(handles: Collection[WorkerHandle]) -> None:
    """End every process; returns when they are gone or after `ENDING_S`."""
    for handle in handles:
        handle.give_up()
        if handle.actor is not None:
            handle.end()
    running = {h.running: h for h in handles if h.running is not None}
    # Two rounds: SIGKILL for those that Ray's own kill did not reach, then the wait for their end.
    for deadline_s in (PATIENT_S, ENDING_S):
        _, left = ray.wait([*running], num_returns=len(running), timeout=deadline_s) if running else ([], [])
        for run in left:
            running[run].end_frozen()


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
    return ev.Parked(park_message.worker, now, park_message.report)
