"""The cost to others of a replacement's lines: it runs those behind all finished loops again."""

import os
import random
import signal
import time
from collections.abc import Callable, Collection, Iterator
from itertools import pairwise
from math import inf

from ringleader.bench.elasticity.commits import Commits, wait_for
from ringleader.bench.line import Figure, Target
from ringleader.bench.processes import stack

CASE = "kill-lines"
TARGET = Target("ratio", ">=", 3.0)
LINES_S, LOOPS, LOOP_STEPS = 0.2, 10, 19
"""Seconds of lines behind a loop, how many loops are over before the first kill, and the steps of one."""
USUAL_S = 3.0
"""Seconds before the kill from which the usual gap is read: some loops."""
DEADLINE_S = 120.0


def figure(waits: list[float], alone: list[float]) -> Figure:
    """The figure of what `measure` measures."""
    return Figure(
        case=CASE,
        unit="s",
        better="lower",
        ours=waits,
        peers=alone,
        peer_name="lines in the seat",
        target=TARGET,
        settings=f"{CASE}: as kill, with {LINES_S:g} s of lines after each loop and at least {LOOPS} loops over; the "
        "longest time between two commits of a survivor, from the kill to ten steps with the replacement, less that "
        f"time without a kill; beside it what the lines of all finished loops take, which all waited for; {len(waits)} "
        f"kills, worst {max(waits):.3f} s",
    )


def measure(
    job: stack.BenchJob, kills: int, seed: int, await_full: Callable[[], set[int]]
) -> Iterator[tuple[float, float]]:
    """Seconds for each kill: the survivors' wait beyond the usual one, and the time of all lines behind finished
    loops."""
    draw = random.Random(seed)  # noqa: S311
    for _ in range(kills):
        wait_for(f"{LOOPS} loops", lambda: _loops(job) >= LOOPS or None, DEADLINE_S, job.check)
        members = await_full()
        victim, loops, killed_at = draw.choice(sorted(members)), _loops(job), time.monotonic()
        os.kill(victim, signal.SIGKILL)
        await_full()
        commits, survivors = job.commits, members - {victim}
        # The lines behind a loop are a gap without any kill, too.
        usual = _longest(commits.since(killed_at - USUAL_S), survivors, until=killed_at)
        yield (
            _longest(commits.since(killed_at - USUAL_S), survivors, since=killed_at) - usual,
            loops * LINES_S,
        )


def _loops(job: stack.BenchJob) -> int:
    steps = [commit.step for commit in job.commits.all]
    return max(steps, default=0) // LOOP_STEPS


def _longest(commits: Commits, pids: Collection[int], *, since: float = 0.0, until: float = inf) -> float:
    """The longest time between two commits of any one process, the second of which came in the given time."""
    times = [[commit.at for commit in commits.of({pid}).all] for pid in pids]
    return max(b - a for each in times for a, b in pairwise(each) if since <= b <= until)
