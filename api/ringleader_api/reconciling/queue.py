"""The waiting jobs: who starts now, and what the others are told."""

from collections.abc import Sequence

from sqlalchemy import select

from ringleader.spec import JobSpec
from ringleader.wire.states import State
from ringleader.wire.views import Why
from ringleader_api.log import Log
from ringleader_api.reconciling.launching import Launching
from ringleader_api.scheduling import Admit, Node, Snapshot, decide
from ringleader_api.services.claims import claim_of
from ringleader_api.services.submission import ADMITTED
from ringleader_api.store import Store
from ringleader_api.store.tables import Job

log = Log("ringleader.queue")


class Queue:
    """Called by the reconciler only."""

    def __init__(self, store: Store, launching: Launching) -> None:
        self._store = store
        self._launching = launching

    def admit(self, alive: set[tuple[str, int]], nodes: Sequence[Node]) -> None:
        """Start what fits, and say of the others why they wait. A job whose last attempt still lives is not asked."""
        busy = {job_id for job_id, _ in alive}
        with self._store.read() as session:
            query = select(Job).where(Job.state.in_([*ADMITTED, State.QUEUED]), Job.deleted_at.is_(None))
            jobs = session.scalars(query.order_by(Job.id)).all()
        claims = {j.id: claim_of(j.id, JobSpec.model_validate(j.spec), j.world_size) for j in jobs}
        snapshot = Snapshot(
            nodes=nodes,
            admitted=[claims[j.id] for j in jobs if j.state in ADMITTED or j.id in busy],
            queued=[claims[j.id] for j in jobs if j.state is State.QUEUED and j.id not in busy],
        )
        for decision in decide(snapshot):
            if isinstance(decision, Admit):
                self._start(decision.job_id)
            else:
                self._tell(decision.job_id, decision.why)

    def hold_all(self, trouble: str) -> None:
        """The cluster is out of reach: nobody starts."""
        why = Why(
            code="cluster_unreachable",
            message=f"the Ray cluster does not answer ({trouble})",
            hint="Running jobs are left alone; this one starts when the cluster is back.",
        )
        with self._store.read() as session:
            waiting = session.scalars(select(Job.id).where(Job.state == State.QUEUED).order_by(Job.id)).all()
        for job_id in waiting:
            self._tell(job_id, why)

    def _start(self, job_id: str) -> None:
        attempt = self._launching.admit(job_id)
        if attempt is None:
            return
        try:
            self._launching.start(job_id, attempt)
        except Exception:  # the attempt is stored: the next round asks again
            log.exception("queue.start_failed", job=job_id, attempt=attempt)

    def _tell(self, job_id: str, why: Why) -> None:
        reason = why.model_dump()
        with self._store.read() as session:
            job = session.get(Job, job_id)
            if job is None or job.pending_reason == reason:
                return
        with self._store.write() as session:
            job = session.get(Job, job_id, with_for_update=True)
            if job is not None and job.state is State.QUEUED:
                job.pending_reason = reason
