"""A worker process: idle with torch imported, then a member of one attempt, then gone. A threaded Ray actor.

Whoever gets a handle of this actor imports this module: it stays light, what needs torch is in member.py.
"""

import os
import signal
import threading
from typing import TYPE_CHECKING, Any

import ray
from ray.exceptions import RayError

from ringleader.elastic import Plan
from ringleader.runtime.messages import GONE_S, Ended, Identity, Task
from ringleader.runtime.notices import TERM_GRACE_S, on_sigterm
from ringleader.runtime.pulse import Pulse, guard_idle

if TYPE_CHECKING:
    from ringleader.runtime.seats import Seats


class Worker:
    """`warm` imports what is slow; `run` does one attempt and returns how it ended; the rest are the supervisor's
    words while `run` is under way."""

    def __init__(self) -> None:
        self._busy = threading.Event()
        self._ready = threading.Event()
        self._seats: Seats | None = None
        self._pulse = Pulse()
        self._supervisor: Any = None
        self._id = ""
        on_sigterm(self._terminated)

    def warm(self) -> Identity:
        """Import the engine, so that a job does not wait for it."""
        import_engine()
        return self.who()

    def who(self) -> Identity:
        context = ray.get_runtime_context()
        return Identity(os.getpid(), context.get_node_id(), ray.util.get_node_ip_address())

    def idle(self, pool: Any) -> None:
        """End this process if `pool` is lost before it has work."""
        threading.Thread(target=guard_idle, args=(pool.alive.remote, self._busy), daemon=True).start()

    def run(self, task: Task, package: bytes | None, supervisor: Any) -> Ended:
        """Be `task.worker` until the training function returns, raises or is dismissed."""
        self._busy.set()
        from ringleader.runtime.member import Member

        member = Member(task, self.who(), supervisor, self._pulse)
        self._id, self._supervisor = task.worker, supervisor
        self._seats = member.seats
        self._ready.set()
        return member.run(package)

    def plan(self, plan: Plan) -> None:
        self._words().take(plan)

    def interrupt(self, generation: int) -> None:
        self._words().interrupt(generation)

    def announce(self, generation: int) -> None:
        self._words().announce(generation)

    def follow(self, meeting: str, number: int) -> None:
        self._words().follow(meeting, number)

    def donate(self, meeting: str, number: int) -> None:
        self._words().donate(meeting, number)

    def dismiss(self) -> None:
        self._words().dismiss()

    def _terminated(self) -> None:
        """A member leaves at the next boundary; a process without work, or without a supervisor, ends now."""
        try:
            ray.get(self._supervisor.drain.remote(self._id, TERM_GRACE_S, "SIGTERM"), timeout=GONE_S)
        except (AttributeError, RayError, ConnectionError):
            os._exit(128 + signal.SIGTERM)

    def _words(self) -> "Seats":
        self._ready.wait(timeout=30)
        assert self._seats is not None
        return self._seats


def import_engine() -> None:
    """Everything between a worker's first word from its supervisor and its first step."""
    import numpy.ctypeslib  # noqa: F401 - safetensors does, when it looks whether it can write the weights
    import pyarrow.fs  # noqa: F401 - checkpoints
    import torch._dynamo  # noqa: F401 - the first optimiser of a process imports it: over a second

    import ringleader.runtime.member
    import ringleader.runtime.supervisor  # noqa: F401 - a handle that comes with the work brings its class
