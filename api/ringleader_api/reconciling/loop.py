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

from ringleader.wire.states import State
from ringleader_api.backend import Backend
from ringleader_api.clock import Clock
from ringleader_api.log import Log
from ringleader_api.reconciling.actions import JobActions
from ringleader_api.reconciling.autoscaling import Autoscaling
from ringleader_api.reconciling.facts import Alive, admitted_jobs, mark_of, orphans
from ringleader_api.reconciling.launcher import AttemptLauncher
from ringleader_api.reconciling.liveness import SupervisorLiveness
from ringleader_api.reconciling.queue import JobQueue
from ringleader_api.reconciling.retention import Retention
from ringleader_api.reconciling.round_clock import Lasting, RoundClock, Who
from ringleader_api.reconciling.sampling import ClusterSampling
from ringleader_api.reconciling.spool_recovery import SpoolRecovery
from ringleader_api.reconciling.starter import AttemptStarter
from ringleader_api.reconciling.sweeping import Sweeping
from ringleader_api.scheduling import Demand, Facts, Limits, Seen, Silence, lifecycle, next_act
from ringleader_api.store import RoleLease, RoleLeaseLost, Transactions, log_failure

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
        sweeping: Sweeping,
        lease: RoleLease,
        limits: Limits,
        sampling: ClusterSampling,
        cluster_seen: Callable[[bool], None],
        took: Callable[[float], None] = lambda seconds: None,
    ) -> None:
        self._store = store
        self._backend = backend
        self._starting = AttemptStarter(store, launching)
        self._queue = JobQueue(store, launching, self._starting, now)
        self._growing = growing
        self._forgetting, self._sweeping, self._sampling = forgetting, sweeping, sampling
        self._now, self._lease, self._limits = now, lease, limits
        # Steps of the clock do not count: what lasts is measured in rounds.
        self._rounds = RoundClock(now)
        self._hearing = SupervisorLiveness(self._rounds, limits.silent_after_s)
        self._lasting, self._missing = Lasting(self._rounds), Lasting(self._rounds)
        self._actions = JobActions(
            store, backend, launching, self._starting, inheriting, now=now, ran_s=self._ran_s, wake=self.wake
        )
        self._cluster_seen = cluster_seen
        self._took = took
        self._slow: list[Who] = []
        self._looked_at: datetime | None = None
        self._wake, self._stop = threading.Event(), threading.Event()
        self.seen: Seen | None = None
        self.trouble = "the cluster has not been contacted yet"
        self.beat_at = time.monotonic()

    @property
    def asked(self) -> Demand | None:
        """The demand on the autoscaler; None where this control plane has sent none."""
        return self._growing.asked

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
        admitted = admitted_jobs(self._store)
        self._rounds.begin()
        present = {_who(facts) for facts in admitted}
        for known in (self._hearing, self._lasting, self._missing, self._starting):
            known.begin_round(present)
        silent: dict[Who, tuple[Facts, Silence]] = {}
        actions = {who: partial(self._release_orphan, *who) for who in orphans(self._store, alive)}
        actions |= {_who(one): partial(self._advance, one, alive, silent) for one in admitted}
        self._slow = [who for who in self._slow if who in actions]
        # Chosen now: an action that fails slowly in this round must not come a second time.
        behind_all = self._slow[:1]
        for who, action in actions.items():
            if who not in self._slow:
                self._guarded(who, action)
        # Before the queue: what a sweep submits or resumes starts in this round.
        self._sweeping.advance()
        if self.seen is not None:
            self._growing.ask(self._queue.admit(self.seen))
            self._sampling.sample(self.seen)
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
        """Forget all durations."""
        # Nothing has lasted while nobody looked.
        for known in (self._rounds, self._hearing, self._lasting, self._missing):
            known.forget()

    def _release_orphan(self, job_id: str, attempt: int) -> None:
        log.info("supervisor.orphan", job=job_id, attempt=attempt)
        self._backend.release(job_id, attempt)

    def _guarded(self, who: Who, action: Callable[[], None]) -> None:
        """Do one job's action. One that fails slowly is tried again behind all of them, one such action in a round."""
        began, slow = self._now(), False
        try:
            action()
        except RoleLeaseLost:
            raise
        # Of whatever kind: its failure must not keep the round from the others.
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
        lasting_s = self._ran_s(facts)
        if facts.state in (State.RUNNING, State.RECOVERING) and lasting_s - facts.ran_s >= UNTOLD_S:
            self._actions.count(facts, lasting_s)
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
            self._actions.carry_out(act, facts)
            if isinstance(act, lifecycle.FinishJob):
                self._missing.end(me)

    def _ran_s(self, facts: Facts) -> float:
        return self._lasting.of(_who(facts), mark_of(facts))

    def _ask(self, silent: Mapping[Who, tuple[Facts, Silence]]) -> None:
        """Ask the silent supervisors whether they answer the cluster, in turn and all at once."""
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
            # Ending one takes seconds: one in a turn, the others stay due.
            if isinstance(act, lifecycle.LoseAttempt) and ended:
                continue
            ended = ended or isinstance(act, lifecycle.LoseAttempt)
            # Not before the `continue`: one that is to be ended has to stay due for the next turn.
            self._hearing.asked(who)
            if act is not None:
                self._guarded(who, partial(self._actions.carry_out, act, facts))
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

    def _placed(self, who: tuple[str, int]) -> bool:
        # While nobody knows of any places, no attempt may be recalled for having none.
        places = self.seen.places if self.seen is not None else None
        return places is None or bool(places.get(who))


def _who(facts: Facts) -> Who:
    return facts.job_id, facts.attempt
