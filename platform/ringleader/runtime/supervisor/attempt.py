"""One attempt from its first worker to its outcome: a queue of events; one thread decides, writes down and acts."""

import pickle
import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from time import monotonic
from typing import Any

from ringleader.elastic import AttemptRules, Meeting, Membership, Plan, begin, handle
from ringleader.elastic import events as ev
from ringleader.elastic import instructions as do
from ringleader.elastic.state import PAUSE, Phase
from ringleader.runtime.messages import AttemptLaunch, Heartbeat
from ringleader.runtime.records.record_log import RecordLog
from ringleader.runtime.supervisor.attempt_times import Times, in_finished, of_finished
from ringleader.runtime.supervisor.failure_detector import FailureDetector
from ringleader.runtime.supervisor.fault_injection import FaultOutcome, strike
from ringleader.runtime.supervisor.stragglers import StragglerDetector
from ringleader.runtime.supervisor.worker_group import WorkerGroup
from ringleader.runtime.supervisor.worker_handle import parked
from ringleader.wire.ingest import Status
from ringleader.wire.states import State
from ringleader.wire.views import Progress, Spent, WorkerView

TICK_S = 0.1
MEMBERSHIP, TIMES = "membership", "times"
# Below `cluster.CALL_S`, so that the control plane hears of the timeout and not of silence.
TOLD_S = 5.0
CALM_S = 1.0
"""The head start of a recovery before a replacement, whose process takes a core for as long as its imports last."""


def server_count(launch: AttemptLaunch) -> int:
    return launch.spec.sync.server_count


class Attempt:
    """The owner of the membership state. `post` takes events from any thread, `run` decides on one.

    Args:
        meeting: the meeting point as it is now, whoever the members are.
    """

    def __init__(self, launch: AttemptLaunch, meeting: Callable[[], Meeting]) -> None:
        self._launch = launch
        self._meeting = meeting
        self._events: queue.SimpleQueue[ev.Event | threading.Event] = queue.SimpleQueue()
        self._failure_detector = FailureDetector(launch.spec.policy.stall_timeout_s)
        self._pace = StragglerDetector()
        self._phases: dict[str, str] = {}
        self._beats: queue.SimpleQueue[tuple[Heartbeat, float]] = queue.SimpleQueue()
        self._newest: Heartbeat | None = None
        self._times = Times()
        # A list: a worker whose call timed out sends the heartbeat again while the first is still taken.
        self._taking: list[str] = []
        self._state: Membership | None = None
        self._worker_group: WorkerGroup | None = None
        self._record_log: RecordLog | None = None
        self._held: dict[str, float] = {}

    def post(self, event: ev.Event) -> None:
        self._events.put(event)

    def tell(self, event: ev.Event) -> None:
        """Post an event and wait until it is written down, if this attempt has begun and is not over. Raises
        TimeoutError: it may be, or may not."""
        written = threading.Event()
        # In the order of the queue: when the second is taken, the first has been written down.
        self._events.put(event)
        self._events.put(written)
        # Asked behind the puts: an attempt that ends from here on still answers, one that had ended does not.
        if self._state is None or self._state.ended is not None:
            return
        if not written.wait(TOLD_S):
            raise TimeoutError(f"the supervisor of {self._launch.name} is busy: send the request again.")

    def beat(self, beat: Heartbeat) -> int | None:
        """Take a worker's heartbeat. Returns the step below which its records are here; -1 where the worker is not
        wanted, None where this supervisor does not know its workers yet."""
        worker_group, record_log, now = self._worker_group, self._record_log, monotonic()
        if worker_group is None or record_log is None:
            return None
        if not worker_group.knows(beat.worker):
            return -1
        # Until it is answered the worker sends no other: `_judge` counts it as alive.
        self._taking.append(beat.worker)
        try:
            worker_group.met(beat.worker, beat.identity)
            record_log.beat(beat)
        finally:  # it lives, however long the disk takes for what it told, and whether or not it takes it
            self._failure_detector.beat(
                beat.worker,
                generation=beat.generation,
                moves=beat.moves,
                phase=beat.phase,
                step=beat.step,
                now=monotonic(),
            )
            self._taking.remove(beat.worker)
        self._phases[beat.worker] = beat.phase
        # Judged on the thread that decides: the detector of stragglers has no lock.
        self._beats.put((beat, now))
        if self._newest is None or (beat.generation, beat.step) >= (
            self._newest.generation,
            self._newest.step,
        ):
            self._newest = beat
        if beat.park_message is not None:
            self.post(parked(beat.park_message, now))
        if beat.healed_ago_s is not None:
            self.post(ev.Healed(beat.worker, beat.generation, now - beat.healed_ago_s))
        if beat.generation:
            since = beat.committed_ago_s or 0.0
            self.post(ev.Committed(beat.worker, beat.generation, beat.step, now - since))
        return record_log.recorded_step

    @property
    def generation(self) -> int:
        """The last generation that was formed; 0 before the first."""
        return self._state.generation if self._state is not None else 0

    @property
    def saving(self) -> int:
        """The generation of a pause, whose members write what they hold; 0 without one, or without a member left."""
        state = self._state
        if state is None or state.plan is None or state.plan.cause != PAUSE:
            return 0
        return state.generation if any(m.phase is not Phase.CONDEMNED for m in state.members) else 0

    def run(
        self, worker_group: WorkerGroup, record_log: RecordLog, returned: Callable[[Membership], ev.Returned]
    ) -> tuple[do.End, dict[str, Any] | None]:
        """Run the attempt until it is over. Returns its end, and the result of the lowest rank that finished.

        Args:
            returned: looks for the workers of a membership that the supervisor before this one wrote down.
        """
        written = record_log.noted(MEMBERSHIP)
        if written is None:
            self._worker_group, self._record_log = worker_group, record_log
            self._begin()
        else:
            state: Membership = pickle.loads(written)  # noqa: S301 - the supervisor's own file
            back = returned(state)
            for found in back.found:
                # The detector is as new as this process: it has to know whom to miss.
                if found.process in ("here", "silent"):
                    self._failure_detector.expect(found.worker, back.now)
            # Only now: a heartbeat taken before `returned` would tell its worker that it is not wanted.
            self._state, self._worker_group, self._record_log = state, worker_group, record_log
            if (times := record_log.noted(TIMES)) is not None:
                self._times = pickle.loads(times)  # noqa: S301 - the supervisor's own file
            self._take(back)
        return self._decide()

    @property
    def _workers(self) -> WorkerGroup:
        """The attempt's workers. Raises LookupError before it runs."""
        if self._worker_group is None:
            raise LookupError("the attempt does not run yet")
        return self._worker_group

    @property
    def _records(self) -> RecordLog:
        """The attempt's records. Raises LookupError before it runs."""
        if self._record_log is None:
            raise LookupError("the attempt does not run yet")
        return self._record_log

    @property
    def _membership(self) -> Membership:
        """The state of the attempt. Raises LookupError before it runs."""
        if self._state is None:
            raise LookupError("the attempt does not run yet")
        return self._state

    def _begin(self) -> None:
        workers, launch, now = self._launch.spec.workers, self._launch, monotonic()
        rules = AttemptRules(
            attempt=launch.attempt,
            shards=launch.spec.shards,
            servers=server_count(launch),
            copies=launch.spec.sync.servers_are_copies,
            backups=launch.spec.sync.server_backups or 0,
            joiners_follow=launch.spec.briefed,
            own_step_counts=launch.spec.sync.circulates,
            secures=launch.spec.checkpoint.every_s is not None,
            max_failures=launch.spec.max_failures,
        )
        self._state, out = begin(rules, workers_min=workers.min, workers_max=workers.max, now=now)
        self._write(None, out)
        self._act(out, now)

    def _decide(self) -> tuple[do.End, dict[str, Any] | None]:
        tick_at = 0.0
        while self._membership.ended is None:
            self._take(self._next(tick_at))
            if monotonic() >= tick_at:
                self._catch_up()
                tick_at = monotonic() + TICK_S
                self._tick()
        self._times = replace(self._times, ended=monotonic())
        while not self._events.empty():  # whoever waits for one that came too late
            self._next(0.0)
        return self._membership.ended, self._finished()

    def _catch_up(self) -> None:
        """Take the events that came while this process was busy, before it judges: who has parked is not late."""
        # Counted once: events that keep coming must not put the tick off for ever.
        for _ in range(self._events.qsize()):
            if self._membership.ended is None:
                self._take(self._next(0.0))

    def status(self) -> Status | None:
        """The attempt as it is now; None before it has begun."""
        state, worker_group, record_log = self._state, self._worker_group, self._record_log
        if state is None or worker_group is None or record_log is None:
            return None
        newest = self._newest
        return Status(
            state=State(state.status),
            generation=state.generation,
            world_size=_world(state),
            progress=Progress(
                step=max(state.committed, newest.step if newest else 0),
                total_steps=newest.total_steps if newest else None,
                epoch=newest.epoch if newest else 0,
            ),
            workers=_views(state, worker_group),
            failures_spent=state.spent,
            spent=self._spent(state),
            dropped=record_log.dropped,
        )

    def _spent(self, state: Membership) -> Spent | None:
        return self._times.spent(monotonic(), state.recovery.sign if state.recovery is not None else None)

    def fault(self, fault: str, worker: str | None, for_s: float) -> FaultOutcome:
        """Inject a fault that this attempt has to survive. From any thread."""
        state, worker_group = self._state, self._worker_group
        if state is None or worker_group is None or state.plan is None:
            return FaultOutcome(False, "the attempt has no workers yet.")
        return strike(
            fault, worker, for_s, look=lambda: self._state or state, worker_group=worker_group, post=self.post
        )

    def _next(self, tick_at: float) -> ev.Event | None:
        try:
            # A queue refuses a negative timeout.
            found = self._events.get(timeout=max(0.001, tick_at - monotonic()))
        except queue.Empty:
            return None
        if isinstance(found, threading.Event):  # all that came before it is written down
            found.set()
            return None
        return found

    def _take(self, event: ev.Event | None) -> None:
        if event is None or self._state is None:
            return
        # From here on a process is due: one that never sends a heartbeat is missed by this.
        if isinstance(event, ev.Placed):
            self._failure_detector.expect(event.worker, event.now)
        before = self._state
        self._state, out = handle(before, event)
        self._write(before, out)
        self._act(out, event.now)
        if self._state.ended is None:
            self._workers.shrink(self._state.workers_max)

    def _write(self, before: Membership | None, out: tuple[do.Instruction, ...]) -> None:
        """Write the state to disk, together with its reports, before anything follows from it."""
        record_log, state = self._records, self._membership
        told = [i for i in out if isinstance(i, do.Report)]
        # The newest committed step comes with every heartbeat: whoever comes back hears it from the workers.
        if not told and before is not None and replace(before, committed=state.committed) == state:
            return
        with record_log.together():
            for report in told:
                self._report(report)
            record_log.note(MEMBERSHIP, pickle.dumps(state))
            record_log.note(TIMES, pickle.dumps(self._times))
        with suppress(OSError):  # a full disk costs the way back, not the attempt
            record_log.write()

    def _tick(self) -> None:
        now = monotonic()
        self._judge(now)
        if self._records.uploader.stale:
            over = "the control plane no longer knows this attempt, or a newer one has replaced it."
            self._take(ev.Failed("", "platform_error", over, now))
        if self._records.uploader.silent_s > self._launch.api_gone_s:
            self._take(ev.Cancel(0.0, now))
        saving_s = self._failure_detector.usual_s + self._records.saving_s
        self._take(
            ev.Tick(now, self._failure_detector.patience_s(), self._failure_detector.unhurried(now), saving_s)
        )

    def _judge(self, now: float) -> None:
        """Take the events of workers that are frozen, stalled or slow."""
        for worker in set(self._taking):
            self._failure_detector.waits(worker, now)
        for worker in self._failure_detector.silent(now):
            glance = self._workers.glance(worker)
            if glance is not None:
                self._failure_detector.glanced(worker, glance, now)
        # Before the verdicts, which forget whom they evict: a stall is reported first.
        for stall in self._failure_detector.stalls(now):
            self._take(ev.Stalled(stall.worker, stall.phase, round(stall.since_s, 3), now))
        for verdict in self._failure_detector.verdicts(now):
            self._take(ev.Evict(verdict.worker, verdict.cause, now, verdict.since))
        while not self._beats.empty():
            beat, at = self._beats.get()
            if beat.spent is not None:
                self._hear(beat.worker, beat.spent, at)
            self._pace.take(
                beat.worker, generation=beat.generation, worked_s=beat.worked_s, worked=beat.worked, now=at
            )
        evict = self._launch.spec.policy.evict_slow
        for found in self._pace.look(now, self._shares()):
            step_s, others_s = round(found.step_s, 6), round(found.others_s, 6)
            self._take(ev.Slow(found.worker, step_s, others_s, evict, now))

    def _hear(self, worker: str, own: Spent, at: float) -> None:
        """Take a worker's own time. One worker is followed for as long as it is a member; then another one is."""
        before = self._times
        follow = self._trains(worker) and (before.followed == worker or not self._trains(before.followed))
        self._times = before.hear(worker, own, at, follow=follow)
        if self._times.followed != before.followed:
            self._records.note(TIMES, pickle.dumps(self._times))

    def _trains(self, worker: str) -> bool:
        """Whether it is a worker of the present generation, or one before the first."""
        state = self._state
        found = state.find(worker) if state is not None else None
        if state is None or found is None or found.role != "worker" or found.phase is Phase.CONDEMNED:
            return False
        return found.generation == state.generation

    def _shares(self) -> dict[str, float]:
        """The share of a step that each worker computes; 1 for each where they lease items."""
        state = self._state
        if state is None or state.plan is None:
            return {}
        plan, leased = state.plan, self._launch.spec.sync.leased
        workers = {m: len(plan.shards_of(rank)) for rank, m in enumerate(plan.members[: plan.world])}
        return {w: 1.0 if leased else n / plan.shards for w, n in workers.items() if n}

    def _act(self, out: tuple[do.Instruction, ...], now: float) -> None:
        worker_group, record_log = self._workers, self._records
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
                    self._failure_detector.forget(worker)
                    worker_group.dismiss(worker)
                case do.Kill(worker=worker):
                    self._failure_detector.forget(worker)
                    worker_group.kill(worker)
                case do.End(outcome="failed"):
                    record_log.say(f"The attempt failed ({instruction.reason}): {instruction.message}")
        self._start(now)

    def _start(self, now: float) -> None:
        """Start the workers held back, unless the others are about to go on without them."""
        worker_group, state = self._workers, self._membership
        if state.ended is not None:
            return
        recovers = state.recovery is not None and len(state.pool) >= state.workers_min
        for worker, since in list(self._held.items()):
            if not recovers or now - since >= CALM_S:
                del self._held[worker]
                # It may have been given up while it was held back.
                if worker_group.knows(worker):
                    worker_group.start(worker)

    def _completed(self, plan: Plan) -> Plan:
        # Only on delivery: since the decision more records may have come, and another store.
        return replace(plan, recorded_step=self._records.recorded_step, meeting=self._where(*plan.members))

    def _where(self, *members: str) -> Meeting:
        """The meeting point of these members; `near` where all of them are on one node."""
        nodes = self._workers.nodes()
        # A member whose node is not known yet may be anywhere.
        near = None not in {nodes.get(member) for member in members} and len({nodes[m] for m in members}) == 1
        return replace(self._meeting(), near=near)

    def _report(self, report: do.Report) -> None:
        data = dict(report.data)
        worker = data.get("worker")
        if worker is not None:
            identity = self._workers.identity(worker)
            data["pid"] = identity.pid if identity else None
            if report.type == "worker.lost":
                data["phase"] = self._phases.pop(worker, None)
                self._failure_detector.forget(worker)
        if report.type == "recovered":
            recovered_s = self._times.recovered_s + data["total_s"]
            self._times = replace(self._times, recovered_s=recovered_s)
        self._records.event(report.type, report.generation, data)

    def _finished(self) -> dict[str, Any] | None:
        results, state = self._workers.results, self._membership
        ranked = [m for m in state.plan.members if m in results] if state.plan else []
        first = next(iter([*ranked, *results]), None)
        if first is None:
            return None
        for worker, known in results.items():  # what their last heartbeats did not tell
            self._hear(worker, of_finished(known), self._times.ended or monotonic())
        spent = self._spent(state)
        return {**results[first], **in_finished(spent)} if spent is not None else results[first]


def _world(state: Membership) -> int:
    if state.plan is None:
        return 0
    return len([m for m in state.members if m.role == "worker" and m.phase is not Phase.CONDEMNED])


def _views(state: Membership, worker_group: WorkerGroup) -> list[WorkerView]:
    views = []
    for worker in state.workers:
        identity = worker_group.identity(worker.id)
        member = state.plan is not None and worker in state.members
        rank = state.plan.rank_of(worker.id) if member and state.plan else None
        shards = state.plan.shards_of(rank) if state.plan and rank is not None else range(0)
        views.append(
            WorkerView(
                id=worker.id,
                role=worker.role,
                rank=rank,
                pid=identity.pid if identity else 0,
                node=identity.node if identity else "",
                state=worker.phase,
                generation=worker.generation,
                shards=(shards.start, shards.stop),
            )
        )
    return views
