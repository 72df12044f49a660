"""The ends of workers' runs: callbacks of Ray, and deaths that are seen before Ray knows of them."""

import queue
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from ringleader.runtime.messages import ProcessIdentity, RunEnded
from ringleader.runtime.nodes import death_watch
from ringleader.runtime.nodes.node_process import is_here
from ringleader.runtime.supervisor.workers.distant_deaths import DistantDeaths, cause_of_death
from ringleader.runtime.supervisor.workers.worker_handle import WorkerHandle, cause_of, look_there


@dataclass(frozen=True, slots=True)
class Death:
    """The death of a worker's process."""

    cause: str


Return = Future[RunEnded | None] | Death
"""The result or error of a run, or a death that Ray does not know of yet."""


class WorkerReturns:
    """The ends of runs, handled in turn on a thread of its own: Ray calls back on the thread that its own calls need.

    Args:
        over: handles one of them, except that of a run which another supervisor waits for.
    """

    def __init__(self, over: Callable[[str, RunEnded | Death], None]) -> None:
        self._over = over
        self._queue: queue.SimpleQueue[tuple[str, Return]] = queue.SimpleQueue()
        self._distant = DistantDeaths()
        threading.Thread(target=self._take, name="returns", daemon=True).start()

    def put(self, worker: str, returned: Return) -> None:
        self._queue.put((worker, returned))

    def of(self, worker: str, handle: WorkerHandle) -> None:
        """Hear how the run of a worker ends."""
        handle.running.future().add_done_callback(lambda future: self.put(worker, future))
        self.watch(worker, handle)

    def watch(self, worker: str, handle: WorkerHandle) -> None:
        """Hear of the death of a worker's process, and of its cause, where it dies; does nothing where that is under
        way."""
        identity = handle.identity
        if handle.watched or identity is None:
            return
        handle.watch()
        if not is_here(identity.node):
            self._distant.watch(identity, lambda cause: self.put(worker, Death(cause)))
            return
        watched = (worker, identity.pid, identity.life)
        threading.Thread(target=self._await_death, args=watched, name=f"life-{worker}", daemon=True).start()

    def look(self, identity: ProcessIdentity) -> Any:
        """A look at a process of another node, pending."""
        look = self._distant.look(identity)
        # Where a busy node has to start a process for the look, that takes longer than a silence may last.
        return look_there(identity) if look is None else look

    def _await_death(self, worker: str, pid: int, watched: death_watch.Life) -> None:
        if (cause := cause_of_death(pid, watched)) is not None:
            self.put(worker, Death(cause))

    def _take(self) -> None:
        while True:
            try:
                worker, returned = self._queue.get()
                ended = returned if isinstance(returned, Death) else _end_of(returned)
                if ended is not None:
                    self._over(worker, ended)
            except Exception:  # of one worker's end; the others' have to be heard as well
                traceback.print_exc()


def _end_of(run: Future[RunEnded | None]) -> RunEnded | Death | None:
    """The end of a run that is done; None where another supervisor waits for it."""
    try:
        return run.result()
    except Exception as error:
        return Death(cause_of(error))
