"""Kill → next committed step, through the full stack: of a worker, beside torchft and Ray Train, of a parameter server
that has a backup, and of the supervisor."""

import os
import random
import signal
import sys
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

from ringleader.bench.broken import BrokenPromise, PeerFailed
from ringleader.bench.elasticity import absence, lines
from ringleader.bench.elasticity.commits import MeasuredRecovery, await_recovery, wait_for
from ringleader.bench.line import Figure, Target
from ringleader.bench.processes import stack
from ringleader.bench.processes.children import Child
from ringleader.bench.registry import Wish
from ringleader.bench.training.workloads import PAUSE_S

CASES = ("kill", "kill-loaders", lines.CASE, "frozen", "server", absence.ALONE, absence.TOGETHER)
ADOPTED = "kill-ray_train"
"""The case of the benchmark `adapters`."""
TARGET = Target("ringleader", "<=", 0.10)
WORST_TARGET = Target("ringleader", "<=", 0.5)
FROZEN_TARGET = Target("ringleader", "<=", 2.0)
LOADERS_TARGET = Target("ratio", ">=", 0.5)
LOADERS = 2
FROZEN_STEP_S = 0.05
SERVER_TARGET = Target("ringleader", "<=", 0.3)
BACKED = {"inter_node": "parameter_server", "intra_node": "parameter_server", "server_backups": 1}
SERVERS = 2
"""Processes of one server and its backup."""
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
SERVER_WORKLOAD = (
    "server: the same network, step and workers, servers: 1 with server_backups: 1, which are two processes that hold "
    "the same; one SIGKILL at a time of either at seeded moments, the next once the new one commits too; kill → next "
    "step committed by all workers, less one undisturbed step"
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
    """Measure the wanted cases. Raises BrokenPromise when ours loses a step or restarts a survivor."""
    if wish.wants("kill"):
        yield from _workers(wish)
    if wish.wants("kill-loaders"):
        yield _loaders(wish)
    if wish.wants(lines.CASE):
        yield _lines(wish)
    if wish.wants("frozen"):
        yield _frozen(wish)
    if wish.wants("server"):
        yield _servers(wish)
    if wish.wants(absence.ALONE):
        yield _supervisor(wish)
    if wish.wants(absence.TOGETHER):
        yield _supervisor_and_worker(wish)


def _supervisor(wish: Wish) -> Figure:
    """Kill the supervisors of two jobs, one after the other."""
    found: list[tuple[float, float, float]] = []
    with stack.up() as opened:
        for number in range(2):
            job = opened.submit(f"absent{number}", workload="digits", epochs=FOREVER)
            opened.await_warm()
            members = _await_full(job)
            found += absence.measure_gaps(job, members, 10 if wish.full else 5, wish.seed + number)
            _end(job)
    gaps, undisturbed, away = ([row[column] for row in found] for column in range(3))
    return absence.alone_figure(gaps, undisturbed, away)


def _supervisor_and_worker(wish: Wish) -> Figure:
    seconds: list[float] = []
    with stack.up() as opened:
        for number in range(2):
            draw = random.Random(wish.seed + number)  # noqa: S311
            job = opened.submit(f"both{number}", workload="digits", epochs=FOREVER)
            for _ in range(10 if wish.full else 3):
                opened.await_warm()
                members = _await_full(job)
                time.sleep(draw.uniform(0, 4 * PAUSE_S))
                absence.kill(job, min(members))
                seconds.append(_kill(job, draw.choice(sorted(members))).seconds)
            _await_full(job)
            _end(job)
    return absence.together_figure(seconds)


def _workers(wish: Wish) -> Iterator[Figure]:
    """Kill workers in two rounds of all three systems."""
    kills = {"ringleader": 20, "torchft": 10, "ray_train": 4} if wish.full else _DEFAULT_KILLS
    samples = Samples()
    with stack.up() as opened:
        for number in range(2):
            seed = wish.seed + number
            # By turns: what else the machine does in this time falls on all three.
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
    worst = {system: [max(seconds)] for system, seconds in samples.seconds.items()}
    yield Figure(
        case="kill-worst",
        unit="s",
        better="lower",
        ours=worst["ringleader"],
        peers=worst.get("torchft", []),
        peer_name="torchft" if "torchft" in worst else None,
        target=WORST_TARGET,
        settings="kill-worst: the longest of the same kills",
    )


def _loaders(wish: Wish) -> Figure:
    """Kill workers in two rounds of a job with loader processes and of one without."""
    kills = 10 if wish.full else 5
    with_them, without = Samples(), Samples()
    with stack.up() as opened:
        for number in range(2):
            seed = wish.seed + number
            _ringleader(opened, f"loaders{number}", kills, seed, with_them, loader_workers=LOADERS)
            _ringleader(opened, f"without{number}", kills, seed, without)
    seconds = with_them.seconds["ringleader"]
    return Figure(
        case="kill-loaders",
        unit="s",
        better="lower",
        ours=seconds,
        peers=without.seconds["ringleader"],
        peer_name="no loaders",
        target=LOADERS_TARGET,
        settings=f"kill-loaders: as kill, with loader_workers: {LOADERS}; beside it the same without, by turns; "
        f"{len(seconds)} kills each, 0 steps lost, worst {max(seconds):.3f} s",
    )


def adopted_kills(wish: Wish) -> Figure:
    """Kill workers of a function of Ray Train, in two rounds on our engine and on Ray's."""
    kills, peers_kills = (10, 4) if wish.full else (5, 1)
    samples = Samples()
    with stack.up() as opened:
        for number in range(2):
            seed = wish.seed + number
            _ringleader(opened, f"adopted{number}", kills, seed, samples, adopted=True)
            _peer("ray_train", peers_kills, seed, samples)
    seconds, peers = samples.seconds["ringleader"], samples.seconds.get("ray_train", [])
    return Figure(
        case=ADOPTED,
        unit="s",
        better="lower",
        ours=seconds,
        peers=peers,
        peer_name="ray_train" if peers else None,
        target=TARGET,
        settings=f"{ADOPTED}: as kill of the benchmark recovery, a function of Ray Train with framework: ray_train; "
        f"{len(seconds)} kills, 0 steps lost, worst {max(seconds):.3f} s; {PEER_SETTINGS['ray_train']}",
    )


def _lines(wish: Wish) -> Figure:
    """Kill workers of two jobs with lines behind each loop, one job after the other."""
    found: list[tuple[float, float]] = []
    with stack.up() as opened:
        for number in range(2):
            job = opened.submit(f"lines{number}", workload="digits", epochs=FOREVER, lines_s=lines.LINES_S)
            opened.await_warm()
            found += lines.measure(job, 5 if wish.full else 3, wish.seed + number, partial(_await_full, job))
            _end(job)
    waits, alone = ([row[column] for row in found] for column in range(2))
    return lines.figure(waits, alone)


_DEFAULT_KILLS = {"ringleader": 10, "torchft": 5, "ray_train": 1}


def _frozen(wish: Wish) -> Figure:
    """Freeze workers in two rounds, ours and torchft's."""
    samples = Samples()
    freezes = 10 if wish.full else 4
    with stack.up() as opened:
        for number in range(2):
            seed = wish.seed + number
            name = f"frozen{number}"
            _ringleader(opened, name, freezes, seed, samples, sign=signal.SIGSTOP, step_s=FROZEN_STEP_S)
            words = ("--freeze", f"--pause-s={FROZEN_STEP_S}", "--patience-s=1")
            _peer("torchft", freezes, seed, samples, words)
    peers, worst_s = samples.seconds.get("torchft", []), max(samples.seconds["ringleader"])
    return Figure(
        case="frozen",
        unit="s",
        better="lower",
        ours=samples.seconds["ringleader"],
        peers=peers,
        peer_name="torchft" if peers else None,
        target=FROZEN_TARGET,
        settings=f"frozen: as kill, with a step of 50 ms and SIGSTOP; worst {worst_s:.3f} s; "
        f"{PEER_SETTINGS['torchft']}, and exchanges given up after 1 s",
    )


def _servers(wish: Wish) -> Figure:
    """Kill servers of two jobs, one after the other; no peer has servers to lose."""
    seconds: list[float] = []
    with stack.up(num_cpus=stack.WORKERS + SERVERS + 1) as opened:
        for number in range(2):
            seconds += _kill_servers(opened, f"servers{number}", 10 if wish.full else 5, wish.seed + number)
    return Figure(
        case="server",
        unit="s",
        better="lower",
        ours=seconds,
        peers=[],
        peer_name=None,
        target=SERVER_TARGET,
        settings=f"{SERVER_WORKLOAD}; {len(seconds)} kills, 0 updates lost, 0 doubled, worst {max(seconds):.3f} s",
    )


def _kill_servers(opened: stack.BenchStack, name: str, kills: int, seed: int) -> list[float]:
    """Seconds of every kill, read from the workers' commits."""
    draw = random.Random(seed)  # noqa: S311
    job = opened.submit(name, workload="digits", epochs=FOREVER, sync=BACKED)
    seconds = []
    for _ in range(kills):
        opened.await_warm()
        members = _await_full(job, stack.WORKERS + SERVERS)
        servers = {w.pid for w in job.job.workers() if w.role == "server"} & members
        time.sleep(draw.uniform(0, 4 * PAUSE_S))
        seconds.append(_kill(job, draw.choice(sorted(servers)), among=members - servers).seconds)
    _await_full(job, stack.WORKERS + SERVERS)
    _end(job)
    return seconds


def _ringleader(
    opened: stack.BenchStack,
    name: str,
    kills: int,
    seed: int,
    samples: Samples,
    *,
    sign: signal.Signals = signal.SIGKILL,
    step_s: float = PAUSE_S,
    loader_workers: int = 0,
    adopted: bool = False,
) -> None:
    draw = random.Random(seed)  # noqa: S311
    job = opened.submit(
        name,
        workload="digits",
        epochs=FOREVER,
        pause_s=step_s,
        loader_workers=loader_workers,
        adopted=adopted,
    )
    for _ in range(kills):
        opened.await_warm()  # the pool's own imports are over too, as the peers' are when all three commit again
        members = _await_full(job)
        time.sleep(draw.uniform(0, 4 * step_s))
        found = _kill(job, draw.choice(sorted(members)), sign=sign)
        samples.add("ringleader", found.seconds, found.steps_lost)
    _await_full(job)
    _end(job)


def _end(job: stack.BenchJob) -> None:
    """Cancel the job and wait for its end. Raises BrokenPromise when a step was lost or doubled."""
    job.job.cancel(grace_s=5)
    job.commits.check_each_once()
    wait_for(
        "the end of a cancelled job",
        lambda: True if job.job.refresh().state.ended else None,
        KILL_DEADLINE_S,
        lambda: None,
    )


def _await_full(job: stack.BenchJob, count: int = stack.WORKERS) -> set[int]:
    """The pids of all members, once `count` of them commit together."""
    since = time.monotonic()

    def look() -> set[int] | None:
        commits = job.commits.since(since)
        newest = commits.newest()
        members = commits.members(newest) if newest is not None else set()
        return members if len(members) == count else None

    return wait_for(f"{count} members that commit together", look, STEADY_DEADLINE_S, job.check)


def _kill(
    job: stack.BenchJob, victim: int, among: Collection[int] = (), sign: signal.Signals = signal.SIGKILL
) -> MeasuredRecovery:
    """Signal a process. Returns the cost by the commits of `among`, or of all where none are named."""
    # Before the signal: what sending it takes counts against us.
    killed_at = time.monotonic()
    os.kill(victim, sign)
    found = await_recovery(
        lambda: job.commits.of(among) if among else job.commits,
        killed_at,
        victim,
        RECOVERY_DEADLINE_S,
        job.check,
    )
    if found.steps_lost or not found.survivors_stayed:
        raise BrokenPromise(
            f"the kill of {victim} cost {found.steps_lost} steps; survivors stayed: {found.survivors_stayed}."
        )
    return found


def _peer(name: str, kills: int, seed: int, samples: Samples, more: Sequence[str] = ()) -> None:
    """Run one round of a peer. Its failure is printed, and its line stays without a comparison."""
    module, *words = MODULES[name]
    count = "--kills" if name == "torchft" else "--runs"
    with Child(module, [*words, *more, f"{count}={kills}", f"--seed={seed}"]) as child:
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
