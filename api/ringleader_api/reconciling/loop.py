"""The level-triggered loop: compares rows with the living supervisors, and does the one next thing for each job.

Every action is stored before it is done where doing it twice would matter (an attempt's number before its supervisor),
and after it where losing the note only means doing it again (confirmations). So the process may die between any two
statements: the next one reads the rows, asks the cluster what lives, and goes on.
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial

from sqlalchemy import select
from sqlalchemy.orm import Session

from ringleader.wire.states import State
from ringleader.wire.views import Why
from ringleader_api.backend import Backend
from ringleader_api.clock import Clock
from ringleader_api.log import Log
from ringleader_api.reconciling.autoscaling import Autoscaling
from ringleader_api.reconciling.facts import facts_of, mark_of
from ringleader_api.reconciling.launcher import AttemptLauncher
from ringleader_api.reconciling.liveness import SupervisorLiveness
from ringleader_api.reconciling.queue import JobQueue
from ringleader_api.reconciling.retention import Retention
from ringleader_api.reconciling.round_clock import Lasting, RoundClock, Who
from ringleader_api.reconciling.spool_recovery import SpoolRecovery
from ringleader_api.reconciling.starter import AttemptStarter, with_cause
from ringleader_api.scheduling import Facts, Limits, Seen, Silence, lifecycle, next_act
from ringleader_api.services.jobs.attempts import attempt_failed, attempt_uprooted, paused_behind
from ringleader_api.services.jobs.claims import ADMITTED
from ringleader_api.store import RoleLease, RoleLeaseLost, Transactions, log_failure, move, record
from ringleader_api.store.spent import at_least
from ringleader_api.store.tables import Job

log = Log("ringleader.reconciler")
CAPACITY_AGE_S = 1.0
REST, LONGEST_REST_S = 9.0, 1.0
"""The rest after a round, as a multiple of the time it computed, and at most in seconds, whoever wakes it: over a long
queue it would keep the interpreter from the requests. Time spent waiting for the cluster does not count, since it kept
nobody from anything."""
SLOW_S = 2.0
"""The seconds from which a failed action counts as slow: it holds up all others, and may cost the role."""
UNTOLD_S = 5.0
"""The lag, in seconds, of a supervisor's own running time behind the one counted here, from which it is taken to tell
none."""
Alive = set[tuple[str, int]]


class Reconciler:
    """The only caller of the backend. `tick` does one round; `run` ticks until stopped.

    Args:
        lease: the role; without it a round only looks.
    """

    def __init__(
        self,
        store: Transactions,
        backend: Backend,
        launching: AttemptLauncher,
        growing: Autoscaling,
        now: Clock,
        *,
        inheriting: SpoolRecovery,
        forgetting: Retention,
        lease: RoleLease,
        limits: Limits,
        cluster_seen: Callable[[bool], None],
        took: Callable[[float], None] = lambda seconds: None,
    ) -> None:
        self._store = store
        self._backend = backend
        self._launching = launching
        self._starting = AttemptStarter(store, launching)
        self._queue = JobQueue(store, launching, self._starting, now)
        self._growing = growing
        self._inheriting = inheriting
        self._forgetting = forgetting
        self._now = now
        self._lease = lease
        self._limits = limits
        # Steps of the clock do not count: what lasts is measured in rounds.
        self._rounds = RoundClock(now)
        self._hearing = SupervisorLiveness(self._rounds, limits.silent_after_s)
        self._lasting, self._missing = Lasting(self._rounds), Lasting(self._rounds)
        self._cluster_seen = cluster_seen
        self._took = took
        self._slow: list[Who] = []
        self._looked_at: datetime | None = None
        self._wake = threading.Event()
        self._stop = threading.Event()
        self.seen: Seen | None = None
        self.trouble = "the cluster has not been contacted yet"
        self.beat_at = time.monotonic()

    def run(self, every_s: float) -> None:
        """Tick until `stop`. An error of one round is logged; the next round starts from the rows again.

        `beat_at` is when a round last came to its end: one that fails each time is as good as none.
        """
        while not self._stop.is_set():
            # Before the round, not after it: what wakes the loop while it runs must lead to another one.
            self._wake.clear()
            # CPU time of this thread: only that competes with requests for the interpreter.
            began, computed_s = time.monotonic(), -time.thread_time()
            try:
                self.tick()
                self.beat_at = time.monotonic()
            except RoleLeaseLost as lost:
                log.warning("reconciler.relieved", why=lost.message)
            except Exception as error:  # the loop must outlive any round
                log_failure(log, "reconciler.round_failed", error)
            computed_s += time.thread_time()
            self._took(time.monotonic() - began)
            rest_s = min(LONGEST_REST_S, REST * computed_s)
            if not self._stop.wait(rest_s):
                self._wake.wait(max(0.0, every_s - rest_s))

    def wake(self) -> None:
        """Start the next round now."""
        self._wake.set()

    def stop(self) -> None:
        self._stop.set()
        self._wake.set()

    def tick(self) -> None:
        """One round. Raises RoleLeaseLost where another control plane took over in the middle of it."""
        # Before the lease is asked for: a process that stands by has to know the cluster for its answers to requests.
        alive = self._look()
        if not self._lease.hold():
            self._growing.forget()
            self._forget()  # what we saw before we get the role says nothing then
            return
        self._forgetting.expire()
        if alive is None:
            self._queue.hold_all(self.trouble)
            return
        self._forgetting.purge({job_id for job_id, _ in alive})
        admitted = self._admitted()
        self._rounds.begin()
        present = {_who(facts) for facts in admitted}
        for known in (self._hearing, self._lasting, self._missing, self._starting):
            known.begin_round(present)
        silent: dict[Who, tuple[Facts, Silence]] = {}
        actions = {who: partial(self._release_orphan, *who) for who in self._orphans(alive)}
        actions |= {_who(one): partial(self._advance, one, alive, silent) for one in admitted}
        self._slow = [who for who in self._slow if who in actions]
        # Chosen now: a action that fails slowly in this round must not come a second time.
        behind_all = self._slow[:1]
        for who, action in actions.items():
            if who not in self._slow:
                self._guarded(who, action)
        if self.seen is not None:
            self._growing.ask(self._queue.admit(self.seen))
        # After the queue: this may take longer than the role lasts, and then has kept nobody waiting.
        for who in behind_all:
            self._guarded(who, actions[who])
        self._ask(silent)

    def _look(self) -> Alive | None:
        """The supervisors that live and, now and then, the nodes; None while the cluster is out of reach."""
        try:
            alive = self._backend.supervisors()
            now = self._now()
            age_s = 0.0 if self._growing.awaits_nodes else CAPACITY_AGE_S
            # `abs`: after the clock was set back the age is negative, and the nodes would not be looked at for long.
            if self._looked_at is None or abs((now - self._looked_at).total_seconds()) > age_s:
                self.seen = self._growing.watch(self._backend.capacity())
                self._looked_at = now
            if self.seen is not None:
                # Of all supervisors, also those of jobs that are queued again: what such a one holds is not free yet.
                self.seen = replace(self.seen, busy=frozenset(job_id for job_id, _ in alive))
        except Exception as error:  # whatever its client raises: nothing is known, so nothing is done
            self._lost_cluster(f"{type(error).__name__}: {error}")
            return None
        if self.trouble:
            log.info("cluster.reached", supervisors=len(alive))
        self.trouble = ""
        self._cluster_seen(True)
        return alive

    def _lost_cluster(self, trouble: str) -> None:
        if trouble != self.trouble:
            log.warning("cluster.unreachable", error=trouble)
        self.trouble = trouble
        self.seen = None
        self._growing.forget()
        self._looked_at = None
        self._forget()
        self._cluster_seen(False)

    def _forget(self) -> None:
        """Forget all durations: nothing has lasted while nobody looked."""
        for known in (self._rounds, self._hearing, self._lasting, self._missing):
            known.forget()

    def _orphans(self, alive: Alive) -> list[Who]:
        """The supervisors of attempts that are over. Those of jobs that this database does not know are not ours to
        end."""
        with self._store.read() as session:
            query = select(Job.id, Job.attempt, Job.state).where(Job.id.in_({job_id for job_id, _ in alive}))
            known = {job_id: (attempt, state) for job_id, attempt, state in session.execute(query)}
        found = []
        for job_id, attempt in sorted(alive):
            # An unknown job counts as running its present attempt, which leaves its supervisor alone.
            current, state = known.get(job_id, (attempt, State.RUNNING))
            if attempt != current or state not in ADMITTED:
                found.append((job_id, attempt))
        return found

    def _release_orphan(self, job_id: str, attempt: int) -> None:
        log.info("supervisor.orphan", job=job_id, attempt=attempt)
        self._backend.release(job_id, attempt)

    def _admitted(self) -> list[Facts]:
        query = select(Job).where(Job.state.in_(ADMITTED)).order_by(Job.id)
        with self._store.read() as session:
            return [facts_of(job) for job in session.scalars(query)]

    def _guarded(self, who: Who, action: Callable[[], None]) -> None:
        """Do one job's action, so that its failure does not keep the round from the others. One that fails slowly is
        tried again behind all of them, one such action in a round: it may take longer than the role lasts."""
        began, slow = self._now(), False
        try:
            action()
        except RoleLeaseLost:
            raise
        except Exception as error:
            log_failure(log, "reconciler.job_failed", error, job=who[0], attempt=who[1])
            slow = (self._now() - began).total_seconds() > SLOW_S
        self._slow = [*(other for other in self._slow if other != who), *([who] if slow else [])]

    def _advance(self, facts: Facts, alive: Alive, silent: dict[Who, tuple[Facts, Silence]]) -> None:
        """Do the next thing for a job; one whose supervisor has to be asked about is added to `silent` instead."""
        me = _who(facts)
        missing_s = 0.0
        # One that never launched is not missing: nobody has seen it yet.
        if (facts.launched or facts.state is not State.STARTING) and me not in alive:
            missing_s = self._missing.of(me, ("missing", None))
        else:
            self._missing.end(me)
        silence = self._hearing.listen(me, facts.heard_at)
        lasting_s = self._lasting.of(me, mark_of(facts))
        self._count(facts, lasting_s)
        act = next_act(
            facts,
            alive=me in alive,
            placed=self._placed(me),
            missing_s=missing_s,
            lasting_s=lasting_s,
            silence=silence,
            limits=self._limits,
        )
        if isinstance(act, lifecycle.AskCluster):
            silent[me] = facts, silence
        elif act is not None:
            self._do(act, facts)

    def _count(self, facts: Facts, lasting_s: float) -> None:
        """Record the running time of an attempt whose supervisor does not report it: it counts, whatever ends or pauses
        it next."""
        if facts.state in (State.RUNNING, State.RECOVERING) and lasting_s - facts.ran_s >= UNTOLD_S:
            self._note(facts, partial(_ran_at_least, ran_s=lasting_s))

    def _ask(self, silent: Mapping[Who, tuple[Facts, Silence]]) -> None:
        """Ask the silent supervisors whether they answer the cluster, in turn and all at once: one after the other they
        would hold up the round for seconds each. Ending one takes seconds, too: one in a turn, the others stay due."""
        if not (whose := self._hearing.turn(silent)):
            return
        began, ended = self._now(), False
        for who, answers in self._answers(whose).items():
            facts, silence = silent[who]
            act = lifecycle.judge(
                facts,
                answers=answers,
                silent_s=silence.for_s,
                unanswered_s=self._hearing.unanswered_s(who, answers=answers),
                limits=self._limits,
            )
            if isinstance(act, lifecycle.LoseAttempt) and ended:
                continue
            ended = ended or isinstance(act, lifecycle.LoseAttempt)
            # Not before the `continue`: one that is to be ended has to stay due for the next turn.
            self._hearing.asked(who)
            if act is not None:
                self._guarded(who, partial(self._do, act, facts))
        self._hearing.pause((self._now() - began).total_seconds())

    def _answers(self, whose: Sequence[Who]) -> dict[Who, bool]:
        try:
            return self._backend.answers(whose)
        except RoleLeaseLost:
            raise
        except Exception:
            log.exception("reconciler.asking_failed", supervisors=len(whose))
            # No answer from the call is no answer of a supervisor: nobody's silence may grow by it.
            return {}

    def _do(self, act: lifecycle.Act, facts: Facts) -> None:
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
                self.wake()
            case lifecycle.FinishJob():
                if facts.launched:  # its supervisor is gone; what it held may not be
                    self._free(facts)
                self._note(facts, self._finish)
                self._missing.end(_who(facts))

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
        ran_s = 0.0 if facts.state is State.STARTING else self._lasting.of(_who(facts), mark_of(facts))

        def lost(session: Session, job: Job) -> None:
            _ran_at_least(session, job, ran_s=ran_s)  # it may have been silent for long
            end(session, job, with_cause(job, why), at=self._now(), who="reconciler")

        self._note(facts, lost)
        self.wake()

    def _free(self, facts: Facts) -> None:
        """Release everything of the attempt, and take in the records that it has not posted."""
        self._backend.release(facts.job_id, facts.attempt)
        self._inheriting.take(facts.job_id, facts.attempt)

    def _placed(self, who: tuple[str, int]) -> bool:
        # While nobody knows of any places, no attempt may be recalled for having none.
        places = self.seen.places if self.seen is not None else None
        return places is None or bool(places.get(who))

    def _recall(self, facts: Facts) -> None:
        why = Why(
            code="places_gone",
            message=f"attempt {facts.attempt} could not be placed: its room was lost with a node, or taken by others",
            hint="It starts again once there is room; this does not count against max_failures.",
        )
        log.warning("attempt.recalled", job=facts.job_id, attempt=facts.attempt)
        self._backend.release(facts.job_id, facts.attempt)
        self._move(facts, State.QUEUED, "scheduler", why)
        self.wake()

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


def _who(facts: Facts) -> Who:
    return facts.job_id, facts.attempt


def _ran_at_least(_: Session, job: Job, *, ran_s: float) -> None:
    job.spending = at_least(job.spending, ran_s)


def _ordered(_: Session, job: Job, *, pausing: bool) -> None:
    """Note that the supervisor knows of its end, unless a cancel replaced the pause while it was being told."""
    if pausing is (job.target is State.PAUSED):
        job.cancel_sent = True
