"""The findings of the demonstration: the facts, the promises they are held against, and the table."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ringleader.cli.demo import ledger
from ringleader.cli.demo.kill import KilledWorker
from ringleader.cli.demo.ledger import Tally
from ringleader.cli.output import pairs
from ringleader.client import Event, Job, Result

TRAIN_ROWS, HELD_OUT_ROWS = 1437, 360  # of the 1,797 images; the split is ringleader_jobs.digits'
LEAST_ACCURACY = 0.95
PHASES = ("detect_s", "decide_s", "regroup_s", "heal_s", "redo_s")


@dataclass(frozen=True, slots=True)
class Findings:
    """Everything the table shows. `worlds` is the number of workers over the committed steps, each change once."""

    job: Job
    result: Result
    kill: KilledWorker
    tally: Tally
    losses: tuple[Event, ...]
    recoveries: tuple[Event, ...]
    worlds: tuple[int, ...]
    samples_per_s: float
    undisturbed_sha256: str

    @property
    def killed_at(self) -> int:
        """The newest step when the worker died."""
        return (
            int(self.losses[0].data.get("step", self.kill.seen_step)) if self.losses else self.kill.seen_step
        )


def gather(job: Job, result: Result, kill: KilledWorker, folder: Path, undisturbed_sha256: str) -> Findings:
    """Read what the ended job left behind."""
    happened = list(job.events())
    rate = [point.value for point in job.metrics("samples_per_s")]
    batch = int(job.view.spec["batch"]["global_size"])
    entries = ledger.read(job.download("ledger.parquet", folder / "ledger.parquet"))
    return Findings(
        job=job,
        result=result,
        kill=kill,
        tally=ledger.tally(entries, steps=job.view.progress.total_steps or 0, rows=TRAIN_ROWS, batch=batch),
        losses=tuple(e for e in happened if e.type == "worker.lost"),
        recoveries=tuple(e for e in happened if e.type == "recovered"),
        # More points than there are steps: a thinned list could leave out those without the killed worker.
        worlds=changes([int(point.value) for point in job.metrics("world_size", max_points=20_000)]),
        samples_per_s=statistics.median(rate) if rate else 0.0,
        undisturbed_sha256=undisturbed_sha256,
    )


def changes(values: Sequence[int]) -> tuple[int, ...]:
    """The values without repeats in a row."""
    return tuple(value for at, value in enumerate(values) if at == 0 or value != values[at - 1])


def broken_promises(found: Findings) -> list[str]:
    """One sentence for each promise that was not kept."""
    broken = []
    accuracy = found.result.scores.get("accuracy", 0.0)
    if accuracy < LEAST_ACCURACY:
        broken.append(f"the accuracy on held-out rows is {accuracy:.3f}, below {LEAST_ACCURACY}")
    if found.tally.steps_lost or found.result.steps != found.tally.steps:
        broken.append(
            f"{found.tally.steps_lost} of {found.tally.steps} steps are missing, {found.result.steps} ran"
        )
    if found.tally.rows_repeated or found.tally.rows_skipped:
        broken.append(
            f"{found.tally.rows_repeated} rows were repeated and {found.tally.rows_skipped} skipped"
        )
    if found.result.weights_sha256 != found.undisturbed_sha256:
        broken.append(
            f"the weights are {found.result.weights_sha256}, those of a run without a kill {found.undisturbed_sha256}"
        )
    for who, (before, after) in found.kill.survivors.items():
        if before != after:
            broken.append(
                f"the survivor {who} was restarted: its pid was {before} and is now {after or 'none'}"
            )
    world = len(found.kill.before)
    if (
        len(found.worlds) < 3
        or found.worlds[0] != world
        or found.worlds[-1] != world
        or min(found.worlds) >= world
    ):
        broken.append(
            f"no replacement committed a step before the end: the number of workers went {arrows(found.worlds)}"
        )
    return broken


def describe(found: Findings) -> str:
    """Format the findings as a table."""
    kill, count = found.kill, found.tally
    survivors = ", ".join(
        f"{who} pid {before} → {after or 'gone'}" for who, (before, after) in kill.survivors.items()
    )
    shown = {
        "accuracy": f"{found.result.scores.get('accuracy', 0.0):.3f} on {HELD_OUT_ROWS} held-out images, "
        f"not used for training",
        "speed": f"{found.samples_per_s:,.0f} samples/s (median over the steps)",
        "killed": f"{kill.victim.id} (rank {kill.victim.rank}, pid {kill.victim.pid}) at step {found.killed_at} "
        f"of {count.steps}",
        "recovery": "; ".join(map(recovery, found.recoveries)) or "none recorded",
        "steps lost": f"{count.steps_lost} of {count.steps}, counted in the ledger of {count.rows:,} settled rows",
        "rows": f"{count.rows_repeated} repeated, {count.rows_skipped} skipped",
        "survivors": survivors,
        "workers": arrows(found.worlds),
        "same bits": f"{found.result.weights_sha256[:16]}… with the kill, {found.undisturbed_sha256[:16]}… "
        f"in one process without a kill",
        "MLflow run": found.job.view.tracking.url or found.job.view.tracking.run_id or "not exported yet",
        "page": found.job.url,
    }
    return pairs({f"  {name}": value for name, value in shown.items()})


def recovery(event: Event) -> str:
    """One recovery by phase, in milliseconds."""
    spans = {name.removesuffix("_s"): 1000 * float(event.data.get(name, 0.0)) for name in PHASES}
    total = 1000 * float(event.data.get("total_s", 0.0))
    return f"{total:.0f} ms: " + ", ".join(f"{name} {span:.0f}" for name, span in spans.items())


def arrows(worlds: Sequence[int]) -> str:
    return " → ".join(map(str, worlds)) or "nowhere"
