"""The scheduler's decisions, stored: who starts, why the others wait, who gives room and who leaves."""

import json
from collections import defaultdict
from collections.abc import Mapping

from sqlalchemy import select, update

from ringleader.wire.states import State
from ringleader.wire.views import Why
from ringleader_api.clock import Clock
from ringleader_api.reconciling.launcher import AttemptLauncher
from ringleader_api.reconciling.starter import AttemptStarter
from ringleader_api.scheduling import Admit, Demand, EvictJob, Grant, Hold, Seen, plan
from ringleader_api.services.jobs.attempts import TRUE_STATES
from ringleader_api.services.jobs.claims import Register, allowed, snapshot_of
from ringleader_api.store import Transactions, move, record
from ringleader_api.store.tables import Job

TOLD_AT_ONCE = 200


class JobQueue:
    """Carries out one pass of the scheduler. Used by the reconciler only."""

    def __init__(
        self, store: Transactions, launching: AttemptLauncher, starting: AttemptStarter, now: Clock
    ) -> None:
        self._store = store
        self._launching = launching
        self._starting = starting
        self._now = now
        self._register = Register()

    def admit(self, seen: Seen) -> Demand:
        """Start the jobs that fit, and store why the others wait; returns the demand on the cluster."""
        with self._store.read() as session:
            jobs = self._register.jobs(session)
            snapshot = snapshot_of(session, jobs, seen, self._now())
        attempts = {job.id: job.attempt for job, _ in jobs}
        told = {job.id: job.pending_reason for job, _ in jobs}
        # No transaction is open over the pass, which takes half a second over 50,000 jobs.
        decisions, demand = plan(snapshot)
        waiting: dict[str, Why] = {}
        for decision in decisions:
            match decision:
                case Admit():
                    self._start(decision)
                case Hold(job_id=job_id, why=why):
                    # Only what has changed is written: most reasons of a long queue stay as they are.
                    if told[job_id] != why.model_dump():
                        waiting[job_id] = why
                case Grant(job_id=job_id, workers=workers):
                    self._grant(job_id, attempts[job_id], workers)
                case EvictJob(job_id=job_id, why=why):
                    self._evict(job_id, attempts[job_id], why)
        self._tell(waiting)
        return demand

    def hold_all(self, trouble: str) -> None:
        """Store, for all queued jobs, that the cluster is out of reach: none starts."""
        why = Why(
            code="cluster_unreachable",
            message=f"the Ray cluster does not answer ({trouble})",
            hint="Running jobs are left alone; this one starts once the cluster is back.",
        )
        query = select(Job.id, Job.pending_reason).where(Job.state == State.QUEUED).order_by(Job.id)
        with self._store.read() as session:
            waiting = [job_id for job_id, told in session.execute(query) if told != why.model_dump()]
        self._tell(dict.fromkeys(waiting, why))

    def _grant(self, job_id: str, attempt: int, workers: int) -> None:
        """Store the number of workers granted to a job at work; the next round tells its supervisor."""
        with self._store.write() as session:
            job = session.get(Job, job_id, with_for_update=True)
            # It was decided from a snapshot: the job may have ended, or begun another attempt, since.
            if job is None or job.attempt != attempt or job.state not in TRUE_STATES:
                return
            before = allowed(job)
            # None rather than the maximum itself: a maximum that is raised later then counts at once.
            job.granted = workers if workers < job.spec["workers"]["max"] else None
            job.granted_at = self._now()
            if allowed(job) != before:
                data = {"who": "scheduler", "from": before, "workers": allowed(job)}
                record(session, job, "workers.granted", self._now(), data)

    def _evict(self, job_id: str, attempt: int, why: Why) -> None:
        """Stop the job as for a pause. It is queued again when everything is released."""
        with self._store.write() as session:
            job = session.get(Job, job_id, with_for_update=True)
            if job is None or job.attempt != attempt or job.state is not State.RUNNING:
                return
            job.preempted = True
            # As for a pause, so that the supervisor saves first.
            move(session, job, State.STOPPING, at=self._now(), who="scheduler", why=why, target=State.PAUSED)

    def _start(self, decided: Admit) -> None:
        job_id = decided.job_id
        attempt = self._launching.admit(job_id, decided.workers, overtakes=decided.overtakes)
        if attempt is None:
            return
        self._starting.start(
            job_id, attempt
        )  # the attempt is stored: where it fails the next round sees to it

    def _tell(self, reasons: Mapping[str, Why]) -> None:
        """Store why jobs wait, many in a transaction. A row that is being changed by somebody is written in the next
        round."""
        waiting: dict[str, list[str]] = defaultdict(list)
        for job_id, why in reasons.items():
            # By reason: one statement writes it for all jobs that share it.
            waiting[why.model_dump_json()].append(job_id)
        for told, ids in waiting.items():
            for first in range(0, len(ids), TOLD_AT_ONCE):
                some = select(Job.id).where(Job.id.in_(ids[first : first + TOLD_AT_ONCE]))
                free = some.where(Job.state == State.QUEUED).with_for_update(skip_locked=True)
                with self._store.write() as session:
                    session.execute(
                        update(Job).where(Job.id.in_(free)).values(pending_reason=json.loads(told)),
                        # This session has loaded none of these rows.
                        execution_options={"synchronize_session": False},
                    )
