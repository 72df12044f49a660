"""The ends of workers' runs: callbacks of Ray, and deaths that are seen before Ray knows of them."""

import queue
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass

import ray

from ringleader.runtime.messages import RunEnded
from ringleader.runtime.nodes import death_watch
from ringleader.runtime.supervisor.worker_handle import WorkerHandle, cause_by


@dataclass(frozen=True, slots=True)
class Death:
    """The death of a process that Ray does not know of yet."""

    cause: str


Return = Future[RunEnded | None] | Death
"""The result or error of a run, or the death that ended it."""


class WorkerReturns:
    """The ends of runs, handled in turn on a thread of its own: Ray calls back on the thread that its own calls need.

    Args:
        over: handles one of them.
    """

    def __init__(self, over: Callable[[str, Return], None]) -> None:
        self._over = over
        self._queue: queue.SimpleQueue[tuple[str, Return]] = queue.SimpleQueue()
        threading.Thread(target=self._take, name="returns", daemon=True).start()

    def put(self, worker: str, returned: Return) -> None:
        self._queue.put((worker, returned))

    def of(self, worker: str, handle: WorkerHandle) -> None:
        """Hear how the run of a worker ends."""
        handle.running.future().add_done_callback(lambda future: self.put(worker, future))
        self.watch(worker, handle)

    def watch(self, worker: str, handle: WorkerHandle) -> None:
        """Hear of the death of a worker's process on this node at once; does nothing where that is under way."""
        identity = handle.identity
        if handle.watched or identity is None or identity.node != ray.get_runtime_context().get_node_id():
            return
        handle.watched = True
        watched = (worker, identity.pid, identity.life)
        threading.Thread(target=self._await_death, args=watched, name=f"life-{worker}", daemon=True).start()

    def _await_death(self, worker: str, pid: int, watched: death_watch.Life) -> None:
        if death_watch.await_death(pid, watched):
            self.put(worker, Death(cause_by(death_watch.status(pid))))

    def _take(self) -> None:
        while True:
            try:
                self._over(*self._queue.get())
            except Exception:  # of one worker's end; the others' have to be heard as well
                traceback.print_exc()
