"""A job's run in Weights & Biases: its job file, the metrics of each settled step once, and what became of it."""

import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

from ringleader.client.records import Point
from ringleader.errors import RingleaderError
from ringleader.wire.disclosure import for_strangers
from ringleader.wire.views import JobView

STEPS_AT_ONCE = 5_000
"""The steps that are read in one request a metric: few enough that the API leaves none out."""
EVERY_S = 5.0
NOTHING_OF_HERE: dict[str, Any] = {
    "console": "off",
    "disable_code": True,
    "disable_git": True,
    "x_disable_meta": True,
    "x_disable_stats": True,
    "x_save_requirements": False,
}
"""W&B's settings with which nothing of this machine goes along: the job ran elsewhere."""


class WandbMissing(RingleaderError):
    """The package wandb is not installed."""

    code = "wandb_missing"


class WandbRefused(RingleaderError):
    """Weights & Biases does not take the run."""

    code = "wandb_refused"


class Metered(Protocol):
    """A job whose metrics are sent: `client.job.Job`."""

    view: JobView

    def refresh(self) -> Any: ...

    def metric_names(self) -> list[str]: ...

    def metrics(
        self,
        name: str,
        max_points: int | None = None,
        *,
        first: float | None = None,
        last: float | None = None,
    ) -> list[Point]: ...


def send(
    job: Metered, project: str, entity: str | None, *, folder: str | Path | None = None, follow: bool = False
) -> str:
    """Bring the run up to the job, as `Job.wandb` says."""
    try:
        import wandb
    except ImportError as error:
        raise WandbMissing(
            f"the package wandb is not installed: {error}.",
            hint='Install it with: pip install "ringleader[wandb]".',
        ) from error
    try:
        run = wandb.init(
            entity=entity,
            project=project,
            # The job's id: sent again, it is the same run, and W&B says up to which step it has it.
            id=job.view.id,
            resume="allow",
            name=job.view.name,
            tags=[f"{key}={value}"[:64] for key, value in job.view.labels.items()],
            config=for_strangers(job.view.spec),
            dir=folder,
            settings=wandb.Settings(**NOTHING_OF_HERE),
        )
        bring_up(job, run, every_s=EVERY_S if follow else None)
        run.finish(exit_code=0)
    except wandb.Error as error:
        raise WandbRefused(
            f"Weights & Biases did not take {job.view.id}: {error}",
            hint="Log in with `wandb login`, or set WANDB_MODE=offline to write the run's files here.",
        ) from error
    return str(run.url or Path(run.dir).parent)


def bring_up(job: Metered, run: Any, *, every_s: float | None = None) -> None:
    """Log each settled step that the run does not have. `every_s`: so often, until the job has ended."""
    first = int(run.step)
    while True:
        # Asked before its metrics: what it had settled by its end is among them.
        job.refresh()
        ended = job.view.state.ended
        for step, values in _settled(job, first):
            # W&B drops what comes for an earlier step than its newest: none is there twice.
            run.log(values, step=step)
            first = step + 1
        if ended or every_s is None:
            break
        time.sleep(every_s)
    run.summary.update(_outcome(job))


def _settled(job: Metered, first: int) -> Iterator[tuple[int, dict[str, float]]]:
    """The values of each settled step from `first` on, in order."""
    names = job.metric_names()
    # A step's values are stored together: up to the newest one here, nothing will be added.
    newest = max((points[-1].step for name in names if (points := job.metrics(name, 4))), default=-1)
    for begin in range(first, newest + 1, STEPS_AT_ONCE):
        end = min(begin + STEPS_AT_ONCE - 1, newest)
        steps: dict[int, dict[str, float]] = defaultdict(dict)
        for name in names:
            for point in job.metrics(name, STEPS_AT_ONCE, first=begin, last=end):
                row = steps[point.step]
                # When it was measured, not when it is sent.
                row["_timestamp"] = point.time.timestamp()
                row[name] = point.value
        yield from sorted(steps.items())


def _outcome(job: Metered) -> dict[str, Any]:
    """What became of the job so far, and the scores and the digest of one that has succeeded."""
    view = job.view
    found: dict[str, Any] = {"state": view.state.value, **view.totals.model_dump()}
    if view.reason is not None:
        found["reason"] = f"{view.reason.code}: {view.reason.message}"
    if view.result is not None:
        found["weights_sha256"] = view.result.weights_sha256
        found["reproducible"] = view.result.reproducible
    named = {f"ringleader.{key}": value for key, value in found.items()}
    return {**named, **(view.result.scores if view.result is not None else {})}
