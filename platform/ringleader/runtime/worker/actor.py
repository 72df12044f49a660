"""A worker process: idle with torch imported, then a member of one attempt, then gone. A threaded Ray actor.

Whoever gets a handle of this actor imports this module: it stays light, what needs torch is in member.py.
"""

import os
import signal
import threading
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any

import ray
from ray.exceptions import ActorDiedError, RayError

from ringleader.elastic import Meeting, Plan
from ringleader.runtime.messages import GONE_S, Attendance, MemberTask, ProcessIdentity, RunEnded
from ringleader.runtime.nodes import death_watch
from ringleader.runtime.nodes.imports import import_engine
from ringleader.runtime.nodes.notices import TERM_GRACE_S, on_sigterm
from ringleader.runtime.worker.heartbeat import ORPHANED, HeartbeatThread, guard_idle
from ringleader.runtime.worker.supervisor_link import RayLink

if TYPE_CHECKING:
    from ringleader.runtime.nodes.node_use import NodeReading
    from ringleader.runtime.worker.account_actor import AccountMember
    from ringleader.runtime.worker.member import MemberProcess

TERM_AGAIN_S = 0.5


class WorkerActor:
    """The actor: `warm` imports what is slow; `run` does one attempt and returns how it ended; the rest are the
    supervisor's calls while `run` is under way.

    A supervisor that was killed comes back as a new process with a higher `start`: it asks for `attendance`, and calls
    `run` again, which does not begin anew. From then on the calls of older ones are refused.
    """

    def __init__(self) -> None:
        self._busy = threading.Event()
        self._ready = threading.Event()
        self._changed = threading.Condition()
        self._start = 0
        self._ended: RunEnded | None = None
        self._member: MemberProcess | AccountMember | None = None
        self._heartbeat_thread = HeartbeatThread()
        self._supervisor: Any = None
        self._id = ""
        on_sigterm(self._terminated)

    def warm(self) -> ProcessIdentity:
        """Import the engine, so that a job does not wait for it."""
        import_engine()
        return self.who()

    def who(self) -> ProcessIdentity:
        context = ray.get_runtime_context()
        return ProcessIdentity(
            os.getpid(), context.get_node_id(), ray.util.get_node_ip_address(), death_watch.own()
        )

    def idle(self, pool: Any) -> None:
        """End this process if `pool` is lost before it has work."""
        threading.Thread(target=guard_idle, args=(pool.alive.remote, self._busy), daemon=True).start()

    def end_unless_busy(self) -> None:
        """End this process if it has no work by now."""
        with self._changed:
            # Whoever took it has lost it.
            if not self._busy.is_set():
                os._exit(ORPHANED)

    def run(self, start: int, task: MemberTask, package: bytes | None, supervisor: Any) -> RunEnded | None:
        """Be `task.worker` until the training function returns, raises or is dismissed. A later call gets the same
        answer; None once a newer supervisor is there."""
        with self._changed:
            # Locked: `end_unless_busy` must not end a process that is just being given work.
            again = self._busy.is_set()  # the supervisor that said so first is gone
            self._busy.set()
        if again:
            return self._over(start)
        self._listen(start)
        member = self._member_of(task, supervisor)
        self._id, self._supervisor = task.worker, supervisor
        self._member = member
        self._ready.set()
        ended = member.run(package)
        with self._changed:
            self._ended = ended
            self._changed.notify_all()
        return ended

    def _member_of(self, task: MemberTask, supervisor: Any) -> "MemberProcess | AccountMember":
        supervisor_link = RayLink(supervisor)
        if task.run_as is not None:
            from ringleader.runtime.worker.account_actor import AccountMember

            return AccountMember(task, self.who(), supervisor_link)
        from ringleader.runtime.worker.member import MemberProcess

        return MemberProcess(task, self.who(), supervisor_link, self._heartbeat_thread)

    def attendance(self, start: int) -> Attendance:
        """This worker's attendance, for a supervisor that came back."""
        self._listen(start)
        if not self._busy.is_set():
            return Attendance(self.who(), busy=False)
        return self._words().attendance()

    def node_use(self, pids: list[int]) -> "NodeReading":
        """What this node and these processes of it have used."""
        from ringleader.runtime.nodes.node_use import read_node

        return read_node(pids)

    def plan(self, plan: Plan) -> None:
        if self._listen(plan.start):
            self._words().seats.take(plan)

    def interrupt(self, start: int, generation: int) -> None:
        if self._listen(start):
            self._words().seats.interrupt(generation)

    def announce(self, start: int, generation: int) -> None:
        if self._listen(start):
            self._words().seats.announce(generation)

    def follow(self, start: int, meeting: Meeting, number: int) -> None:
        if self._listen(start):
            self._words().seats.follow(meeting, number)

    def donate(self, start: int, meeting: Meeting, number: int) -> None:
        if self._listen(start):
            self._words().seats.donate(meeting, number)

    def _terminated(self) -> None:
        """Have a member leave at the next boundary; end a process without work, or without a supervisor, now. A
        supervisor that is coming back is told then."""
        until = monotonic() + TERM_GRACE_S
        while self._supervisor is not None and (left_s := until - monotonic()) > 0:
            try:
                told = self._supervisor.drain.remote(self._id, left_s, "SIGTERM")
                ray.get(told, timeout=min(GONE_S, left_s))
                return
            except ActorDiedError:
                break
            except (RayError, ConnectionError):
                sleep(TERM_AGAIN_S)
        # The status by which a shell shows a process that SIGTERM has ended.
        os._exit(128 + signal.SIGTERM)

    def dismiss(self, start: int) -> None:
        if self._listen(start):
            self._words().seats.dismiss()

    def _over(self, start: int) -> RunEnded | None:
        self._listen(start)
        with self._changed:
            self._changed.wait_for(lambda: self._ended is not None or start < self._start)
            return self._ended if start >= self._start else None

    def _listen(self, start: int) -> bool:
        """Whether the call is of the newest supervisor that this process knows."""
        with self._changed:
            newer = start >= self._start
            self._start = max(start, self._start)
            self._changed.notify_all()
        return newer

    def _words(self) -> "MemberProcess | AccountMember":
        # A call may come while `run`, on another thread, still makes the member.
        self._ready.wait(timeout=30)
        assert self._member is not None
        return self._member
