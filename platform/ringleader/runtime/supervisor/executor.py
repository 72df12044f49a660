"""The instructions of an attempt's membership, carried out on its worker processes."""

from collections.abc import Callable
from dataclasses import replace

from ringleader.elastic import Meeting, Membership, Plan
from ringleader.elastic import instructions as do
from ringleader.runtime.records.record_log import RecordLog
from ringleader.runtime.supervisor.heartbeats import Heartbeats
from ringleader.runtime.supervisor.workers.worker_group import WorkerGroup

CALM_S = 1.0
"""The head start of a recovery before a replacement, whose process takes a core for as long as its imports last."""


class InstructionExecutor:
    """Carries out what a membership instructs.

    Args:
        meeting: the meeting point as it is now, whoever the members are.
    """

    def __init__(
        self,
        worker_group: WorkerGroup,
        record_log: RecordLog,
        heartbeats: Heartbeats,
        meeting: Callable[[], Meeting],
    ) -> None:
        self._worker_group = worker_group
        self._record_log = record_log
        self._heartbeats = heartbeats
        self._meeting = meeting
        self._held: dict[str, float] = {}

    def act(self, out: tuple[do.Instruction, ...], state: Membership, now: float) -> None:
        """Carry out the instructions with which the membership came to this state."""
        worker_group = self._worker_group
        for instruction in out:
            match instruction:
                case do.Form(plan=plan):
                    worker_group.deliver(self._completed(plan))
                case do.Interrupt(worker=worker, generation=generation):
                    worker_group.interrupt(worker, generation)
                case do.Announce(worker=worker, generation=generation):
                    worker_group.announce(worker, generation)
                case do.Follow(worker=worker, donor=donor, number=number):
                    worker_group.pair(worker, donor, number, self._where(worker, donor))
                case do.Start(worker=worker, role=role):
                    worker_group.reserve(worker, role)
                    self._held[worker] = now
                case do.Dismiss(worker=worker):
                    self._heartbeats.forget(worker)
                    worker_group.dismiss(worker)
                case do.Kill(worker=worker):
                    self._heartbeats.forget(worker)
                    worker_group.kill(worker)
                case do.End(outcome="failed"):
                    self._record_log.say(f"The attempt failed ({instruction.reason}): {instruction.message}")
        if state.ended is None:
            self._start(state, now)

    def _start(self, state: Membership, now: float) -> None:
        """Start the workers held back, unless the others are about to go on without them."""
        recovers = state.recovery is not None and len(state.pool) >= state.workers_min
        for worker, since in list(self._held.items()):
            if not recovers or now - since >= CALM_S:
                del self._held[worker]
                # It may have been given up while it was held back.
                if self._worker_group.knows(worker):
                    self._worker_group.start(worker)

    def _completed(self, plan: Plan) -> Plan:
        # Only on delivery: since the decision more records may have come, and another store.
        return replace(plan, recorded_step=self._record_log.recorded_step, meeting=self._where(*plan.members))

    def _where(self, *members: str) -> Meeting:
        """The meeting point of these members; `near` where all of them are on one node."""
        processes = self._worker_group.identities()
        # A member whose node is not known yet may be anywhere.
        known = all(member in processes for member in members)
        near = known and len({processes[member].node for member in members}) == 1
        return replace(self._meeting(), near=near)
