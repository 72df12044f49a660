"""Kill → next committed step, through the full stack, beside torchft and Ray Train."""

import os
import random
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from ringleader.bench import stack
from ringleader.bench.broken import BrokenPromise, PeerFailed
from ringleader.bench.children import Child
from ringleader.bench.commits import Recovery, wait_for
from ringleader.bench.line import Figure, Target
from ringleader.bench.registry import Wish
from ringleader.bench.workloads import PAUSE_S

CASES = ("kill",)
TARGET = Target("ringleader", "<=", 0.25)
FOREVER = 100_000
STEADY_DEADLINE_S = 120.0
RECOVERY_DEADLINE_S = 30.0
KILL_DEADLINE_S = 60.0
MODULES = {
    "torchft": ("ringleader.bench.peers.torchft",),
    "ray_train": ("ringleader.bench.peers.ray_train", "recovery"),
}
WORKLOAD = (
    "kill: MLP 64-256-256-10 on digits, 3 workers, 20 ms sleep a step, one SIGKILL at a time at seeded moments, the "
    "next once all three commit again and nothing is being started; kill → next step committed without the victim, "
    "less one undisturbed step of the smaller group"
)
PEER_SETTINGS = {
    "torchft": "torchft: lighthouse and heartbeats as quick as still kept the quorum (join 50 ms, tick 10 ms, lost "
    "after 500 ms, beat 50 ms), one flat all-reduce on gloo",
    "ray_train": "ray_train: elastic (2, 3), gloo, health check every 0.1 s, checkpoint every 50 steps",
}


@dataclass(slots=True)
class Samples:
    """Seconds of every kill, by system; steps lost by the peers."""

    seconds: dict[str, list[float]] = field(default_factory=dict)
    steps_lost: dict[str, list[int]] = field(default_factory=dict)

    def add(self, system: str, seconds: float, steps_lost: int) -> None:
        self.seconds.setdefault(system, []).append(seconds)
        self.steps_lost.setdefault(system, []).append(steps_lost)


def run(wish: Wish) -> Iterator[Figure]:
    """Two rounds of all three systems. Raises BrokenPromise when ours loses a step or restarts a survivor."""
    kills = {"ringleader": 12, "torchft": 8, "ray_train": 4} if wish.full else _DEFAULT_KILLS
    samples = Samples()
    with stack.up() as opened:
        for number in range(2):
            seed = wish.seed + number
            _ringleader(opened, f"recovery{number}", kills["ringleader"], seed, samples)
            for peer in MODULES:
                _peer(peer, kills[peer], seed, samples)
    for peer in MODULES:
        peers = samples.seconds.get(peer, [])
        yield Figure(
            case="kill",
            unit="s",
            better="lower",
            ours=samples.seconds["ringleader"],
            peers=peers,
            peer_name=peer if peers else None,
            target=TARGET,
            settings=_settings(peer, samples),
        )


_DEFAULT_KILLS = {"ringleader": 5, "torchft": 4, "ray_train": 1}


def _ringleader(opened: stack.Stack, name: str, kills: int, seed: int, samples: Samples) -> None:
    draw = random.Random(seed)  # noqa: S311
    job = opened.submit(name, workload="digits", epochs=FOREVER)
    for _ in range(kills):
        opened.await_warm()  # the pool's own imports are over too, as the peers' are when all three commit again
        members = _await_full(job)
        time.sleep(draw.uniform(0, 4 * PAUSE_S))
        found = _kill(job, draw.choice(sorted(members)))
        samples.add("ringleader", found.seconds, found.steps_lost)
    _await_full(job)
    job.job.cancel(grace_s=5)
    job.commits.check_nothing_lost()
    wait_for(
        "the end of a cancelled job",
        lambda: True if job.job.refresh().state.ended else None,
        KILL_DEADLINE_S,
        lambda: None,
    )


def _await_full(job: stack.Run) -> set[int]:
    """The pids of all three, once they commit together."""
    since = time.monotonic()

    def look() -> set[int] | None:
        commits = job.commits.since(since)
        newest = commits.newest()
        members = commits.members(newest) if newest is not None else set()
        return members if len(members) == stack.WORKERS else None

    return wait_for("three workers that commit together", look, STEADY_DEADLINE_S, job.check)


def _kill(job: stack.Run, victim: int) -> Recovery:
    killed_at = time.monotonic()
    os.kill(victim, signal.SIGKILL)
    found = wait_for(
        "a commit after the kill",
        lambda: job.commits.recovery(killed_at, victim),
        RECOVERY_DEADLINE_S,
        job.check,
    )
    if found.steps_lost or not found.survivors_stayed:
        raise BrokenPromise(
            f"the kill of {victim} cost {found.steps_lost} steps; survivors stayed: {found.survivors_stayed}."
        )
    return found


def _peer(name: str, kills: int, seed: int, samples: Samples) -> None:
    """One round of a peer. A peer that fails is said, its line stays without a comparison."""
    module, *words = MODULES[name]
    count = "--kills" if name == "torchft" else "--runs"
    with Child(module, [*words, f"{count}={kills}", f"--seed={seed}"]) as child:
        try:
            for answer in child.answers((kills + 1) * KILL_DEADLINE_S):
                samples.add(name, answer["seconds"], answer["steps_lost"])
        except PeerFailed as error:
            print(f"  {name} failed in this round: {_last_line(error)}", file=sys.stderr, flush=True)


def _last_line(error: PeerFailed) -> str:
    return str(error).strip().splitlines()[-1]


def _settings(peer: str, samples: Samples) -> str:
    lost = samples.steps_lost.get(peer, [])
    ours = len(samples.seconds["ringleader"])
    return (
        f"{WORKLOAD}; ringleader: {ours} kills, 0 steps lost, survivors' pids unchanged; {PEER_SETTINGS[peer]}, "
        f"{len(lost)} kills, steps lost {sorted(lost)}"
    )
