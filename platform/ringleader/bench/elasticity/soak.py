"""Seeded random faults into jobs over ring and servers, through the full stack: every job ends with the same weights.

Faults are those of `ringleader chaos`, drawn and injected by the same code. A job that fails, other weights, a step
taken back, or anything left behind ends the run as a broken promise.
"""

import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import TypeVar

from ringleader.bench.broken import BrokenPromise
from ringleader.bench.line import Figure, Target
from ringleader.bench.processes import stack
from ringleader.bench.processes.orphans import Machine, of_run
from ringleader.bench.registry import Wish
from ringleader.client.chaos import Chaos
from ringleader.wire.faults import Fault

CASES = ("faults-200",)
FAULTS, SHORT_FAULTS = 200, 12
SERVERS = {"inter_node": "parameter_server", "intra_node": "parameter_server", "server_backups": 1}
SCRIPTS: tuple[tuple[str, Mapping[str, object] | None, tuple[Fault, ...]], ...] = (
    ("ring", None, ("kill", "freeze", "slow", "drain", "supervisor", "joiner", "donor")),
    ("servers", SERVERS, ("kill", "freeze", "slow", "server", "supervisor", "joiner")),
)
EPOCHS = 60
ACTS_A_JOB = 6
EVERY_S, SLOW_S = 2.5, 2.0
JOB_DEADLINE_S = 300.0
CPUS = stack.WORKERS + 3
ENDS_S = 20.0
LOOK_S = 0.5
Found = TypeVar("Found", bound=Collection[object])


def run(wish: Wish) -> Iterator[Figure]:
    """Harm job after job. Raises BrokenPromise for the first that does not end like one that nobody harmed."""
    wanted, done, jobs, longest_s = FAULTS if wish.full else SHORT_FAULTS, 0, 0, 0.0
    with stack.up(num_cpus=CPUS) as opened:
        # Before the first job: what the stack itself has is no leftover of a job.
        before = Machine.now(opened.home.root)
        undisturbed = _finish(opened, opened.submit("undisturbed", workload="digits", epochs=EPOCHS), before)
        while done < wanted:
            name, sync, faults = SCRIPTS[jobs % len(SCRIPTS)]
            job = opened.submit(f"{name}{jobs}", workload="digits", epochs=EPOCHS, sync=sync)
            chaos = _harm(job, f"{name}{jobs}", wish.seed + jobs, faults, min(wanted - done, ACTS_A_JOB))
            # Looked for after each job: leftovers of one would else be blamed on the next.
            weights = _finish(opened, job, before)
            toll = chaos.toll()
            if weights != undisturbed or toll.steps_lost:
                raise BrokenPromise(
                    f"seed {wish.seed + jobs}, {name}: weights {weights[:12]}, undisturbed {undisturbed[:12]}; "
                    f"{toll.steps_lost} steps lost."
                )
            done, jobs, longest_s = done + toll.acts, jobs + 1, max(longest_s, toll.worst_s)
    if stay := _remaining(lambda: of_run(before.home)):
        raise BrokenPromise(f"processes {sorted(stay)} outlived the stack that they were started by.")
    yield Figure(
        case="faults-200",
        unit="faults",
        better="higher",
        ours=[float(done)],
        target=Target("ringleader", ">=", FAULTS) if wish.full else None,
        settings=f"{done} of kill, freeze, slow, drain, server, supervisor, joiner and donor into {jobs} jobs in turn "
        f"over ring and servers with a backup; all succeeded with the weights of one that nobody harmed, "
        f"{undisturbed[:12]}, 0 steps lost, nothing left behind; "
        f"longest recovery {longest_s:.2f} s; without --full {SHORT_FAULTS} faults",
    )


def _harm(job: stack.BenchJob, name: str, seed: int, faults: tuple[Fault, ...], acts: int) -> Chaos:
    """Inject these faults into a job, and print each."""
    chaos = Chaos(job.job, seed=seed, faults=faults, acts=acts, every_s=EVERY_S, for_s=SLOW_S)
    for act in chaos.acts():
        print(f"  {name} step {act.step} {act.fault} {act.target}: {act.effect}", file=sys.stderr)
    return chaos


def _finish(opened: stack.BenchStack, job: stack.BenchJob, before: Machine) -> str:
    """The digest of a succeeded job's weights. Raises BrokenPromise where it left what was not there `before`."""
    result = job.job.wait(timeout=JOB_DEADLINE_S)
    job.commits.check_each_once()
    pids = {
        int(e.data["pid"]) for e in job.job.events() if e.type.startswith("worker.") and e.data.get("pid")
    }
    left = opened.left_of(job.job.id)
    alive = [pid for pid in pids if Path(f"/proc/{pid}").exists()]
    here = _remaining(before.left)
    if left or alive or here:
        raise BrokenPromise(
            f"job {job.job.id} left behind: {left} on the cluster, processes {alive}, {here} here."
        )
    return result.weights_sha256


def _remaining(look: Callable[[], Found]) -> Found:
    """Whatever `look` still finds after ENDS_S; empty as soon as it finds nothing."""
    # Processes of an ended job take a moment to go.
    until = time.monotonic() + ENDS_S
    while (found := look()) and time.monotonic() < until:
        time.sleep(LOOK_S)
    return found
