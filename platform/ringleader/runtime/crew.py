"""The attempt's real processes: where instructions become Ray calls, and deaths and returns become events."""

import os
import queue
import shutil
import signal
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any, cast

import ray
from ray.exceptions import NodeDiedError, OutOfMemoryError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from ringleader.elastic import Plan
from ringleader.elastic import events as ev
from ringleader.elastic.instructions import Role
from ringleader.runtime.messages import WORKER_THREADS, Ended, Identity, Launch, Task
from ringleader.runtime.placement import Place, Places
from ringleader.runtime.watch import Glance

PATIENT_S = 2.0
ENDING_S = 10.0
RETRY_S = 1.0


@dataclass(slots=True)
class Hand:
    """One worker of the crew; `gone` when it shall not live any more."""

    role: Role
    handle: Any = None
    identity: Identity | None = None
    running: Any = None
    look: Any = None
    gone: bool = False
    dismissed: bool = False


class Crew:
    """Processes by worker id.

    Args:
        me: the supervisor's own actor handle, given to every worker.
        take: takes an idle process of a node from the warm pool.
        post: where events go.
    """

    def __init__(
        self, launch: Launch, places: Places, me: Any, take: Callable[[str], Any], post: Callable[[Any], None]
    ) -> None:
        self._launch = launch
        self._places = places
        self._me = me
        self._take = take
        self._post = post
        self._hands: dict[str, Hand] = {}
        self._package = ray.put(launch.package)
        self._closed = threading.Event()
        self.results: dict[str, dict[str, Any]] = {}
        # Ray calls back on the thread that its own calls need: nothing but a queue may be touched there.
        self._returns: queue.SimpleQueue[tuple[str, Future[Ended]]] = queue.SimpleQueue()
        threading.Thread(target=self._take_returns, name="returns", daemon=True).start()

    def knows(self, worker: str) -> bool:
        """Whether `worker` is one that may live."""
        hand = self._hands.get(worker)
        return hand is not None and not hand.gone

    def identity(self, worker: str) -> Identity | None:
        hand = self._hands.get(worker)
        return hand.identity if hand else None

    def nodes(self) -> dict[str, str]:
        """The nodes of those who may live, by worker."""
        hands = list(self._hands.items())
        return {w: hand.identity.node for w, hand in hands if hand.identity is not None and not hand.gone}

    def met(self, worker: str, identity: Identity) -> None:
        """A worker said which process it is."""
        hand = self._hands.get(worker)
        if hand is not None:
            hand.identity = identity

    def start(self, worker: str, role: Role) -> None:
        self._hands[worker] = Hand(role)
        self._places.reserve(worker, role)
        threading.Thread(target=self._bring, args=(worker,), name=f"bring-{worker}", daemon=True).start()

    def deliver(self, plan: Plan) -> None:
        """To all members at once: no call waits for another."""
        for member in plan.members:
            self._call(member, "plan", plan)

    def interrupt(self, worker: str, generation: int) -> None:
        self._call(worker, "interrupt", generation)

    def announce(self, worker: str, generation: int) -> None:
        self._call(worker, "announce", generation)

    def pair(self, worker: str, donor: str, number: int, meeting: str) -> None:
        """Let `worker` follow `donor`."""
        self._call(worker, "follow", meeting, number)
        self._call(donor, "donate", meeting, number)

    def dismiss(self, worker: str) -> None:
        self._hands[worker].dismissed = True
        self._call(worker, "dismiss")

    def kill(self, worker: str) -> None:
        """End the process for certain, frozen or not; its death comes back as an event."""
        hand = self._hands[worker]
        hand.gone = True
        if hand.running is None:
            self._places.free(worker, for_good=True)
            self._post(ev.Lost(worker, "given up before it started", monotonic()))
            return
        _end_frozen(hand)

    def glance(self, worker: str) -> Glance | None:
        """A look at the worker's process; None where there is none, or not yet: the look at another node's comes back
        with a later call."""
        hand = self._hands.get(worker)
        if hand is None or hand.identity is None or hand.gone:
            return None
        if hand.identity.node == ray.get_runtime_context().get_node_id():
            return glance(hand.identity.pid)
        if hand.look is None:
            hand.look = _on_node(hand.identity.node, glance, hand.identity.pid)
            return None
        if not ray.wait([hand.look], timeout=0)[0]:
            return None
        look, hand.look = hand.look, None
        try:
            return cast("Glance | None", ray.get(look))
        except RayError:  # the node is gone: its notice or the missing heartbeats say so
            return None

    def befall(self, worker: str, function: Callable[..., None], *args: Any) -> None:
        """`function(pid, *args)` on the worker's node, whatever it does to the process."""
        identity = self._hands[worker].identity
        assert identity is not None
        if identity.node == ray.get_runtime_context().get_node_id():
            function(identity.pid, *args)
        else:
            _on_node(identity.node, function, identity.pid, *args)

    def close(self) -> None:
        """End every process and give every place back; returns when they are gone or after `ENDING_S`."""
        self._closed.set()
        for hand in self._hands.values():
            hand.gone = True
            if hand.handle is not None:
                _end_process(hand)
        hands = {h.running: h for h in self._hands.values() if h.running is not None}
        for deadline_s in (PATIENT_S, ENDING_S):
            _, left = ray.wait([*hands], num_returns=len(hands), timeout=deadline_s) if hands else ([], [])
            for running in left:
                _end_frozen(hands[running])
        self._places.close()
        self._sweep()

    def _bring(self, worker: str) -> None:
        """Find a place and a process, start the run. On a thread of its own: places may take long."""
        hand = self._hands[worker]
        try:
            place = self._places.claim(worker, lambda: self._post(ev.Waiting(worker, monotonic())))
            if place is None or hand.gone:
                return
            self._post(ev.Placed(worker, monotonic()))
            handle, identity = self._process(place)
            hand.handle, hand.identity = handle, identity
            if hand.gone:
                _end_process(hand)
                return
            hand.running = handle.run.remote(self._task(worker, hand.role), self._package, self._me)
            hand.running.future().add_done_callback(lambda future: self._returns.put((worker, future)))
            if hand.gone:
                _end_process(hand)
        except Exception as error:
            self._closed.wait(RETRY_S)  # a cluster in trouble is not helped by haste
            self._places.free(worker, for_good=False)
            self._post(ev.Lost(worker, f"could not be started: {error}", monotonic()))

    def _process(self, place: Place) -> tuple[Any, Identity | None]:
        """An idle process of the place's node; with GPUs a new one inside the bundle, so that Ray assigns devices."""
        if not self._launch.spec.workers.gpus:
            handle, identity = self._take(self._places.node(place))
            return handle, identity
        from ringleader.runtime.worker import Worker

        inside = PlacementGroupSchedulingStrategy(place.group, placement_group_bundle_index=place.bundle)
        handle = (
            ray.remote(Worker)
            .options(
                num_cpus=0,
                num_gpus=self._launch.spec.workers.gpus,
                max_concurrency=WORKER_THREADS,
                scheduling_strategy=inside,
            )
            .remote()
        )
        return handle, None

    def _task(self, worker: str, role: Role) -> Task:
        launch = self._launch
        return Task(
            launch.job_id,
            launch.attempt,
            worker,
            role,
            launch.spec,
            launch.artifacts,
            launch.scratch,
            launch.checkpoints,
            launch.secrets,
        )

    def _take_returns(self) -> None:
        while True:
            self._over(*self._returns.get())

    def _over(self, worker: str, future: "Future[Ended]") -> None:
        """A run returned, or its process died."""
        hand, now = self._hands[worker], monotonic()
        try:
            ended = future.result()
        except Exception as error:
            hand.gone = True
            self._places.free(worker, for_good=hand.dismissed)
            self._post(ev.Lost(worker, _cause(error), now))
            return
        if ended.kind == "finished":
            self.results[worker] = ended.result
            self._post(ev.Finished(worker, str(ended.result["digest"]), now))
            return
        if ended.kind == "raised":
            self._post(ev.Raised(worker, ended.step, ended.shard, ended.message, now))
        elif ended.kind == "failed":
            self._post(ev.Failed(worker, ended.reason, ended.message, now, ended.hint))
        hand.gone = True
        self._places.free(worker, for_good=ended.kind == "dismissed")
        _end_process(hand)

    def _call(self, worker: str, method: str, *args: Any) -> None:
        hand = self._hands.get(worker)
        if hand is not None and hand.handle is not None and not hand.gone:
            getattr(hand.handle, method).remote(*args)

    def _sweep(self) -> None:
        """Remove the workers' private folders, also those of killed ones, on every node they were on."""
        scratch = self._launch.scratch
        here = ray.get_runtime_context().get_node_id()
        nodes = {h.identity.node for h in self._hands.values() if h.identity} - {here}
        for node in nodes:
            _on_node(node, _remove, scratch)
        _remove(scratch)


def _remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)


def _end_process(hand: Hand) -> None:
    ray.kill(hand.handle, no_restart=True)


def _end_frozen(hand: Hand) -> None:
    """SIGKILL, which also ends a process that does not listen to Ray."""
    _end_process(hand)
    if hand.identity is not None:
        if hand.identity.node == ray.get_runtime_context().get_node_id():
            _sigkill(hand.identity.pid)
        else:
            _on_node(hand.identity.node, _sigkill, hand.identity.pid)


def glance(pid: int) -> Glance | None:
    """What /proc says of a process; None where it is gone, or there is no /proc."""
    try:
        # The name, in brackets, may hold anything.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return Glance(fields[0] == "T", (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"))


def _sigkill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def _on_node(node: str, function: Callable[..., Any], *args: Any) -> Any:
    """Run a small function on a node; nobody waits for it: it is gone if the node is."""
    there = NodeAffinitySchedulingStrategy(node, soft=False)
    return ray.remote(function).options(num_cpus=0, scheduling_strategy=there, max_retries=0).remote(*args)


def _cause(error: BaseException) -> str:
    """In a few words; Ray's own sentences list all that might have happened."""
    if isinstance(error, OutOfMemoryError):
        return "killed by Ray's memory monitor"
    return "node died" if isinstance(error, NodeDiedError) else "died"
