"""Idle worker processes with torch imported on every node that can take workers, and the store where members meet."""

import threading
import uuid
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf
from time import monotonic
from typing import Any

import ray
from ray._private.state import available_resources_per_node
from ray.exceptions import RayError
from ray.experimental.internal_kv import _internal_kv_get, _internal_kv_put
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from ringleader.comm.rendezvous import Rendezvous
from ringleader.runtime.messages import NAMESPACE, WORKER_THREADS, ProcessIdentity
from ringleader.runtime.nodes.environment import rays_sockets
from ringleader.runtime.supervisor.placement import here

NAME = "warm-pool"
REFILL_AFTER_S = 1.0
LOOK_S = 0.25
# Beside jobs at work: each process that starts takes a core for its imports.
AT_ONCE = 2
ASKED_AGAIN_S = 120.0
_PER_NODE = b"ringleader/warm/per_node"
_IDLE_S = b"ringleader/warm/idle_s"
Taken = tuple[Any, ProcessIdentity | None]
"""A process that was taken: its handle, and who it is where that is known."""


@dataclass(slots=True)
class _Idle:
    """A process that is starting or ready: `started` resolves to its identity when torch is imported."""

    handle: Any
    started: Any
    node: str


class _GivenProcess:
    """The one process of a worker: who asks while another is being served waits for the same one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.handle: Any = None
        self.at = 0.0

    def take(self, find: Callable[[], Taken], clock: Callable[[], float]) -> Taken:
        with self._lock:
            if self.handle is not None:
                return self.handle, None
            self.handle, identity = find()
            self.at = clock()  # found it may be long after it was asked for
            return self.handle, identity


class GivenProcesses:
    """The processes that were given out lately, by the worker they are for."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._given: dict[str, _GivenProcess] = {}

    def take(self, worker: str, find: Callable[[], Taken], clock: Callable[[], float]) -> Taken:
        """The process of this worker: the one it was given lately, without its identity, else what `find` finds."""
        with self._lock:
            given = self._given.setdefault(worker, _GivenProcess())
        # Outside of this lock: finding one takes up to two seconds. Who asks for the same worker waits for it.
        return given.take(find, clock)

    def end_unused(self, now: float) -> None:
        """End processes without work after `ASKED_AGAIN_S`."""
        with self._lock:
            for worker, given in list(self._given.items()):
                # Whoever has not asked again by then never will.
                if given.handle is not None and now - given.at >= ASKED_AGAIN_S:
                    del self._given[worker]
                    given.handle.end_unless_busy.remote()


class WarmPool:
    """A detached actor that keeps idle processes. They are detached too: whoever takes one owns it. Refills a moment
    after a take, so that importing torch does not compete with the job that was just started."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: dict[str, deque[_Idle]] = {}
        self._per_node = int(_internal_kv_get(_PER_NODE) or 0)
        self._idle_s = float(_internal_kv_get(_IDLE_S) or "inf")
        self._used_at: dict[str, float] = {}
        self._home = str(ray.get_runtime_context().get_node_id())
        self._wanted: list[_Idle] = []
        self._given = GivenProcesses()
        self._quiet_until = 0.0
        host = ray.util.get_node_ip_address()
        self._store = Rendezvous(host, rays_sockets())
        self._address = f"{host}:{self._store.port}"
        self._me = ray.get_runtime_context().current_actor
        threading.Thread(target=self._refill, name="refill", daemon=True).start()

    def room(self, attempt: str, secret: bytes) -> str:
        """Admit the members of this attempt to a room of the rendezvous store. Returns the store's host:port."""
        self._store.admit(attempt, secret)
        return self._address

    def alive(self) -> None:
        """Return nothing: an answer shows that the pool lives."""

    def keep(self, per_node: int, idle_s: float | None = None) -> None:
        """Keep `per_node` processes idle on each node, except nodes that nobody has used for `idle_s`; a pool that
        replaces this one does so too."""
        self._per_node, self._idle_s = per_node, inf if idle_s is None else idle_s
        _internal_kv_put(_PER_NODE, str(per_node).encode(), overwrite=True)
        _internal_kv_put(_IDLE_S, str(self._idle_s).encode(), overwrite=True)

    def ready(self) -> dict[str, int]:
        """The number of processes that are ready, by node."""
        with self._lock:
            return {node: sum(_done(i) for i in idle) for node, idle in self._idle.items()}

    def take(self, node: str, worker: str) -> Taken:
        """A process on `node` for one attempt: a ready one, else one that is still starting (identity unknown).

        Args:
            worker: the name of its worker, unique in the cluster: a supervisor that asks again for it within
                `ASKED_AGAIN_S`, because the answer was lost or late, gets the same process. After that time the process
                ends, unless it has work.
        """
        return self._given.take(worker, lambda: self._find(node), monotonic)

    def _find(self, node: str) -> Taken:
        # Before the take: from here on the refilling thread must start nothing beside the job.
        self._quiet_until = monotonic() + REFILL_AFTER_S
        while (idle := self._pop(node)) is not None:
            if not _done(idle):
                return self._awaited(idle).handle, None
            try:
                return idle.handle, ray.get(idle.handle.who.remote(), timeout=2)
            except RayError:
                ray.kill(idle.handle)
        return self._awaited(self._spawn(node)).handle, None

    def _awaited(self, idle: _Idle) -> _Idle:
        """Note that a job waits for this process."""
        with self._lock:
            # Nothing else is started beside it, which would make it late.
            self._wanted = [w for w in self._wanted if not _done(w)] + [idle]
        return idle

    def _pop(self, node: str) -> _Idle | None:
        with self._lock:
            idle = self._idle.get(node)
            if not idle:
                return None
            # One that is still starting is there sooner than a new one.
            ready = next((i for i in idle if _done(i)), idle[0])
            idle.remove(ready)
            return ready

    def _spawn(self, node: str) -> _Idle:
        from ringleader.runtime.worker.actor import WorkerActor

        handle = (
            ray.remote(WorkerActor)
            .options(
                name=f"worker-{uuid.uuid4().hex[:12]}",
                namespace=NAMESPACE,
                lifetime="detached",
                # None: an idle process must not keep a job's bundle off the node.
                num_cpus=0,
                max_concurrency=WORKER_THREADS,
                # A member that died is replaced by another one, and that the supervisor decides, not Ray.
                max_restarts=0,
                scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False),
            )
            .remote()
        )
        handle.idle.remote(self._me)
        return _Idle(handle, handle.warm.remote(), node)

    def _refill(self) -> None:
        pause = threading.Event()
        while True:
            pause.wait(LOOK_S)
            self._given.end_unused(monotonic())
            if monotonic() < self._quiet_until or not all(_done(w) for w in list(self._wanted)):
                continue
            alive = {n["NodeID"]: n["Resources"] for n in ray.nodes() if n["Alive"]}
            # A node without CPUs takes no workers.
            nodes = [node for node, has in alive.items() if has.get("CPU")]
            cold = self._cold(alive) if self._idle_s < inf else set()
            for node in nodes:
                self._fill(node, 0 if node in cold else self._per_node)

    def _cold(self, alive: Mapping[str, Mapping[str, float]]) -> set[str]:
        """The nodes that nobody has used for `idle_s`, but for the pool's own: they may be taken off the cluster."""
        now, free = monotonic(), available_resources_per_node()
        self._used_at = {
            node: self._used_at.get(node, now) if _unused(has, free.get(node, {})) else now
            for node, has in alive.items()
        }
        # The pool itself keeps its own node from being idle for Ray: cooling that would win nothing.
        return {node for node, at in self._used_at.items() if now - at >= self._idle_s and node != self._home}

    def _fill(self, node: str, per_node: int) -> None:
        with self._lock:
            at_once = AT_ONCE if node in self._idle else per_node  # nobody is at work on a new node yet
            idle = self._idle.setdefault(node, deque())
            missing = per_node - len(idle)
            # From the end: those are the youngest, which may not even be ready.
            surplus = [idle.pop() for _ in range(-missing)] if missing < 0 else []
            missing = min(missing, at_once - sum(not _done(i) for i in idle))
        for one in surplus:
            ray.kill(one.handle)
        for _ in range(missing):
            with self._lock:  # who takes one meanwhile is given this one, and no other is started
                if monotonic() < self._quiet_until:
                    return
                idle.append(self._spawn(node))


def _unused(has: Mapping[str, float], free: Mapping[str, float]) -> bool:
    return all(free.get(name, 0) >= has[name] for name in ("CPU", "GPU") if name in has)


def _done(idle: _Idle) -> bool:
    ready, _ = ray.wait([idle.started], timeout=0)
    return bool(ready)


def pool(*, create: bool = True) -> Any:
    """The cluster's one pool, made if there is none."""
    if not create:
        return ray.get_actor(NAME, namespace=NAMESPACE)
    return (
        ray.remote(WarmPool)
        .options(
            name=NAME,
            namespace=NAMESPACE,
            lifetime="detached",
            get_if_exists=True,
            num_cpus=0,
            max_concurrency=16,
            # A restarted store would have another port, and rooms for nobody: supervisors make a new pool.
            max_restarts=0,
            # On this node, so that the loss of another one costs no store.
            scheduling_strategy=here(soft=True),
        )
        .remote()
    )
