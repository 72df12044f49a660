"""One pass of the scheduler over a long queue and a large, full cluster; pure, so nothing else is measured."""

import gc
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

from ringleader.bench.broken import BrokenPromise
from ringleader.bench.line import Figure, Target
from ringleader.bench.registry import Wish
from ringleader_api.scheduling import (
    Admit,
    Claim,
    ClusterSnapshot,
    Decision,
    Hold,
    NodeShape,
    ProjectShare,
    WorkerNeed,
    decide,
)

JOBS = {"1k-jobs-1k-nodes": 1_000, "10k-jobs-1k-nodes": 10_000, "50k-jobs-1k-nodes": 50_000}
CASES = tuple(JOBS)
NODES = 1_000
BAR = "10k-jobs-1k-nodes"
TARGET = Target("ringleader", "<=", 0.2)
ENDED = 0.05
"""The share of jobs at work that have ended since the pass before."""

SHAPES = (
    WorkerNeed(1, 0, 2),
    WorkerNeed(4, 0, 8),
    WorkerNeed(8, 0, 64),
    WorkerNeed(4, 1, 16),
    WorkerNeed(16, 2, 64),
    WorkerNeed(32, 8, 128),
)
PROJECTS = {f"p{n}": ProjectShare(weight=1 + n % 3, workers=4_000 if n % 2 else None) for n in range(10)}
SETTINGS = (
    "1,000 nodes, half with 64 CPUs, half with 64 CPUs and 8 GPUs, full; 10 projects of three weights, half of them "
    "with a quota; priorities 0 to 3; six shapes of worker; gangs of 1 to 16, half of the jobs elastic up to four "
    "times that; 5% of the jobs at work have ended since the last pass"
)


def run(wish: Wish) -> Iterator[Figure]:
    """Measure the seconds of a pass, one value a run. Raises BrokenPromise where a pass has done nothing."""
    for case in filter(wish.wants, CASES):
        draw = random.Random(wish.seed)  # noqa: S311 - not for secrets
        full = _full(draw, JOBS[case])
        yield Figure(
            case=case,
            unit="s",
            better="lower",
            ours=[_pass(draw, full) for _ in range(15 if wish.full else 5)],
            target=TARGET if case == BAR else None,
            settings=f"{case}: {len(full.admitted):,} jobs at work, {len(full.queued):,} wait; {SETTINGS}",
        )


def _pass(draw: random.Random, full: ClusterSnapshot) -> float:
    """Seconds of the pass after some jobs of a full cluster have ended."""
    snapshot = replace(full, admitted=[c for c in full.admitted if draw.random() >= ENDED])
    # A collection of the snapshots before would otherwise fall into the measured pass.
    gc.collect()
    started = time.perf_counter()
    decisions = decide(snapshot)
    took_s = time.perf_counter() - started
    if all(isinstance(decision, Hold) for decision in decisions):
        raise BrokenPromise("a pass over a cluster with room has started nobody and made room for nobody.")
    return took_s


def _full(draw: random.Random, jobs: int) -> ClusterSnapshot:
    """The cluster with as many of the jobs at work as passes from an empty one have admitted."""
    nodes = [NodeShape(f"n{n}", 64, 8 if n % 2 else 0, 512) for n in range(NODES)]
    snapshot = ClusterSnapshot(nodes, [], [_job(draw, number) for number in range(jobs)], PROJECTS)
    while True:
        after = _carried_out(snapshot, decide(snapshot))
        if len(after.admitted) == len(snapshot.admitted):
            return after
        snapshot = after


def _job(draw: random.Random, number: int) -> Claim:
    floor = draw.choice((1, 1, 2, 4, 8, 16))
    elastic = draw.random() < 0.5
    return Claim(
        job_id=f"job_{number:026d}",
        need=draw.choice(SHAPES),
        floor=floor,
        holds=floor * 4 if elastic else floor,
        project=draw.choice(sorted(PROJECTS)),
        priority=draw.choice((0, 0, 0, 1, 2, 3)),
        waited_s=draw.uniform(0, 7200),
        elastic=elastic,
        evictable=True,
        ends_in_s=draw.choice((None, 600.0, 3600.0)),
    )


def _carried_out(snapshot: ClusterSnapshot, decisions: Sequence[Decision]) -> ClusterSnapshot:
    started = {d.job_id: d.workers for d in decisions if isinstance(d, Admit)}
    admitted = [
        replace(c, holds=started[c.job_id] or c.holds, wants=c.holds, ran_s=900.0, settled_s=900.0)
        for c in snapshot.queued
        if c.job_id in started
    ]
    return replace(
        snapshot,
        admitted=[*snapshot.admitted, *admitted],
        queued=[c for c in snapshot.queued if c.job_id not in started],
    )
