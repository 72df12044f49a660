"""Killing one worker at a seeded step, and recording the workers before and after."""

import os
import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from ringleader.client import Job, Worker
from ringleader.errors import RingleaderError

START_DEADLINE_S = 120.0
HEAL_DEADLINE_S = 60.0
_LOOK_EVERY_S = 0.1


class DemoStuck(RingleaderError):
    """The job did not get where the demonstration waits for it."""

    code = "demo_stuck"


@dataclass(frozen=True, slots=True)
class KilledWorker:
    """The killed worker, and the workers before and after. Pids by worker id."""

    victim: Worker
    wanted_step: int
    seen_step: int
    before: dict[str, int]
    after: dict[str, int] = field(default_factory=dict)

    @property
    def survivors(self) -> dict[str, tuple[int, int | None]]:
        """Pid before and after of everyone who was not killed; None: gone."""
        return {who: (pid, self.after.get(who)) for who, pid in self.before.items() if who != self.victim.id}


def kill_one(job: Job, seed: int, world: int) -> KilledWorker:
    """SIGKILL one of `world` workers at a seeded step in the middle third, then wait for the replacement.

    Raises:
        DemoStuck: the job did not get that far.
    """
    chance = random.Random(seed)  # noqa: S311 (a demonstration, seeded)
    _until(job, "to run with all its workers", START_DEADLINE_S, lambda: _complete(job, world))
    total = job.view.progress.total_steps or 0
    # Early in the middle third: progress is reported a moment late, and the replacement needs time to join.
    wanted = chance.randint(total // 3, 5 * total // 12)
    _until(job, f"to reach step {wanted}", START_DEADLINE_S, lambda: job.view.progress.step >= wanted)
    # Sorted: a seed has to choose the same one, in whatever order the API lists them.
    before = sorted(_workers(job), key=lambda worker: worker.id)
    victim = chance.choice(before)
    os.kill(victim.pid, signal.SIGKILL)
    kill = KilledWorker(victim, wanted, job.view.progress.step, {w.id: w.pid for w in before})
    return KilledWorker(victim, wanted, kill.seen_step, kill.before, _replaced(job, kill, world))


def _replaced(job: Job, kill: KilledWorker, world: int) -> dict[str, int]:
    """Wait for the replacement; pids by worker id, of the last workers seen where none came."""
    now: dict[str, int] = {}

    def complete() -> bool:
        nonlocal now
        # A job that has ended lists no workers: the last list counts.
        now = {worker.id: worker.pid for worker in _workers(job)} or now
        return len(now) == world and kill.victim.pid not in now.values()

    give_up_at = time.monotonic() + HEAL_DEADLINE_S
    while not complete() and not job.refresh().state.ended and time.monotonic() < give_up_at:
        time.sleep(_LOOK_EVERY_S)
    return now


def _complete(job: Job, world: int) -> bool:
    return (
        job.view.world_size == world and bool(job.view.progress.total_steps) and len(_workers(job)) == world
    )


def _workers(job: Job) -> list[Worker]:
    # Without a rank it is not a member yet, or no longer one.
    return [worker for worker in job.workers() if worker.role == "worker" and worker.rank is not None]


def _until(job: Job, what: str, deadline_s: float, condition: Callable[[], bool]) -> None:
    give_up_at = time.monotonic() + deadline_s
    while not job.refresh().state.ended and time.monotonic() < give_up_at:
        if condition():
            return
        time.sleep(_LOOK_EVERY_S)
    why = job.view.reason or job.view.pending_reason
    raise DemoStuck(
        f"waited for {job.id} {what}; it is {job.state} at step {job.view.progress.step} with "
        f"{job.view.world_size} workers{': ' + why.message if why else ''}.",
        hint="Run `ringleader up`, submit jobs/ringleader_jobs/digits.yaml, and read the job's logs and events.",
    )
