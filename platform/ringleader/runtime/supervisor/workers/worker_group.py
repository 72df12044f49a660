"""The attempt's real processes: turns instructions into Ray calls, and deaths and returns into events."""

import threading
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import Any

import ray

from ringleader.elastic import Meeting, Plan
from ringleader.elastic import events as ev
from ringleader.elastic.instructions import Role
from ringleader.runtime.messages import AttemptLaunch, Attendance, ProcessIdentity, RunEnded
from ringleader.runtime.nodes.node_process import on_node
from ringleader.runtime.nodes.node_scratch import remove_scratch
from ringleader.runtime.supervisor.failure_detector import ProcessGlance
from ringleader.runtime.supervisor.placement import BundlePlaces
from ringleader.runtime.supervisor.workers import attendance
from ringleader.runtime.supervisor.workers.worker_handle import (
    WorkerHandle,
    end_all,
    parked,
    read,
    tells_more,
)
from ringleader.runtime.supervisor.workers.worker_processes import WorkerProcesses
from ringleader.runtime.supervisor.workers.worker_returns import Death, WorkerReturns
from ringleader.spec import JobSpec

RETRY_S = 1.0
GONE = b""
"""The note on a worker that nobody has to look for."""
Note = Callable[[str, bytes], None]


class WorkerGroup:
    """The worker processes of an attempt, by worker id.

    Args:
        start: the number of this start of the supervisor.
        post: where events go.
        note: writes a worker's handle down, before anything follows from it.
    """

    def __init__(
        self,
        launch: AttemptLaunch,
        places: BundlePlaces,
        processes: WorkerProcesses,
        post: Callable[[Any], None],
        *,
        start: int,
        note: Note,
    ) -> None:
        self._launch = launch
        self._places = places
        self._processes = processes
        self._post = post
        self._start = start
        self._note = note
        self._handles: dict[str, WorkerHandle] = {}
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
        asked = {worker: handle for worker, handle in self._handles.items() if not handle.result}
        answers = attendance.ask_all(asked, self._start)
        found = {worker: self._found(worker, answer) for worker, answer in answers.items()}
        for worker, handle in self._handles.items():
            if handle.result:
                found[worker] = ev.WorkerFound(worker, "here")
                self._post(_finished(worker, handle.result, monotonic(), self._launch.spec))
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

    def identities(self) -> dict[str, ProcessIdentity]:
        """The processes of the workers that may live, by worker."""
        handles = list(self._handles.items())  # a copy: the attempt's thread adds workers meanwhile
        return {w: h.identity for w, h in handles if h.identity is not None and not h.gone}

    def node_use(self, worker: str, pids: list[int]) -> Any:
        """A worker's `WorkerActor.node_use`, pending; None where it has no process."""
        handle = self._handles.get(worker)
        return handle.actor.node_use.remote(pids) if handle is not None and handle.actor is not None else None

    def met(self, worker: str, identity: ProcessIdentity) -> None:
        """Note the process that a worker says it is."""
        handle = self._handles.get(worker)
        if handle is not None and handle.meet(identity):
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
        handle.give_up()
        self._write(worker)
        if handle.running is None:
            self._places.free(worker, for_good=True)
            self._post(ev.Lost(worker, "given up before it started", monotonic()))
            return
        handle.end_frozen()

    def shrink(self, workers_max: int) -> None:
        """Give back the free places beyond `workers_max` workers, the most that the job is to have."""
        with suppress(Exception):  # the cluster is in trouble: what is left goes with the attempt
            self._places.trim(workers_max)

    def glance(self, worker: str) -> ProcessGlance | None:
        """A look at the worker's process; None where there is none, or not yet (`WorkerHandle.glance`)."""
        handle = self._handles.get(worker)
        return handle.glance(self._returns.look) if handle is not None else None

    def befall(self, worker: str, function: Callable[..., None], *args: Any) -> None:
        """Call `function(pid, *args)` on the worker's node, whatever it does to the process."""
        self._handles[worker].befall(function, *args)

    def close(self) -> None:
        """End every process, for which it waits a while, and give every place back."""
        self._closed.set()
        end_all(list(self._handles.values()))
        self._places.close()
        _sweep(self._launch.scratch, list(self._handles.values()))

    def _found(self, worker: str, answer: Attendance | Death | None) -> ev.WorkerFound:
        """The worker as its answer shows it: here, gone, or silent without one."""
        handle = self._handles[worker]
        if answer is None:
            return ev.WorkerFound(worker, "silent")
        if isinstance(answer, Death):
            handle.give_up()
            self._places.free(worker, for_good=handle.dismissed)
            self._note(worker, GONE)
            return ev.WorkerFound(worker, "gone", cause=answer.cause)
        handle.meet(answer.identity)
        said = answer.park_message
        return ev.WorkerFound(worker, "here", answer.generation, parked(said, monotonic()) if said else None)

    def _let_go(self, worker: str, found: ev.WorkerFound) -> None:
        """End a worker that is in no membership any more: it was dismissed or given up, and may not have heard."""
        if found.process == "gone":
            return
        if found.parked is not None:
            self._run(worker)
            self.dismiss(worker)
        else:
            self._handles[worker].give_up()
            self._handles[worker].end_frozen()

    def _bring(self, worker: str) -> None:
        """Find a place and a process, start the run. On a thread of its own: places may take long."""
        handle = self._handles[worker]
        try:
            place = self._places.claim(worker, lambda: self._post(ev.Waiting(worker, monotonic())))
            if place is None or handle.gone:
                return
            self._post(ev.Placed(worker, monotonic()))
            handle.begin(*self._processes.find(worker, place, self._places))
            self._write(worker)
            self._run(worker)
            # Who gave it up found nothing running, and left the process to this thread.
            if handle.running is None:
                handle.end()
        except Exception as error:
            handle.give_up()
            if handle.actor is not None:
                with suppress(Exception):  # the cluster is in trouble: close() tries again
                    handle.end()
            self._closed.wait(RETRY_S)  # a cluster in trouble is not helped by haste
            self._places.free(worker, for_good=False)
            self._post(ev.Lost(worker, f"could not be started: {error}", monotonic()))

    def _run(self, worker: str) -> None:
        """Have a worker do its task, and hear how that ends. One that has begun already goes on; one that was given up
        does not begin."""
        handle = self._handles[worker]
        self._processes.run(worker, handle)
        if handle.running is not None:
            self._returns.of(worker, handle)

    def _over(self, worker: str, ended: RunEnded | Death) -> None:
        """Handle a run that returned, or whose process died."""
        if isinstance(ended, Death):
            self._died(worker, ended.cause)
            return
        handle, now = self._handles[worker], monotonic()
        # Its process stays until `close`: others may still read from its memory.
        handle.returned(ended.result if ended.kind == "finished" else {})
        if ended.kind == "finished":
            try:  # a full disk keeps nobody from hearing of the end
                self._write(worker)
            finally:
                self._post(_finished(worker, ended.result, now, self._launch.spec))
            return
        if ended.kind == "raised":
            self._post(ev.Raised(worker, ended.step, ended.shard, ended.message, now))
        elif ended.kind == "failed":
            self._post(ev.Failed(worker, ended.reason, ended.message, now, ended.hint))
        handle.give_up()
        try:
            self._places.free(worker, for_good=ended.kind == "dismissed")
        finally:
            handle.end()

    def _died(self, worker: str, cause: str) -> None:
        """Report a death once; more about its cause may follow later."""
        handle = self._handles[worker]
        if handle.over:
            if tells_more(cause, handle.cause):
                self._post(ev.Explained(worker, cause, monotonic()))
            return
        handle.died(cause)
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


def _sweep(scratch: Path, handles: Collection[WorkerHandle]) -> None:
    """Remove the workers' private folders, also those of killed ones, on every node they were on."""
    pids: dict[str, list[int]] = {ray.get_runtime_context().get_node_id(): []}
    for identity in (handle.identity for handle in handles if handle.identity):
        pids.setdefault(identity.node, []).append(identity.pid)
    here, *others = pids
    for node in others:
        on_node(node, remove_scratch, scratch, pids[node])
    remove_scratch(scratch, pids[here])


def _finished(worker: str, result: Mapping[str, Any], now: float, spec: JobSpec) -> ev.Finished:
    why = str(result.get("reproducible_why", "")) if spec.sync.same_bits else ""
    return ev.Finished(worker, str(result["digest"]), now, why)
