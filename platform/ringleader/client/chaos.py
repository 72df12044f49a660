"""Seeded faults into a running job: target, kind and time are drawn; the outcome is read from the job's events."""

import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from ringleader.client.job import Job
from ringleader.client.records import Worker
from ringleader.errors import ApiProblem, WaitTimeout
from ringleader.wire.faults import Fault
from ringleader.wire.states import State

WHOLE_S = 120.0
LOOK_S = 0.2
QUIET_S = 3.0
NOT_NOW = 409
MISSES = 10
"""Faults in a row without a member to hit, behind which no more are tried: the job has none, or refuses them all."""


@dataclass(frozen=True, slots=True)
class Act:
    """One fault; `done` unless there was no member to hit. `step` is the job's when the fault was requested."""

    time: datetime
    step: int
    fault: Fault
    target: str
    effect: str
    done: bool = True


@dataclass(frozen=True, slots=True)
class Toll:
    """The outcome of all faults since the first.

    Attributes:
        lost: the number of members that were lost; `attempts`: that of new attempts.
        recoveries: their number; `worst_s`: the longest in seconds, from its first sign to the next committed step.
        steps_lost: committed steps that were taken back, or trained again by a later attempt; 0 unless something is
            wrong.
    """

    state: State
    step: int
    acts: int
    lost: int
    attempts: int
    recoveries: int
    worst_s: float
    steps_lost: int


class Chaos:
    """Injects faults into `job` until so many were done or it has ended.

    Args:
        faults: the kinds to draw from.
        acts: how many are to happen; one that finds no member to hit is told, and counts as none.
        every_s: seconds between two acts in the middle; each pause is drawn between half and one and a half of it,
            and an act waits until the job has members to spare again.
        sleep: how to wait.
    """

    def __init__(
        self,
        job: Job,
        *,
        seed: int,
        faults: Sequence[Fault],
        acts: int,
        every_s: float = 5.0,
        for_s: float = 15.0,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._job = job.refresh()
        self._draw = random.Random(seed)  # noqa: S311 - a script, no secret
        self._faults = faults
        self._acts = acts
        self._every_s = every_s
        self._for_s = for_s
        self._sleep = sleep
        self._attempt = job.view.attempt
        self._seen = max((event.seq for event in job.events()), default=0)
        self._done = 0

    def acts(self) -> Iterator[Act]:
        """Each act as it is done, and each that finds no member to hit; `MISSES` of these in a row end them. Raises
        WaitTimeout when the job has no members to spare for two minutes."""
        missed = 0
        while self._done < self._acts and missed < MISSES:
            self._sleep(self._every_s * self._draw.uniform(0.5, 1.5))
            # Drawn before looking for members: the sequence of draws depends on the seed alone.
            fault, at = self._draw.choice(self._faults), self._draw.random()
            members = self._members()
            if not members:
                return
            act = self._act(fault, members, at)
            missed = 0 if act.done else missed + 1
            yield act

    def settle(self, deadline_s: float) -> None:
        """Wait for the recovery from the last act: until the job's events have told nothing new for a while."""
        until, seen, quiet = time.monotonic() + deadline_s, -1, 0
        while time.monotonic() < until and quiet * LOOK_S < min(QUIET_S, 2 * self._every_s):
            newest = max((event.seq for event in self._job.events(after=self._seen)), default=0)
            quiet = quiet + 1 if newest == seen else 0
            seen = newest
            self._sleep(LOOK_S)

    def toll(self) -> Toll:
        """The outcome so far."""
        view = self._job.refresh().view
        events = list(self._job.events(after=self._seen))
        recovered = [event.data for event in events if event.type == "recovered"]
        return Toll(
            state=view.state,
            step=view.progress.step,
            acts=self._done,
            lost=sum(event.type == "worker.lost" for event in events),
            attempts=view.attempt - self._attempt,
            recoveries=len(recovered),
            worst_s=max((float(data["total_s"]) for data in recovered), default=0.0),
            steps_lost=sum(
                int(event.data.get("steps_lost", 0)) for event in events
            ),  # also of a later attempt's begin
        )

    def _members(self) -> list[Worker]:
        """The plan's active members, once two workers can commit (one where the job has no more); none when it ends."""
        until = time.monotonic() + WHOLE_S
        while True:
            view = self._job.refresh().view
            if view.state.ended or view.state in (State.PAUSED, State.STOPPING):
                return []
            spare = min(2, int(view.spec.get("workers", {}).get("max", 1)))
            members = [w for w in self._job.workers() if w.rank is not None and w.state == "active"]
            if view.state is State.RUNNING and sum(w.role == "worker" for w in members) >= spare:
                return sorted(members, key=lambda worker: worker.rank or 0)
            if time.monotonic() > until:
                raise WaitTimeout(
                    f"job {self._job.id} has had fewer than {spare} active workers for {WHOLE_S:.0f} s.",
                    hint=f"It is {view.state}; see `ringleader describe {self._job.id}`.",
                )
            self._sleep(LOOK_S)

    def _act(self, fault: Fault, members: Sequence[Worker], at: float) -> Act:
        role = "server" if fault == "server" else "worker"
        found = [worker for worker in members if worker.role == role]
        view = self._job.view
        if not found:
            return _missed(view.progress.step, fault, "-", f"the job has no {role}")
        # By a share drawn before: the number of members must not change what a seed draws next.
        victim = None if fault == "supervisor" else found[int(at * len(found))].id
        try:
            done = self._job.inject(fault, victim, for_s=self._for_s)
        except ApiProblem as problem:
            if problem.status != NOT_NOW:
                raise
            return _missed(view.progress.step, fault, victim or "supervisor", problem.message)
        self._done += 1
        return Act(done.at, view.progress.step, done.fault, done.target, done.effect)


def _missed(step: int, fault: Fault, target: str, why: str) -> Act:
    return Act(datetime.now(UTC), step, fault, target, f"not done: {why}", done=False)
