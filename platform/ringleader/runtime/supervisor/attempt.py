"""One attempt from its first worker to its outcome: a queue of events; one thread decides, writes down and acts."""

import pickle
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from time import monotonic
from typing import Any

from ringleader.elastic import AttemptRules, Meeting, Membership, begin, handle
from ringleader.elastic import events as ev
from ringleader.elastic import instructions as do
from ringleader.elastic.state import PAUSE, Phase
from ringleader.runtime.messages import AttemptLaunch, Heartbeat
from ringleader.runtime.records.record_log import RecordLog
from ringleader.runtime.supervisor.attempt_status import status_of
from ringleader.runtime.supervisor.attempt_times import Times, in_finished, of_finished
from ringleader.runtime.supervisor.event_queue import EventQueue
from ringleader.runtime.supervisor.executor import InstructionExecutor
from ringleader.runtime.supervisor.fault_injection import FaultOutcome, strike
from ringleader.runtime.supervisor.heartbeats import Heartbeats, WorkerPace
from ringleader.runtime.supervisor.workers.worker_group import WorkerGroup
from ringleader.runtime.supervisor.workers.worker_handle import parked
from ringleader.wire.ingest import Status
from ringleader.wire.views import Spent

Clock = Callable[[], float]
TICK_S = 0.1
MEMBERSHIP, TIMES = "membership", "times"
# Below `cluster.CALL_S`, so that the control plane hears of the timeout and not of silence.
TOLD_S = 5.0


@dataclass(frozen=True, slots=True)
class AttemptParts:
    """The parts that an attempt has once it runs."""

    workers: WorkerGroup
    records: RecordLog
    executor: InstructionExecutor


class Attempt:
    """The owner of the membership state. `post` takes events from any thread, `run` decides on one.

    Args:
        meeting: the meeting point as it is now, whoever the members are.
    """

    def __init__(
        self, launch: AttemptLaunch, meeting: Callable[[], Meeting], clock: Clock = monotonic
    ) -> None:
        self._launch, self._meeting, self._clock = launch, meeting, clock
        self._events = EventQueue()
        self._heartbeats = Heartbeats(launch.spec.policy.stall_timeout_s)
        self._times = Times()
        self._state: Membership | None = None
        self._parts: AttemptParts | None = None

    def post(self, event: ev.Event) -> None:
        self._events.put(event)

    def tell(self, event: ev.Event) -> None:
        """Post an event and wait until it is written down, if this attempt has begun and is not over. Raises
        TimeoutError: it may be, or may not."""
        written = self._events.put_marked(event)
        # Asked behind the put: an attempt that ends from here on still answers, one that had ended does not.
        if self._state is None or self._state.ended is not None:
            return
        if not written.wait(TOLD_S):
            raise TimeoutError(f"the supervisor of {self._launch.name} is busy: send the request again.")

    def beat(self, beat: Heartbeat) -> int | None:
        """Take a worker's heartbeat. Returns the step below which its records are here; -1 where the worker is not
        wanted, None where this supervisor does not know its workers yet."""
        parts, now = self._parts, self._clock()
        if parts is None:
            return None
        if not parts.workers.knows(beat.worker):
            return -1
        self._heartbeats.begin(beat)
        try:
            parts.workers.met(beat.worker, beat.identity)
            parts.records.beat(beat)
        finally:  # it lives, however long the disk takes for what it told, and whether or not it takes it
            self._heartbeats.end(beat, self._clock())
        self._heartbeats.note(beat, now)
        for event in _events_of(beat, now):
            self.post(event)
        return parts.records.recorded_step

    @property
    def generation(self) -> int:
        """The last generation that was formed; 0 before the first."""
        return self._state.generation if self._state is not None else 0

    @property
    def saving(self) -> int:
        """The generation of a pause, whose members write what they hold; 0 without one, or without a member left."""
        state = self._state
        return state.generation if state is not None and _pauses(state) else 0

    def run(
        self, worker_group: WorkerGroup, record_log: RecordLog, returned: Callable[[Membership], ev.Returned]
    ) -> tuple[do.End, dict[str, Any] | None]:
        """Run the attempt until it is over. Returns its end, and the result of the lowest rank that finished.

        Args:
            returned: looks for the workers of a membership that the supervisor before this one wrote down.
        """
        written = record_log.noted(MEMBERSHIP)
        if written is None:
            self._open(worker_group, record_log)
            self._begin()
        else:
            state: Membership = pickle.loads(written)  # noqa: S301 - the supervisor's own file
            back = returned(state)
            for found in back.found:
                # The detector is as new as this process: it has to know whom to miss.
                if found.process in ("here", "silent"):
                    self._heartbeats.expect(found.worker, back.now)
            # Only now: a heartbeat taken before `returned` would tell its worker that it is not wanted.
            self._state = state
            self._open(worker_group, record_log)
            if (times := record_log.noted(TIMES)) is not None:
                self._times = pickle.loads(times)  # noqa: S301 - the supervisor's own file
            self._take(back)
        return self._decide()

    def _open(self, worker_group: WorkerGroup, record_log: RecordLog) -> None:
        """Let heartbeats in: there is who takes them."""
        executor = InstructionExecutor(worker_group, record_log, self._heartbeats, self._meeting)
        self._parts = AttemptParts(worker_group, record_log, executor)

    @property
    def _running(self) -> AttemptParts:
        """The attempt's parts. Raises LookupError before it runs."""
        if self._parts is None:
            raise LookupError("the attempt does not run yet")
        return self._parts

    @property
    def _membership(self) -> Membership:
        """The state of the attempt. Raises LookupError before it runs."""
        if self._state is None:
            raise LookupError("the attempt does not run yet")
        return self._state

    def _begin(self) -> None:
        workers, now = self._launch.spec.workers, self._clock()
        rules = _rules(self._launch)
        self._state, out = begin(rules, workers_min=workers.min, workers_max=workers.max, now=now)
        self._write(None, out)
        self._act(out, now)

    def _decide(self) -> tuple[do.End, dict[str, Any] | None]:
        tick_at = 0.0
        while self._membership.ended is None:
            self._take(self._next(tick_at))
            if self._clock() >= tick_at:
                self._catch_up()
                tick_at = self._clock() + TICK_S
                self._tick()
        self._times = replace(self._times, ended=self._clock())
        while len(self._events):  # whoever waits for one that came too late
            self._next(0.0)
        return self._membership.ended, self._finished()

    def _catch_up(self) -> None:
        """Take the events that came while this process was busy, before it judges: who has parked is not late."""
        # Counted once: events that keep coming must not put the tick off for ever.
        for _ in range(len(self._events)):
            if self._membership.ended is None:
                self._take(self._next(0.0))

    def status(self) -> Status | None:
        """The attempt as it is now; None before it has begun."""
        state, parts = self._state, self._parts
        if state is None or parts is None:
            return None
        newest, spent = self._heartbeats.newest, self._spent(state)
        return status_of(state, parts.workers, newest, spent, parts.records)

    def paces(self) -> Mapping[str, WorkerPace]:
        """How long workers load and compute, as they have told."""
        return self._heartbeats.paces

    def _spent(self, state: Membership) -> Spent | None:
        return self._times.spent(self._clock(), state.recovery.sign if state.recovery is not None else None)

    def fault(self, fault: str, worker: str | None, for_s: float) -> FaultOutcome:
        """Inject a fault that this attempt has to survive. From any thread."""
        state, parts = self._state, self._parts
        if state is None or parts is None or state.plan is None:
            return FaultOutcome(False, "the attempt has no workers yet.")
        return strike(
            fault, worker, for_s, look=lambda: self._membership, worker_group=parts.workers, post=self.post
        )

    def _next(self, tick_at: float) -> ev.Event | None:
        return self._events.next(timeout_s=tick_at - self._clock())

    def _take(self, event: ev.Event | None) -> None:
        if event is None or self._state is None:
            return
        # From here on a process is due: one that never sends a heartbeat is missed by this.
        if isinstance(event, ev.Placed):
            self._heartbeats.expect(event.worker, event.now)
        before = self._state
        self._state, out = handle(before, event)
        self._write(before, out)
        self._act(out, event.now)
        if self._state.ended is None:
            self._running.workers.shrink(self._state.workers_max)

    def _write(self, before: Membership | None, out: tuple[do.Instruction, ...]) -> None:
        """Write the state to disk, together with its reports, before anything follows from it."""
        record_log, state = self._running.records, self._membership
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
        now = self._clock()
        self._judge(now)
        if self._running.records.uploader.stale:
            over = "the control plane no longer knows this attempt, or a newer one has replaced it."
            self._take(ev.Failed("", "platform_error", over, now))
        if self._running.records.uploader.silent_s > self._launch.api_gone_s:
            self._take(ev.Cancel(0.0, now))
        self._take(self._heartbeats.tick(now, self._running.records.saving_s))

    def _judge(self, now: float) -> None:
        """Take the events of workers that are frozen, stalled or slow."""
        for event in self._heartbeats.missed(now, self._running.workers.glance):
            self._take(event)
        for beat, at in self._heartbeats.news():
            if beat.spent is not None:
                self._hear(beat.worker, beat.spent, at)
        shares = _shares(self._state, leased=self._launch.spec.sync.leased)
        for slow in self._heartbeats.slow(now, shares, evict=self._launch.spec.policy.evict_slow):
            self._take(slow)

    def _hear(self, worker: str, own: Spent, at: float) -> None:
        """Take a worker's own time."""
        before = self._times
        state = self._state
        # One worker is followed for as long as it is a member; then another one is.
        follow = _trains(state, worker) and (before.followed == worker or not _trains(state, before.followed))
        self._times = before.hear(worker, own, at, follow=follow)
        if self._times.followed != before.followed:
            self._running.records.note(TIMES, pickle.dumps(self._times))

    def _act(self, out: tuple[do.Instruction, ...], now: float) -> None:
        self._running.executor.act(out, self._membership, now)

    def _report(self, report: do.Report) -> None:
        data = dict(report.data)
        worker = data.get("worker")
        if worker is not None:
            identity = self._running.workers.identity(worker)
            data["pid"] = identity.pid if identity else None
            if report.type == "worker.joined" and identity is not None:
                data["node"], data["address"] = identity.node, identity.host
            if report.type == "worker.lost":
                data["phase"] = self._heartbeats.lost(worker)
        if report.type == "recovered":
            recovered_s = self._times.recovered_s + data["total_s"]
            self._times = replace(self._times, recovered_s=recovered_s)
        self._running.records.event(report.type, report.generation, data)

    def _finished(self) -> dict[str, Any] | None:
        results, state = self._running.workers.results, self._membership
        first = _lowest_rank(results, state)
        if first is None:
            return None
        for worker, known in results.items():  # what their last heartbeats did not tell
            self._hear(worker, of_finished(known), self._times.ended or self._clock())
        spent = self._spent(state)
        return {**results[first], **in_finished(spent)} if spent is not None else results[first]


def _events_of(beat: Heartbeat, now: float) -> Iterator[ev.Event]:
    """The events that a heartbeat tells of."""
    if beat.park_message is not None:
        yield parked(beat.park_message, now)
    if beat.healed_ago_s is not None:
        yield ev.Healed(beat.worker, beat.generation, now - beat.healed_ago_s)
    if beat.generation:
        yield ev.Committed(beat.worker, beat.generation, beat.step, now - (beat.committed_ago_s or 0.0))


def _rules(launch: AttemptLaunch) -> AttemptRules:
    """The rules of the membership, from the job file."""
    spec = launch.spec
    return AttemptRules(
        attempt=launch.attempt,
        shards=spec.shards,
        servers=spec.sync.server_count,
        copies=spec.sync.servers_are_copies,
        backups=spec.sync.server_backups or 0,
        joiners_follow=spec.briefed,
        own_step_counts=spec.sync.circulates,
        restarts=spec.hosted,
        secures=spec.checkpoint.every_s is not None,
        max_failures=spec.max_failures,
    )


def _pauses(state: Membership) -> bool:
    """Whether its generation is that of a pause, with a member left."""
    if state.plan is None or state.plan.cause != PAUSE:
        return False
    return any(m.phase is not Phase.CONDEMNED for m in state.members)


def _lowest_rank(results: Collection[str], state: Membership) -> str | None:
    """The worker of the lowest rank among those with a result; else the first of them."""
    ranked = [m for m in state.plan.members if m in results] if state.plan else []
    return next(iter([*ranked, *results]), None)


def _trains(state: Membership | None, worker: str) -> bool:
    """Whether it is a worker of the present generation, or one before the first."""
    found = state.find(worker) if state is not None else None
    if state is None or found is None or found.role != "worker" or found.phase is Phase.CONDEMNED:
        return False
    return found.generation == state.generation


def _shares(state: Membership | None, *, leased: bool) -> dict[str, float]:
    """The share of a step that each worker computes; 1 for each where they lease items."""
    if state is None or state.plan is None:
        return {}
    plan = state.plan
    workers = {m: len(plan.shards_of(rank)) for rank, m in enumerate(plan.members[: plan.world])}
    return {w: 1.0 if leased else n / plan.shards for w, n in workers.items() if n}
