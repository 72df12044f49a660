"""The cost of a joiner to the running pair: the longest gap between two commits, beside Ray Train's resize."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Self

from ringleader.bench.elasticity.commits import wait_for
from ringleader.bench.elasticity.trained import ENTRYPOINT
from ringleader.bench.line import Figure, Target
from ringleader.bench.processes import stack
from ringleader.bench.processes.children import peer_answers
from ringleader.bench.registry import Wish

CASE, DENSE = "join", "join-dense"
CASES = (CASE, DENSE)
TARGET = Target("ringleader", "<=", 0.05)
PAIR, WORLD, SHARDS, BATCH = 2, 3, 4, 8
FOREVER = 100_000
QUIET_S = 3.0
DEADLINE_S = 120.0
PEER_DEADLINE_S = 240.0
TURNS = SHARDS // PAIR
SETTINGS = (
    f"L = {SHARDS}, batch {BATCH}; two workers, a third one comes and goes. Seconds: the longest time between two "
    "commits of either of the two, from the request to ten steps of all three, less their median step before. "
    "ray_train: elastic (2, 3), gloo, looks for places every second, checkpoint every 50 steps; a node comes with "
    "one"
)


@dataclass(frozen=True, slots=True)
class Load:
    """The pair's workload: `pause_s` of each step are waited, as for a device, so that a third worker has room."""

    workload: str
    pause_s: float
    words: str


LOADS = {
    CASE: Load(
        "tuned",
        0.06,
        "4.2 million parameters with Adam over 150 MB that are frozen, 200 MB of state; 60 ms of each step are a sleep",
    ),
    DENSE: Load(
        "wide",
        0.04,
        "MLP 1024-3500-2900-1024 with Adam, 16.7 million parameters, 200 MB of state; 40 ms of each step are a sleep, "
        "the rest keeps a core busy",
    ),
}


@dataclass(frozen=True, slots=True)
class Join:
    """Seconds of one join: the longest gap between commits of a member that was there, and its median step before."""

    gap: float
    step: float

    @classmethod
    def of(cls, times: Sequence[float], asked_at: float) -> Self:
        """Read a join from one process's commits, or from all where a system restarts its processes."""
        steps = [b - a for a, b in pairwise(times) if b < asked_at]
        return cls(max(b - a for a, b in pairwise(times) if b >= asked_at), median(steps))

    @property
    def cost(self) -> float:
        return self.gap - self.step


def run(wish: Wish) -> Iterator[Figure]:
    """Measure jobs that a third worker joins over and over."""
    rounds = 10 if wish.full else 4
    wanted = [case for case in CASES if wish.wants(case)]
    with stack.up() as opened:
        found = {case: _joins(opened, case, rounds) for case in wanted}
    for case in wanted:
        joins, peers = found[case], _peer(case, 2 if wish.full else 1)
        yield Figure(
            case=case,
            unit="s",
            better="lower",
            ours=[join.cost for join in joins],
            peers=[join.cost for join in peers],
            peer_name="ray_train" if peers else None,
            target=TARGET,
            settings=f"{case}: {LOADS[case].words}; {SETTINGS}; step {median(join.step for join in joins):.3f} s, "
            f"{rounds} joins, worst {max(join.cost for join in joins):.3f} s",
        )


def _joins(opened: stack.BenchStack, case: str, rounds: int) -> list[Join]:
    load = LOADS[case]
    commits = opened.folder / case
    commits.mkdir()
    params = {"workload": load.workload, "commits": str(commits), "epochs": FOREVER}
    spec = {
        "name": case,
        "entrypoint": ENTRYPOINT,
        # The body runs once a slice, and each of the pair has TURNS slices a step.
        "params": params | {"pause_s": load.pause_s / TURNS},
        "workers": {"min": PAIR, "max": PAIR},
        "batch": {"global_size": BATCH, "logical_shards": SHARDS},
    }
    run = stack.BenchJob(opened.client.submit(spec), commits)
    found = []
    for _ in range(rounds):
        opened.await_warm()
        # Idle workers are back by now: their imports would take a core from the pair.
        pair = _await_members(run, PAIR)
        quiet_at = time.monotonic()
        time.sleep(QUIET_S)
        asked_at = time.monotonic()
        run.job.resize(min=PAIR, max=WORLD)
        _await_members(run, WORLD)
        seen = run.commits.since(quiet_at)
        # The worse of the two: neither goes on without the other.
        found += [max((Join.of([c.at for c in seen.of({pid}).all], asked_at) for pid in pair), key=_gap)]
        run.job.resize(min=PAIR, max=PAIR)
    run.job.cancel(grace_s=5)
    return found


def _gap(join: Join) -> float:
    return join.gap


def _await_members(run: stack.BenchJob, count: int) -> set[int]:
    """The pids of all members, once `count` of them commit together."""
    since = time.monotonic()

    def look() -> set[int] | None:
        commits = run.commits.since(since)
        newest = commits.newest()
        members = commits.members(newest) if newest is not None else set()
        return members if len(members) == count else None

    return wait_for(f"{count} members that commit together", look, DEADLINE_S, run.check)


def _peer(case: str, joins: int) -> list[Join]:
    arguments = [case, f"--runs={joins}"]
    answers = peer_answers("ringleader.bench.peers.ray_train", arguments, (joins + 1) * PEER_DEADLINE_S)
    return [Join(**answer) for answer in answers]
