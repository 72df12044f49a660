"""Fault injection into a running job, where its owner or the control plane allows it."""

from ringleader.wire.faults import FaultOrder, FaultView
from ringleader.wire.states import State
from ringleader_api.backend import Backend, NobodyThere
from ringleader_api.clock import Clock
from ringleader_api.problems import Conflict, Forbidden
from ringleader_api.services.users.access import load
from ringleader_api.store import Store, record

AT_WORK = (State.STARTING, State.RUNNING, State.RECOVERING)


class Faults:
    """Injects faults. `allowed`: into every job, whatever its job file says."""

    def __init__(self, store: Store, backend: Backend, now: Clock, *, allowed: bool) -> None:
        self._store = store
        self._backend = backend
        self._now = now
        self._allowed = allowed

    def inject(self, job_id: str, order: FaultOrder, who: str) -> FaultView:
        """Inject a fault, then record it.

        Raises:
            Forbidden: neither job file nor control plane allow it.
            Conflict: the job is not at work, or has no such member.
        """
        with self._store.read() as session:
            job = load(session, job_id)
            state, attempt, debug = job.state, job.attempt, job.spec.get("debug", {})
        if not (self._allowed or debug.get("faults")):
            raise Forbidden(f"job {job_id} does not allow fault injection.", code="faults_refused")
        if state not in AT_WORK:
            raise Conflict(
                f"no fault can be injected into job {job_id}: it is in state {state}.", code="not_at_work"
            )
        try:
            effect = self._backend.fault(job_id, attempt, order.fault, order.worker, order.for_s)
        except NobodyThere as error:
            raise Conflict(error.message, code="no_such_member") from None
        done = FaultView(
            at=self._now(), fault=order.fault, target=order.worker or "supervisor", effect=effect
        )
        # Only now: an event about a fault that did not happen would be worse than none.
        with self._store.write() as session:
            told = {"who": who, "fault": done.fault, "target": done.target, "effect": effect}
            record(session, load(session, job_id), "fault.injected", done.at, told)
        return done
