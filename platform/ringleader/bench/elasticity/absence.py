"""The pause of training when the supervisor is killed, alone and together with a worker."""

import os
import random
import signal
import time
from collections.abc import Collection, Iterator
from itertools import pairwise
from pathlib import Path
from statistics import median

from ringleader.bench.broken import BrokenPromise
from ringleader.bench.elasticity.commits import Commits, wait_for
from ringleader.bench.line import Figure, Target
from ringleader.bench.processes import stack
from ringleader.bench.training.workloads import PAUSE_S

ALONE, TOGETHER = "supervisor", "supervisor+worker"
ALONE_TARGET = Target("ringleader", "<=", 0.05)
TOGETHER_TARGET = Target("ringleader", "<=", 3.0)
AFTERWARDS_S = 1.0
RETURN_DEADLINE_S = 60.0
WORKLOAD = "MLP 64-256-256-10 on digits, 3 workers, 20 ms sleep a step, SIGKILL at seeded moments"
_PPID, _NAME = 1, b"ray::Supervisor"


def alone_figure(gaps: list[float], undisturbed: list[float], away: list[float]) -> Figure:
    """The figure of what `measure_gaps` measures."""
    return Figure(
        case=ALONE,
        unit="s",
        better="lower",
        ours=gaps,
        target=ALONE_TARGET,
        settings=f"{ALONE}: {WORKLOAD}; longest time between two commits of any worker until {AFTERWARDS_S:g} s after "
        f"the supervisor is back, less one median step; {len(gaps)} kills, worst {max(gaps):.3f} s, back after "
        f"{median(away):.2f} s; the same over as long without a kill: median {median(undisturbed):.3f} s, worst "
        f"{max(undisturbed):.3f} s; 0 steps lost, nobody parked, all pids unchanged",
    )


def together_figure(seconds: list[float]) -> Figure:
    return Figure(
        case=TOGETHER,
        unit="s",
        better="lower",
        ours=seconds,
        target=TOGETHER_TARGET,
        settings=f"{TOGETHER}: {WORKLOAD}, of both at once; kill → next step committed without the worker, less one "
        f"undisturbed step; {len(seconds)} kills, worst {max(seconds):.3f} s, 0 steps lost, survivors' pids unchanged",
    )


def measure_gaps(
    job: stack.BenchJob, members: Collection[int], kills: int, seed: int
) -> Iterator[tuple[float, float, float]]:
    """Seconds for each kill: the longest gap less a step, the same over as long a time after it, and the absence."""
    draw = random.Random(seed)  # noqa: S311
    for _ in range(kills):
        # At a moment of its own in a step, so that kills do not fall into step with the commits.
        time.sleep(draw.uniform(0, 4 * PAUSE_S))
        returned = count_returns(job)
        killed_at = kill(job, min(members))
        _await_return(job, returned)
        away_s = time.monotonic() - killed_at
        time.sleep(AFTERWARDS_S)
        until, commits = time.monotonic(), job.commits
        if commits.since(killed_at).members(commits.newest() or 0) != set(members):
            raise BrokenPromise("a worker was replaced though only the supervisor was killed.")
        # An equal time without a kill: the longest gap grows with the time that is looked at.
        time.sleep(until - killed_at)
        yield (
            longest_gap(commits, killed_at, until, members),
            longest_gap(job.commits, until, time.monotonic(), members),
            away_s,
        )


def _await_return(job: stack.BenchJob, before: int) -> None:
    def look() -> bool | None:
        return True if count_returns(job) > before else None

    wait_for("a supervisor that is back", look, RETURN_DEADLINE_S, job.check)


def longest_gap(commits: Commits, start: float, stop: float, members: Collection[int]) -> float:
    """The longest time in seconds between two commits of any one of these processes, less its median step; the first
    of the two may lie before `start`."""
    gaps = []
    for pid in members:
        at = [commit.at for commit in commits.all if commit.pid == pid and commit.at <= stop]
        taken = [(b - a, b) for a, b in pairwise(at)]
        during = [gap for gap, end in taken if end >= start]
        gaps.append(max(during) - median(gap for gap, _ in taken))
    return max(gaps)


def count_returns(job: stack.BenchJob) -> int:
    return sum(event.type == "supervisor.returned" for event in job.job.events())


def kill(job: stack.BenchJob, worker: int) -> float:
    """Kill the supervisor on that worker's node. Returns the monotonic time of the kill."""
    pid = wait_for("a supervisor", lambda: supervisor_beside(worker), RETURN_DEADLINE_S, job.check)
    killed_at = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    return killed_at


def supervisor_beside(worker: int) -> int | None:
    """The supervisor's process on this worker's node, a child of the same parent; None where there is none."""
    parent = _parent(worker)
    for path in Path("/proc").iterdir():
        if path.name.isdigit() and _parent(int(path.name)) == parent and _is_supervisor(path):
            return int(path.name)
    return None


def _parent(pid: int) -> int | None:
    try:
        # Behind the last parenthesis: the name before it may hold spaces and parentheses.
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[_PPID])
    except (OSError, IndexError):
        return None


def _is_supervisor(process: Path) -> bool:
    try:
        # Ray writes an actor's class over its process's command line.
        return (process / "cmdline").read_bytes().startswith(_NAME)
    except OSError:
        return False
