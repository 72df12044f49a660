"""The supervisor actor of one attempt: the only one that decides membership. Detached and named; Ray restarts it when
its process dies, and it goes on from what it had written down."""

import pickle
import threading
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from time import monotonic
from typing import Any, TypeVar

import ray
from ray.exceptions import RayError

from ringleader.elastic import Meeting
from ringleader.elastic import events as ev
from ringleader.elastic.events import Returned
from ringleader.elastic.instructions import SAVED, End
from ringleader.elastic.state import Membership
from ringleader.runtime.hosted.store_actor import TorchStores
from ringleader.runtime.messages import AttemptLaunch, Heartbeat, IndexAnswer, ParkMessage, SecretsAnswer
from ringleader.runtime.nodes.notices import DrainNotices, draining_nodes
from ringleader.runtime.records.record_log import RecordLog
from ringleader.runtime.supervisor import attempt_registry
from ringleader.runtime.supervisor.attempt import MEMBERSHIP, Attempt
from ringleader.runtime.supervisor.fault_injection import FaultOutcome
from ringleader.runtime.supervisor.index_book import IndexBook
from ringleader.runtime.supervisor.placement import BundlePlaces, remove_leftovers
from ringleader.runtime.supervisor.system_sampler import SystemSampler
from ringleader.runtime.supervisor.workers.worker_group import WorkerGroup
from ringleader.runtime.supervisor.workers.worker_handle import parked
from ringleader.runtime.supervisor.workers.worker_processes import WorkerProcesses
from ringleader.runtime.supervisor.workers.worker_uses import WorkerUses
from ringleader.runtime.worker.job_secrets import SecretCache

# Orders, faults and a release wait inside their calls: heartbeats must not queue behind them.
THREADS = 16
LIVES = 100
"""The number of restarts by Ray: a process that keeps dying is not mended by more."""
PLACES, HANDLES = "places", "hand/"
RELEASE_S = 60.0
COMING_S = 10.0
POOL_S = 1.0
NODES_S = 1.0
POOL_DEADLINE_S = 90.0
Answer = TypeVar("Answer")


class Supervisor:
    """Methods put events on the attempt's queue. A thread of its own runs the attempt, posts the outcome, waits to be
    released, and ends this actor."""

    def __init__(self, launch: AttemptLaunch) -> None:
        self._launch = launch
        self._me = ray.get_runtime_context().current_actor
        self._address = ""
        self._pool: Any = None
        self._worker_group: WorkerGroup | None = None
        self._torch_stores: TorchStores | None = None
        self._draining: Mapping[str, float] = {}
        self._released = threading.Event()
        self._there = threading.Event()
        self._forgetting = threading.Lock()
        self._forgotten = not attempt_registry.claim(launch.job_id, launch.attempt)
        if self._forgotten:  # killed after the end: there is nothing left to do
            threading.Thread(target=lambda: ray.kill(self._me), name="over", daemon=True).start()
            return
        self._attempt = Attempt(launch, self._meeting)
        self._record_log = RecordLog(launch, self._attempt.status)
        self._secret_cache = SecretCache(launch)
        self._index_book = IndexBook(lambda: self._worker_group.identities() if self._worker_group else ())
        # Not here: Ray lets calls in only once this constructor has returned.
        threading.Thread(target=self._live, name="attempt", daemon=True).start()

    # --- workers --------------------------------------------------------------------------------------------------

    def parked(self, park_message: ParkMessage) -> None:
        if self._worker_group is not None:
            self._worker_group.met(park_message.worker, park_message.identity)
            self._attempt.post(parked(park_message, monotonic()))

    def in_sync(self, worker: str, pair: int) -> None:
        self._attempt.post(ev.InSync(worker, monotonic(), pair))

    def seated(self, worker: str, generation: int) -> None:
        self._attempt.post(ev.Seated(worker, generation, monotonic()))

    def beat(self, beat: Heartbeat) -> int | None:
        return self._attempt.beat(beat)

    def secrets(self) -> SecretsAnswer | None:
        """The environment variables that the job's secrets become; None: ask again."""
        # A supervisor that came back does not know yet whether anybody trains: it must not fail who does.
        begun = self._record_log.start > 1 or self._attempt.generation > 0
        handed = self._secret_cache.open(begun=begun)
        if handed is not None:
            self._record_log.hide(handed.values.values())
        return handed

    def index(self, worker: str, name: str) -> IndexAnswer:
        return self._index_book.ask(worker, name)

    def index_made(self, worker: str, name: str, index: bytes | None) -> None:
        self._index_book.made(worker, name, index)

    # --- control plane --------------------------------------------------------------------------------------------

    def resize(self, workers_min: int, workers_max: int) -> None:
        self._attempt.tell(ev.Resize(workers_min, workers_max, monotonic()))

    def cancel(self, grace_s: float) -> None:
        self._attempt.tell(ev.Cancel(grace_s, monotonic()))

    def pause(self, grace_s: float) -> None:
        self._attempt.tell(ev.Pause(grace_s, monotonic()))

    def drain(self, worker: str, grace_s: float, why: str = "") -> None:
        now = monotonic()
        self._attempt.tell(ev.Drain(worker, now + grace_s, now, why))

    def fault(self, fault: str, worker: str | None, for_s: float) -> FaultOutcome:
        return self._attempt.fault(fault, worker, for_s)

    def release(self) -> None:
        """Free everything; the caller ends this actor then."""
        # First: `_work` must not record the end that comes of the closing below as the attempt's own.
        self._released.set()
        # A supervisor that is just coming back has to know its workers first.
        if not self._forgotten:
            self._there.wait(COMING_S)
        if self._worker_group is not None:
            self._worker_group.close()
        self._close_stores()
        self._forget()

    # --------------------------------------------------------------------------------------------------------------

    def _live(self) -> None:
        if not self._record_log.over:
            self._work()
        self._there.set()
        self._leave()

    def _work(self) -> None:
        try:
            end, finished = self._run()
        except Exception:  # whatever it was, the control plane has to hear of it
            end, finished = End("failed", "platform_error", traceback.format_exc()), None
        if end.outcome in SAVED and not self._launch.spec.hosted and (saving := self._attempt.saving):
            # Before the workers are ended below: they still write what they hold.
            self._record_log.await_saved(saving)
        if self._worker_group is not None:
            self._worker_group.close()
        else:
            # Nobody here knows places yet, but the process before this one may have reserved some.
            remove_leftovers(self._launch.name)
        self._close_stores()
        if not self._released.is_set():  # an end that comes of that is not the attempt's own
            self._record_log.outcome(end, finished)

    def _run(self) -> tuple[End, dict[str, Any] | None]:
        self._patiently(self._find_pool)
        threading.Thread(target=self._keep_pool, name="pool", daemon=True).start()
        threading.Thread(target=self._watch_nodes, name="nodes", daemon=True).start()
        launch, record_log = self._launch, self._record_log
        kept = record_log.noted(PLACES)
        places = BundlePlaces(
            launch.name,
            launch.spec.workers,
            servers=launch.spec.sync.server_count,
            each_server=launch.spec.each_server,
            keep=lambda reserved: self._note(PLACES, pickle.dumps(reserved)),
            kept=pickle.loads(kept) if kept is not None else None,  # noqa: S301 - our own file
            draining=lambda: self._draining,
        )
        if launch.spec.hosted:
            self._torch_stores = TorchStores(launch.name)
        worker_group = WorkerGroup(
            launch,
            places,
            WorkerProcesses(launch, record_log.start, self._me, self._take),
            self._attempt.post,
            start=record_log.start,
            note=lambda worker, handle: self._note(HANDLES + worker, handle),
        )
        self._worker_group = worker_group
        threading.Thread(target=self._sample, args=(worker_group,), name="system", daemon=True).start()
        # Nothing to take over: `release` need not wait for workers to be found.
        if record_log.noted(MEMBERSHIP) is None:
            self._there.set()

        def returned(state: Membership) -> Returned:
            roles = {worker.id: worker.role for worker in state.workers}
            found = worker_group.adopt(record_log.notes(HANDLES), roles)
            self._there.set()
            return Returned(record_log.start, found, monotonic())

        return self._attempt.run(worker_group, record_log, returned)

    def _meeting(self) -> Meeting:
        # Once for each plan of a hosted job, whose members follow nobody.
        torch_store = self._torch_stores.take() if self._torch_stores is not None else ""
        return Meeting(self._address, self._record_log.secret, torch_store=torch_store)

    def _close_stores(self) -> None:
        if self._torch_stores is not None:
            self._torch_stores.close()

    def _room(self, within_s: float) -> str:
        """The address of the rendezvous store, where this attempt has a room from then on."""
        asked = self._pool.room.remote(self._launch.name, self._record_log.secret)
        return str(ray.get(asked, timeout=within_s))

    def _note(self, name: str, value: bytes) -> None:
        """Note a value, which is on disk when this returns, if the disk takes it."""
        self._record_log.note(name, value)
        # A full disk costs the way back, not the attempt: the note reaches it with the next ones.
        with suppress(OSError):
            self._record_log.write()

    def _leave(self) -> None:
        """Wait until the outcome is stored, then at most `RELEASE_S` for a release; end this actor."""
        uploader = self._record_log.uploader
        while not (self._released.is_set() or uploader.stale or uploader.silent_s > self._launch.api_gone_s):
            if uploader.drained(timeout_s=1.0):
                self._forget()
                self._released.wait(RELEASE_S)
                break
        self._forget()
        # Not os._exit: Ray would take that for a failure and restart the actor; after its kill it does not.
        ray.kill(self._me)

    def _forget(self) -> None:
        """Give this attempt up for good. Records not stored yet stay in the spool, if anybody wants them."""
        # A release and the attempt's own end may come here at the same moment.
        with self._forgetting:
            if not self._forgotten:
                self._forgotten = True
                attempt_registry.give_up(self._launch.job_id, self._launch.attempt)
                self._record_log.discard()

    def _take(self, node: str, worker: str) -> Any:
        return self._patiently(lambda: ray.get(self._pool.take.remote(node, worker), timeout=60))

    def _patiently(self, ask: Callable[[], Answer]) -> Answer:
        """Ask until there is an answer, for `POOL_DEADLINE_S`."""
        until = monotonic() + POOL_DEADLINE_S
        while True:
            try:
                return ask()
            # The dead pool may still have the name.
            except (RayError, ValueError):
                if monotonic() > until or self._released.wait(POOL_S):
                    raise

    def _find_pool(self) -> None:
        from ringleader.runtime.nodes.warm_pool import pool

        self._pool = pool()
        self._address = self._room(within_s=60)

    def _watch_nodes(self) -> None:
        """Have members on a node that Ray drains leave at a boundary."""
        drained = DrainNotices()
        while not self._released.wait(NODES_S):
            if self._worker_group is not None:
                with suppress(Exception):  # Ray's control store is away: the next look may find it
                    self._draining = draining_nodes()
                    nodes = {w: process.node for w, process in self._worker_group.identities().items()}
                    drained.tell(
                        drained.news(self._draining, nodes),
                        lambda worker, for_s: self.drain(worker, for_s, "its node is drained"),
                    )

    def _sample(self, worker_group: WorkerGroup) -> None:
        uses = WorkerUses(worker_group.node_use)
        put, paces = self._record_log.samples.put, self._attempt.paces
        sampler = SystemSampler(worker_group.identities, uses.read, put, paces=paces)
        sampler.run(self._released, self._record_log.say)

    def _keep_pool(self) -> None:
        """Replace the pool when it is lost."""
        # The pool holds the store where members meet: without one no further plan would have a meeting point.
        while not self._released.wait(POOL_S):
            try:
                # A sign of life, and more: the store closes rooms that nobody asks for.
                self._address = self._room(within_s=10)
            except RayError:
                try:
                    self._find_pool()
                except (RayError, ValueError):  # the dead one still has the name
                    continue
