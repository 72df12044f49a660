"""The acts of a job's life, carried out: on the cluster, and in the job's row.

What is told to a supervisor is noted after the call: a crash between the two only tells it again.
"""

from collections.abc import Callable
from functools import partial

from sqlalchemy.orm import Session

from ringleader.wire.states import State
from ringleader.wire.views import Why
from ringleader_api.backend import Backend
from ringleader_api.clock import Clock
from ringleader_api.log import Log
from ringleader_api.reconciling.launcher import AttemptLauncher
from ringleader_api.reconciling.spool_recovery import SpoolRecovery
from ringleader_api.reconciling.starter import AttemptStarter, with_cause
from ringleader_api.scheduling import Facts, lifecycle
from ringleader_api.services.jobs.attempts import attempt_failed, attempt_uprooted, paused_behind
from ringleader_api.store import Transactions, move, record
from ringleader_api.store.spent import at_least
from ringleader_api.store.tables import Job

log = Log("ringleader.reconciler")


class JobActions:
    """Carries out what `lifecycle` has decided for a job. Used by the reconciler only.

    Args:
        ran_s: the seconds that an attempt has been in its state, counted in rounds.
        wake: starts the next round at once.
    """

    def __init__(
        self,
        store: Transactions,
        backend: Backend,
        launching: AttemptLauncher,
        starting: AttemptStarter,
        inheriting: SpoolRecovery,
        *,
        now: Clock,
        ran_s: Callable[[Facts], float],
        wake: Callable[[], None],
    ) -> None:
        self._store = store
        self._backend = backend
        self._launching = launching
        self._starting = starting
        self._inheriting = inheriting
        self._now = now
        self._ran_s = ran_s
        self._wake = wake

    def carry_out(self, act: lifecycle.Act, facts: Facts) -> None:
        """Do it, and note it in the row of the job, unless that has moved on since it was looked at."""
        job_id, attempt = facts.job_id, facts.attempt
        match act:
            case lifecycle.StartAttempt():
                # Asked for again by the same name: the cluster returns the one that lives, if the crash came after its
                # start.
                self._start_again(facts)
            case lifecycle.AdoptAttempt():
                self._launching.confirm(job_id, attempt, sized=None)
            case lifecycle.ResizeAttempt(workers_min=workers_min, workers_max=workers_max):
                # The call first, the note after it: a crash between the two only sends the same bounds again.
                self._backend.resize(job_id, attempt, workers_min, workers_max)
                self._launching.confirm(job_id, attempt, sized=(workers_min, workers_max))
            case lifecycle.CancelAttempt() | lifecycle.PauseAttempt():
                pausing = isinstance(act, lifecycle.PauseAttempt)
                (self._backend.pause if pausing else self._backend.cancel)(job_id, attempt, facts.grace_s)
                self._note(facts, partial(_ordered, pausing=pausing))
            case lifecycle.ReleaseAttempt():
                self._backend.release(job_id, attempt)
                # The next attempt may start once the job has moved on, so not before this one is gone from the list.
                if (job_id, attempt) not in self._backend.supervisors():
                    # While the attempt is still the job's: its records are refused once the job has moved on.
                    self._inheriting.take(job_id, attempt)
                    self._note(facts, self._finish)
            case lifecycle.LoseAttempt(why=why):
                self._lose(facts, why)
            case lifecycle.ReportTrouble(why=why):
                self._note(facts, lambda session, job: self._told(session, job, why))
            case lifecycle.RecallAttempt():
                self._recall(facts)
            case lifecycle.StopJob(why=why):
                self._move(facts, State.STOPPING, "reconciler", why, target=State.FAILED)
                self._wake()
            case lifecycle.FinishJob():
                if facts.launched:  # its supervisor is gone; what it held may not be
                    self._free(facts)
                self._note(facts, self._finish)

    def count(self, facts: Facts, ran_s: float) -> None:
        """Record the running time of an attempt whose supervisor does not report it: it counts, whatever ends or pauses
        it next."""
        self._note(facts, partial(_ran_at_least, ran_s=ran_s))

    def _note(self, facts: Facts, change: Callable[[Session, Job], None]) -> None:
        """Apply a change, unless the job has moved on since it was looked at."""
        with self._store.write() as session:
            job = session.get(Job, facts.job_id, with_for_update=True)
            if job is not None and (job.attempt, job.state) == (facts.attempt, facts.state):
                change(session, job)

    def _start_again(self, facts: Facts) -> None:
        """Ask again for the supervisor of a stored attempt, unless it had one that has died since."""
        if gone := self._starting.start(facts.job_id, facts.attempt):
            self._lose(facts, gone)

    def _told(self, session: Session, job: Job, why: Why | None) -> None:
        """Report that a running job's supervisor is not heard, with the reason; None: it is heard again."""
        log.warning("supervisor.silence", job=job.id, attempt=job.attempt, why=why.message if why else "over")
        job.pending_reason = why.model_dump() if why else None
        kind = "supervisor.silent" if why else "supervisor.heard"
        record(session, job, kind, self._now(), {"reason": why.model_dump()} if why else {})

    def _lose(self, facts: Facts, why: Why) -> None:
        """Free what the attempt still holds, then decide about the next one."""
        began = facts.launched or facts.heard_at is not None  # one that never had a supervisor has no node
        uprooted = began and self._backend.node_lost(facts.job_id, facts.attempt)
        log.warning(
            "attempt.lost", job=facts.job_id, attempt=facts.attempt, why=why.message, uprooted=uprooted
        )
        self._free(facts)
        end = attempt_uprooted if uprooted else attempt_failed
        ran_s = 0.0 if facts.state is State.STARTING else self._ran_s(facts)

        def lost(session: Session, job: Job) -> None:
            _ran_at_least(session, job, ran_s=ran_s)  # it may have been silent for long
            end(session, job, with_cause(job, why), at=self._now(), who="reconciler")

        self._note(facts, lost)
        self._wake()

    def _free(self, facts: Facts) -> None:
        """Release everything of the attempt, and take in the records that it has not posted."""
        self._backend.release(facts.job_id, facts.attempt)
        self._inheriting.take(facts.job_id, facts.attempt)

    def _recall(self, facts: Facts) -> None:
        why = Why(
            code="places_gone",
            message=f"attempt {facts.attempt} could not be placed: its room was lost with a node, or taken by others",
            hint="It starts again once there is room; this does not count against max_failures.",
        )
        log.warning("attempt.recalled", job=facts.job_id, attempt=facts.attempt)
        self._backend.release(facts.job_id, facts.attempt)
        self._move(facts, State.QUEUED, "scheduler", why)
        self._wake()

    def _move(self, facts: Facts, to: State, who: str, why: Why, target: State | None = None) -> None:
        self._note(facts, partial(move, to=to, at=self._now(), who=who, why=why, target=target))

    def _finish(self, session: Session, job: Job) -> None:
        why = Why(**job.reason) if job.reason else None
        if why is not None and job.target is State.PAUSED:
            why = paused_behind(session, job, why)
        move(session, job, job.target or State.FAILED, at=self._now(), who="reconciler", why=why)
        # An eviction is a pause that queues itself again, in one transaction: no reader finds the job paused.
        if job.preempted and job.state is State.PAUSED:
            move(session, job, State.QUEUED, at=self._now(), who="scheduler", why=why)
        job.preempted = False


def _ran_at_least(_: Session, job: Job, *, ran_s: float) -> None:
    job.spending = at_least(job.spending, ran_s)


def _ordered(_: Session, job: Job, *, pausing: bool) -> None:
    """Note that the supervisor knows of its end, unless a cancel replaced the pause while it was being told."""
    if pausing is (job.target is State.PAUSED):
        job.cancel_sent = True
