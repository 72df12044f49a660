"""Deaths of processes on other nodes, and looks at living ones: a watcher on each node with workers of the attempt."""

import asyncio
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from ringleader.runtime.messages import ProcessIdentity
from ringleader.runtime.nodes import death_watch, node_process
from ringleader.runtime.supervisor.failure_detector import ProcessGlance
from ringleader.runtime.supervisor.workers.worker_handle import cause_by


def cause_of_death(pid: int, life: death_watch.Life) -> str | None:
    """Wait until process `pid` of this node runs no code any more. Returns the cause; None where that cannot be seen
    from here."""
    return cause_by(death_watch.status(pid)) if death_watch.await_death(pid, life) else None


class DeathWatcher:
    """The actor, on the node of the processes whose deaths it awaits, each on a thread of its own: the node's raylet
    has waited for a process by the time that the supervisor hears of its end, and keeps no status."""

    async def cause(self, pid: int, life: death_watch.Life) -> str | None:
        """What `cause_of_death` returns, once the process has died."""
        loop = asyncio.get_running_loop()
        told: asyncio.Future[str | None] = loop.create_future()

        def wait() -> None:
            cause = cause_of_death(pid, life)
            loop.call_soon_threadsafe(told.set_result, cause)

        threading.Thread(target=wait, name=f"life-{pid}", daemon=True).start()
        return await told

    async def glance(self, pid: int) -> ProcessGlance | None:
        return node_process.glance(pid)


class DistantDeaths:
    """The watchers of an attempt, which end with its supervisor: one on each other node, while it has any to await."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._watchers: dict[str, Any] = {}
        self._awaited: Counter[str] = Counter()

    def watch(self, identity: ProcessIdentity, died: Callable[[str], None]) -> None:
        """Call `died` with the cause when that process has died; never where that cannot be seen there."""
        if identity.life < 0:
            return
        node = identity.node
        with self._lock:
            self._awaited[node] += 1
            watcher = self._watchers.get(node) or self._watchers.setdefault(node, _watcher(node))
        told = watcher.cause.remote(identity.pid, identity.life)
        told.future().add_done_callback(lambda answer: self._told(node, answer, died))

    def look(self, identity: ProcessIdentity) -> Any:
        """A look at that process, pending; None where no watcher is on its node."""
        with self._lock:
            watcher = self._watchers.get(identity.node)
        return None if watcher is None else watcher.glance.remote(identity.pid)

    def _told(self, node: str, answer: "Future[str | None]", died: Callable[[str], None]) -> None:
        with self._lock:
            self._awaited[node] -= 1
            # Ray ends an actor that nobody holds: one without work would keep its node from being given back.
            last = None if self._awaited[node] else self._watchers.pop(node, None)
        del last
        with suppress(Exception):  # the node is gone, or its watcher: Ray tells of the worker, too
            if (cause := answer.result()) is not None:
                died(cause)


def _watcher(node: str) -> Any:
    there = NodeAffinitySchedulingStrategy(node, soft=False)
    # No CPU: it has to start on a full node.
    return ray.remote(DeathWatcher).options(num_cpus=0, scheduling_strategy=there).remote()
