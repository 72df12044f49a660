"""The attempt's real processes: turns instructions into Ray calls, and deaths and returns into events."""

import shutil
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import Any, cast

import ray
from ray.exceptions import ActorDiedError, NodeDiedError, OutOfMemoryError, RayError
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from ringleader.elastic import Meeting, Plan
from ringleader.elastic import events as ev
from ringleader.elastic.instructions import Role
from ringleader.runtime.messages import (
    NAMESPACE,
    WORKER_THREADS,
    AttemptLaunch,
    Attendance,
    MemberTask,
    ProcessIdentity,
)
from ringleader.runtime.nodes.node_scratch import copies_of
from ringleader.runtime.supervisor.failure_detector import BUSY_CPU_S, ProcessGlance
from ringleader.runtime.supervisor.placement import BundlePlace, BundlePlaces
from ringleader.runtime.supervisor.worker_handle import (
    WorkerHandle,
    cause_of,
    end_frozen,
    end_process,
    glance,
    on_node,
    parked,
    read,
    tells_more,
)
from ringleader.runtime.supervisor.worker_returns import Death, Return, WorkerReturns

PATIENT_S = 2.0
ENDING_S = 10.0
RETRY_S = 1.0
ATTEND_S = 2.0
"""The time for an answer to a supervisor that came back: a worker that takes longer, and does nothing, is frozen."""
HEAR_S = 10.0
"""The longest wait for one that is at work: the others hear from their supervisor only then, within `AWAY_S`."""
LOOKS = 2
"""The multiple of `ATTEND_S` that a look at another node's process may take."""

GONE = b""
"""The note on a worker that nobody has to look for."""
Note = Callable[[str, bytes], None]


class WorkerGroup:
    """The worker processes of an attempt, by worker id.

    Args:
        start: the number of this start of the supervisor.
        me: the supervisor's own actor handle, given to every worker.
        take: takes an idle process of a node from the warm pool, for a worker.
        post: where events go.
        note: writes a worker's handle down, before anything follows from it.
    """

    def __init__(
        self,
        launch: AttemptLaunch,
        places: BundlePlaces,
        me: Any,
        take: Callable[[str, str], tuple[Any, ProcessIdentity]],
        post: Callable[[Any], None],
        *,
        start: int,
        note: Note,
    ) -> None:
        self._launch = launch
        self._places = places
        self._me = me
        self._take = take
        self._post = post
        self._start = start
        self._note = note
        self._handles: dict[str, WorkerHandle] = {}
        # Put once: all workers of a node read the one copy in its object store.
        self._package = ray.put(launch.packed())
        self._closed = threading.Event()
        self._returns = WorkerReturns(self._over)

    @property
    def results(self) -> dict[str, dict[str, Any]]:
        """The results of the workers that finished, in the order they were started."""
        return {worker: handle.result for worker, handle in self._handles.items() if handle.result}

    def adopt(self, written: Mapping[str, bytes], known: Mapping[str, Role]) -> tuple[ev.WorkerFound, ...]:
        """Take over the workers that the supervisor before this one wrote down, as they are now.

        Args:
            written: the handles that it noted.
            known: the workers of the membership; all others are let go.
        """
        handles = {worker: read(handle) for worker, handle in written.items() if handle != GONE}
        # Without an actor it was dismissed or given up before it had a process.
        self._handles = {worker: handle for worker, handle in handles.items() if handle.actor is not None}
        asked = {
            worker: handle.actor.attendance.remote(self._start)
            for worker, handle in self._handles.items()
            if not handle.result
        }
        self._hear(asked)
        found = {worker: self._look(worker, answer) for worker, answer in asked.items()}
        for worker, handle in self._handles.items():
            if handle.result:
                found[worker] = ev.WorkerFound(worker, "here")
                self._post(ev.Finished(worker, str(handle.result["digest"]), monotonic()))
            elif worker not in known:
                self._let_go(worker, found[worker])
            elif found[worker].process != "gone":
                self._run(worker)
        for worker in known:
            # Never noted: the supervisor before this one had not got a process for it.
            self._handles.setdefault(worker, WorkerHandle(known[worker]))
        return tuple(found.get(worker, ev.WorkerFound(worker, "none")) for worker in known)

    def knows(self, worker: str) -> bool:
        """Whether `worker` belongs to this attempt and may live."""
        handle = self._handles.get(worker)
        return handle is not None and not handle.gone

    def identity(self, worker: str) -> ProcessIdentity | None:
        handle = self._handles.get(worker)
        return handle.identity if handle else None

    def nodes(self) -> dict[str, str]:
        """The nodes of the workers that may live, by worker."""
        # A copy: the attempt's thread adds workers meanwhile.
        handles = list(self._handles.items())
        return {
            w: handle.identity.node
            for w, handle in handles
            if handle.identity is not None and not handle.gone
        }

    def met(self, worker: str, identity: ProcessIdentity) -> None:
        """Note the process that a worker says it is."""
        handle = self._handles.get(worker)
        # Unknown until now, or the actor's own where the program runs in a child of it.
        if handle is not None and handle.identity != identity:
            handle.identity = identity
            self._write(worker)
            self._returns.watch(worker, handle)

    def reserve(self, worker: str, role: Role) -> None:
        self._handles[worker] = WorkerHandle(role)
        self._places.reserve(worker, role)

    def start(self, worker: str) -> None:
        threading.Thread(target=self._bring, args=(worker,), name=f"bring-{worker}", daemon=True).start()

    def deliver(self, plan: Plan) -> None:
        """Send the plan to all members at once: no call waits for another."""
        for member in plan.members:
            self._call(member, "plan", plan)

    def interrupt(self, worker: str, generation: int) -> None:
        self._call(worker, "interrupt", self._start, generation)

    def announce(self, worker: str, generation: int) -> None:
        self._call(worker, "announce", self._start, generation)

    def pair(self, worker: str, donor: str, number: int, meeting: Meeting) -> None:
        """Have `worker` follow `donor`; both are told where to meet."""
        self._call(worker, "follow", self._start, meeting, number)
        self._call(donor, "donate", self._start, meeting, number)

    def dismiss(self, worker: str) -> None:
        self._handles[worker].dismissed = True
        # Before the call: a supervisor that comes back has to know that this one may go.
        self._write(worker)
        self._call(worker, "dismiss", self._start)

    def kill(self, worker: str) -> None:
        """End the process for certain, frozen or not; its death comes back as an event."""
        handle = self._handles[worker]
        handle.gone = True
        self._write(worker)
        if handle.running is None:
            self._places.free(worker, for_good=True)
            self._post(ev.Lost(worker, "given up before it started", monotonic()))
            return
        end_frozen(handle)

    def shrink(self, workers_max: int) -> None:
        """Give back the free places beyond `workers_max` workers, the most that the job is to have."""
        with suppress(Exception):  # the cluster is in trouble: what is left goes with the attempt
            self._places.trim(workers_max)

    def glance(self, worker: str) -> ProcessGlance | None:
        """A look at the worker's process; None where there is none, or not yet: the look at another node's comes back
        with a later call."""
        handle = self._handles.get(worker)
        if handle is None or handle.identity is None or handle.gone:
            return None
        if handle.identity.node == ray.get_runtime_context().get_node_id():
            return glance(handle.identity.pid)
        if handle.look is None:
            handle.look = on_node(handle.identity.node, glance, handle.identity.pid)
            return None
        if not ray.wait([handle.look], timeout=0)[0]:
            return None
        look, handle.look = handle.look, None
        try:
            return cast("ProcessGlance | None", ray.get(look))
        except RayError:  # the node is gone: its notice or the missing heartbeats say so
            return None

    def befall(self, worker: str, function: Callable[..., None], *args: Any) -> None:
        """Call `function(pid, *args)` on the worker's node, whatever it does to the process."""
        identity = self._handles[worker].identity
        assert identity is not None
        if identity.node == ray.get_runtime_context().get_node_id():
            function(identity.pid, *args)
        else:
            on_node(identity.node, function, identity.pid, *args)

    def close(self) -> None:
        """End every process and give every place back; returns when they are gone or after `ENDING_S`."""
        self._closed.set()
        for handle in self._handles.values():
            handle.gone = True
            if handle.actor is not None:
                end_process(handle)
        handles = {h.running: h for h in self._handles.values() if h.running is not None}
        # Two rounds: SIGKILL for those that Ray's own kill did not reach, then the wait for their end.
        for deadline_s in (PATIENT_S, ENDING_S):
            _, left = (
                ray.wait([*handles], num_returns=len(handles), timeout=deadline_s) if handles else ([], [])
            )
            for running in left:
                end_frozen(handles[running])
        self._places.close()
        self._sweep()

    def _hear(self, asked: Mapping[str, Any]) -> None:
        """Wait until all have answered, for `HEAR_S`; one that does not is left out once its process is not at work."""
        until, used = monotonic() + HEAR_S, dict.fromkeys(asked, 0.0)
        unseen = dict.fromkeys(asked, 0)
        waiting = {answer: worker for worker, answer in asked.items()}
        while waiting and monotonic() < until:
            _, left = ray.wait([*waiting], num_returns=len(waiting), timeout=ATTEND_S)
            waiting = {answer: waiting[answer] for answer in left}
            for answer, worker in list(waiting.items()):
                glance = self.glance(worker)
                unseen[worker] = unseen[worker] + 1 if glance is None else 0
                if glance is None and self._handles[worker].look is not None and unseen[worker] <= LOOKS:
                    continue  # somebody looks there
                if glance is None or glance.stopped or glance.cpu_s - used[worker] < BUSY_CPU_S:
                    del waiting[answer]
                else:
                    used[worker] = glance.cpu_s

    def _look(self, worker: str, asked: Any) -> ev.WorkerFound:
        """The worker as its answer shows it: here, gone, or silent without one."""
        handle = self._handles[worker]
        answered, _ = ray.wait([asked], timeout=0)
        try:
            attendance: Attendance | None = ray.get(asked) if answered else None
        except (ActorDiedError, NodeDiedError, OutOfMemoryError) as error:
            handle.gone = True
            self._places.free(worker, for_good=handle.dismissed)
            self._note(worker, GONE)
            return ev.WorkerFound(worker, "gone", cause=cause_of(error))
        except Exception:  # whatever is in the way may pass; the process must not live on unnoticed
            attendance = None
        if attendance is None:
            return ev.WorkerFound(worker, "silent")
        handle.identity = attendance.identity
        said = attendance.park_message
        return ev.WorkerFound(
            worker, "here", attendance.generation, parked(said, monotonic()) if said else None
        )

    def _let_go(self, worker: str, found: ev.WorkerFound) -> None:
        """End a worker that is in no membership any more: it was dismissed or given up, and may not have heard."""
        if found.process == "gone":
            return
        if found.parked is not None:
            self._run(worker)
            self.dismiss(worker)
        else:
            self._handles[worker].gone = True
            end_frozen(self._handles[worker])

    def _bring(self, worker: str) -> None:
        """Find a place and a process, start the run. On a thread of its own: places may take long."""
        handle = self._handles[worker]
        try:
            place = self._places.claim(worker, lambda: self._post(ev.Waiting(worker, monotonic())))
            if place is None or handle.gone:
                return
            self._post(ev.Placed(worker, monotonic()))
            actor, identity = self._process(worker, place)
            handle.actor, handle.identity = actor, identity
            self._write(worker)
            if handle.gone:
                end_process(handle)
                return
            self._run(worker)
            # Again: a `kill` since the look above found nothing running, and left the process to this thread.
            if handle.gone:
                end_process(handle)
        except Exception as error:
            handle.gone = True
            if handle.actor is not None:
                with suppress(Exception):  # the cluster is in trouble: close() tries again
                    end_process(handle)
            self._closed.wait(RETRY_S)  # a cluster in trouble is not helped by haste
            self._places.free(worker, for_good=False)
            self._post(ev.Lost(worker, f"could not be started: {error}", monotonic()))

    def _run(self, worker: str) -> None:
        """Have a worker do its task, and hear how that ends. One that has begun already goes on."""
        handle = self._handles[worker]
        task = self._task(worker, handle.role)
        handle.running = handle.actor.run.remote(self._start, task, self._package, self._me)
        self._returns.of(worker, handle)

    def _process(self, worker: str, place: BundlePlace) -> tuple[Any, ProcessIdentity | None]:
        """An idle process of the place's node; with GPUs a new one inside the bundle, so that Ray assigns devices."""
        gpus = self._launch.spec.gpus_of(place.role)
        if not gpus:
            return self._take(self._places.node(place), f"{self._launch.name}-{worker}")
        from ringleader.runtime.worker.actor import WorkerActor

        inside = PlacementGroupSchedulingStrategy(place.group, placement_group_bundle_index=place.bundle)
        actor = (
            ray.remote(WorkerActor)
            .options(
                name=f"{self._launch.name}-{worker}",
                namespace=NAMESPACE,
                # Else it would end with a supervisor that is killed, which comes back and wants it.
                lifetime="detached",
                # A supervisor that was killed before it noted the actor finds it again by its name.
                get_if_exists=True,
                num_cpus=0,
                num_gpus=gpus,
                max_concurrency=WORKER_THREADS,
                scheduling_strategy=inside,
            )
            .remote()
        )
        return actor, None

    def _task(self, worker: str, role: Role) -> MemberTask:
        launch = self._launch
        folders = (launch.left, launch.scratch, launch.checkpoints)
        return MemberTask(launch.job_id, launch.attempt, worker, role, launch.spec, *folders, launch.run_as)

    def _over(self, worker: str, returned: Return) -> None:
        """Handle a run that returned, or whose process died."""
        handle, now = self._handles[worker], monotonic()
        if isinstance(returned, Death):
            self._died(worker, returned.cause)
            return
        try:
            ended = returned.result()
        except Exception as error:
            self._died(worker, cause_of(error))
            return
        if ended is None:
            return  # another supervisor is there
        handle.over = True
        # Its process stays until `close`: others may still read from its memory.
        if ended.kind == "finished":
            handle.result = ended.result
            try:  # a full disk keeps nobody from hearing of the end
                self._write(worker)
            finally:
                self._post(ev.Finished(worker, str(ended.result["digest"]), now))
            return
        if ended.kind == "raised":
            self._post(ev.Raised(worker, ended.step, ended.shard, ended.message, now))
        elif ended.kind == "failed":
            self._post(ev.Failed(worker, ended.reason, ended.message, now, ended.hint))
        handle.gone = True
        try:
            self._places.free(worker, for_good=ended.kind == "dismissed")
        finally:
            end_process(handle)

    def _died(self, worker: str, cause: str) -> None:
        """Report a death once; more about its cause may follow later."""
        handle = self._handles[worker]
        if handle.over:
            if tells_more(cause, handle.cause):
                self._post(ev.Explained(worker, cause, monotonic()))
            return
        handle.over, handle.gone, handle.cause = True, True, cause
        try:  # its place is free, and stays for its replacement, before another one is looked for
            self._places.free(worker, for_good=handle.dismissed)
            self._note(worker, GONE)
        finally:
            self._post(ev.Lost(worker, cause, monotonic()))

    def _call(self, worker: str, method: str, *args: Any) -> None:
        handle = self._handles.get(worker)
        if handle is not None and handle.actor is not None and not handle.gone:
            # Not awaited: a frozen worker would hold up the thread that decides for all.
            getattr(handle.actor, method).remote(*args)

    def _write(self, worker: str) -> None:
        self._note(worker, self._handles[worker].written())

    def _sweep(self) -> None:
        """Remove the workers' private folders, also those of killed ones, on every node they were on."""
        scratch = self._launch.scratch
        here = ray.get_runtime_context().get_node_id()
        for node in {h.identity.node for h in self._handles.values() if h.identity} - {here}:
            on_node(node, _remove, scratch)
        _remove(scratch)


def _remove(folder: Path) -> None:
    for left in (folder, copies_of(folder.name)):
        shutil.rmtree(left, ignore_errors=True)
