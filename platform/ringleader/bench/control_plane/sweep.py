"""A sweep of the digits with rungs, the same trials all run to the end, and the same with Ray Tune's ASHA."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from ringleader.bench.broken import BrokenPromise
from ringleader.bench.line import Figure, Target
from ringleader.bench.processes import stack
from ringleader.bench.processes.children import peer_answers
from ringleader.bench.registry import Wish
from ringleader.client import Job, Sweep

TRIALS, PARALLEL, EPOCHS = 27, 2, 40
RUNGS = (30, 90, 270)
CASES = (f"digits-{TRIALS}", f"tune-{TRIALS}")
DEADLINE_S = 3600.0
TAKES, LEAVES = "job.starting", ("job.paused", "job.succeeded", "job.cancelled", "job.failed")


@dataclass(frozen=True, slots=True)
class Swept:
    """What a sweep came to. `busy` is the share of its places that were taken, from the first taken to the last."""

    seconds: float
    score: float
    busy: float
    steps: int
    twice: int


def run(wish: Wish) -> Iterator[Figure]:
    """Raises BrokenPromise where a sweep has no winner."""
    with stack.up(num_cpus=PARALLEL) as opened:
        # Not counted: the first job of a stack loads what others find loaded.
        _swept(opened, "first", wish.seed, trials=PARALLEL, rungs=())
        ours = _swept(opened, "asha", wish.seed, trials=TRIALS, rungs=RUNGS)
        plain = _swept(opened, "plain", wish.seed, trials=TRIALS, rungs=()) if wish.wants(CASES[0]) else None
    settings = (
        f"{TRIALS} learning rates of the digits, {EPOCHS} epochs, {PARALLEL} at once, one worker each; rungs "
        f"{', '.join(map(str, RUNGS))}, reduction 3: winner's loss {ours.score:.4g} after {ours.steps} steps"
    )
    if plain is not None:
        yield from _beside_plain(ours, plain, settings)
    if wish.wants(CASES[1]):
        yield _beside_tune(ours, wish, settings)


def _beside_plain(ours: Swept, plain: Swept, settings: str) -> Iterator[Figure]:
    yield Figure(
        case=CASES[0],
        unit="s",
        better="lower",
        ours=[ours.seconds],
        peers=[plain.seconds],
        peer_name="no_rungs",
        target=Target("ratio", ">=", 1.5),
        settings=f"{CASES[0]}: {settings}; all to the end: {plain.score:.4g} after {plain.steps} steps",
    )
    for what, value, target in (
        ("busy", ours.busy, Target("ringleader", ">=", 0.95)),
        ("twice", ours.twice, Target("ringleader", "<=", 0)),
    ):
        yield Figure(
            case=f"{CASES[0]}-{what}",
            unit="of 1" if what == "busy" else "steps",
            better="higher" if what == "busy" else "lower",
            ours=[value],
            target=target,
            settings=f"{CASES[0]}-{what}: "
            + ("places that jobs held, while jobs were left" if what == "busy" else "steps computed twice"),
        )


def _beside_tune(ours: Swept, wish: Wish, settings: str) -> Figure:
    numbers = {"trials": TRIALS, "parallel": PARALLEL, "epochs": EPOCHS, "seed": wish.seed}
    arguments = [f"--{name}={value}" for name, value in numbers.items()]
    arguments.append(f"--rungs={','.join(map(str, RUNGS))}")
    theirs = [
        answer["seconds"] for answer in peer_answers("ringleader.bench.peers.ray_tune", arguments, DEADLINE_S)
    ]
    return Figure(
        case=CASES[1],
        unit="s",
        better="lower",
        ours=[ours.seconds],
        peers=theirs,
        peer_name="ray_tune" if theirs else None,
        target=Target("ratio", ">=", 1.5),
        settings=f"{CASES[1]}: {settings}; ray_tune: ASHAScheduler, which ends losers, over a plain loop in torch",
    )


def _swept(opened: stack.BenchStack, name: str, seed: int, *, trials: int, rungs: Sequence[int]) -> Swept:
    body: dict[str, Any] = {
        "name": name,
        "template": {
            "entrypoint": "ringleader_jobs.digits:train",
            "params": {"epochs": EPOCHS},
            "workers": {"min": 1, "max": 1},
            "debug": {"check": False},
        },
        "space": {"params.lr": {"log_uniform": [0.001, 1.0]}},
        "method": "sobol",
        "trials": trials,
        "seed": seed,
        "metric": {"name": "loss"},
        "parallel": PARALLEL,
        **({"promotion": {"asha": {"rungs": list(rungs), "reduction": 3}}} if rungs else {}),
    }
    began = time.monotonic()
    sweep = opened.client.sweep(body).wait(DEADLINE_S)
    seconds = time.monotonic() - began
    if sweep.view.best_score is None:
        raise BrokenPromise(f"the sweep ended as {sweep.view.state}: {sweep.view.reason}")
    jobs = [opened.client.job(str(one.job)) for one in sweep.trials()]
    return Swept(
        seconds=seconds,
        score=sweep.view.best_score,
        busy=_busy(jobs, sweep),
        steps=sum(job.view.progress.step for job in jobs),
        twice=sum(job.view.totals.steps_lost for job in jobs),
    )


def _busy(jobs: Sequence[Job], sweep: Sweep) -> float:
    """The share of the places that were held, until the sweep's end."""
    held_s = 0.0
    finished = sweep.view.finished_at
    assert finished is not None
    for job in jobs:
        since: datetime | None = None
        for event in job.events():
            if event.type == TAKES:
                since = event.time
            elif event.type in LEAVES and since is not None:
                held_s += (min(event.time, finished) - since).total_seconds()
                since = None
    return held_s / (PARALLEL * (finished - sweep.view.created_at).total_seconds())
