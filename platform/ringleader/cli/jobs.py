"""Commands on jobs: list, describe, resize, prioritize, label, pause, resume, cancel, export, delete."""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from ringleader.cli.find import find_job
from ringleader.cli.output import CommandSession, ago, number, pairs, table, with_output
from ringleader.cli.terminal.completion import JOB, JOB_NAME, states
from ringleader.cli.terminal.exchange_text import exchange_text, way_text
from ringleader.cli.terminal.listing import groups_text, jobs_text, steps
from ringleader.cli.terminal.numbers import SECONDS
from ringleader.cli.terminal.system_text import uses_text
from ringleader.client import Event, Job
from ringleader.errors import SpecInvalid
from ringleader.spec import JobSpec
from ringleader.spec.program.framework import HOSTED, chosen_in, why_other_bits
from ringleader.wire.artifacts import report_name
from ringleader.wire.states import State
from ringleader.wire.views import Totals, Why

LAST_EVENTS = 8
PLACE = "A step, seconds since the start, or a time: Unix seconds or 2026-11-20T12:00, in UTC."
_REASON_OF = {State.PAUSED: "paused because", State.STOPPING: "stopping because"}


@click.command("jobs")
@click.option("--state", shell_complete=states, help="Only jobs in this state.")
@click.option("--project", help="Only jobs in this project.")
@click.option("--name", help="Only jobs with this name.")
@click.option("--owner", help="Only jobs of this user.")
@click.option("--label", multiple=True, metavar="KEY=VALUE", help="Only jobs with this label; repeatable.")
@click.option(
    "--param", multiple=True, metavar="KEY=VALUE", help="Only jobs with this parameter; repeatable."
)
@click.option("--search", metavar="TEXT", help="Only jobs with this text in their ID, name or labels.")
@click.option(
    "--sort",
    metavar="ORDER",
    help="Order: submitted_at, name, state, owner, project, priority, finished_at, duration, step, workers, attempt, "
    "metric:NAME:last (or min, max), param:KEY or label:KEY; with a leading - in descending order.",
)
@click.option(
    "--metric",
    "metrics",
    multiple=True,
    metavar="NAME",
    help="Show the latest value of this metric; with --group-by also the lowest and highest; repeatable.",
)
@click.option(
    "--group-by",
    metavar="label:KEY|param:KEY",
    help="Count the jobs of each value of this label or parameter, the greatest groups first.",
)
@with_output
def list_jobs(
    session: CommandSession, /, metrics: tuple[str, ...], group_by: str | None, **wanted: Any
) -> None:
    """List jobs, newest first or in the order of --sort, or groups of them."""
    if group_by is not None:
        if wanted.pop("sort") is not None:
            raise click.UsageError("--sort orders jobs; groups come by their size. Leave --sort out.")
        groups = session.client().job_groups(group_by, metrics=metrics, **wanted)
        session.show(groups.model_dump(mode="json"), lambda: groups_text(groups, group_by, metrics))
        return
    found = [job.view for job in session.client().jobs(metrics=metrics, **wanted)]
    session.show([view.model_dump(mode="json") for view in found], lambda: jobs_text(found, metrics))


@click.command()
@JOB
@with_output
def describe(session: CommandSession, job: str) -> None:
    """Show the details of JOB."""
    found = find_job(session.client(), job)
    session.show(found.view.model_dump(mode="json"), lambda: _description(found))


@click.command()
@JOB
@click.option("--min", "workers_min", type=click.IntRange(min=1), help="New minimum number of workers.")
@click.option("--max", "workers_max", type=click.IntRange(min=1), help="New maximum number of workers.")
@with_output
def resize(session: CommandSession, job: str, workers_min: int | None, workers_max: int | None) -> None:
    """Change JOB's minimum and maximum number of workers.

    A running job is resized after its current step, without a restart.
    """
    if workers_min is None and workers_max is None:
        raise click.UsageError("expected --min, --max or both.")
    found = find_job(session.client(), job).resize(min=workers_min, max=workers_max)
    bounds = found.view.spec.get("workers", {})
    session.show(
        found.view.model_dump(mode="json"),
        f"{found.id}: resizing to {bounds.get('min')}-{bounds.get('max')} workers",
    )


@click.command()
@JOB
@click.argument("priority", type=int)
@with_output
def prioritize(session: CommandSession, job: str, priority: int) -> None:
    """Change the PRIORITY of JOB.

    Waiting jobs with a higher priority start first. Write -- before a negative number. A priority above 0 requires the
    role operator.
    """
    found = find_job(session.client(), job).prioritize(priority)
    session.show(found.view.model_dump(mode="json"), f"{found.id}: priority {priority}")


@click.command()
@JOB
@click.argument("labels", nargs=-1, required=True, metavar="KEY=VALUE|KEY-...")
@with_output
def label(session: CommandSession, job: str, labels: tuple[str, ...]) -> None:
    """Set labels of JOB with KEY=VALUE, remove one with KEY-.

    Other labels stay as they are. A job that has ended can be labelled, too.
    """
    found = find_job(session.client(), job).label(dict(map(_label, labels)))
    told = ", ".join(f"{key}={value}" for key, value in found.view.labels.items()) or "no labels"
    session.show(found.view.model_dump(mode="json"), f"{found.id}: {told}")


@click.command()
@JOB
@click.option("--grace-s", type=SECONDS, help="Seconds that the current step gets to finish.")
@with_output
def cancel(session: CommandSession, job: str, grace_s: float | None) -> None:
    """Cancel JOB."""
    found = find_job(session.client(), job).cancel(grace_s)
    session.show(found.view.model_dump(mode="json"), f"{found.id}: {found.state}")


@click.command()
@JOB
@with_output
def pause(session: CommandSession, job: str) -> None:
    """Checkpoint JOB after its current step and release its workers.

    `ringleader resume` continues it.
    """
    found = find_job(session.client(), job).pause()
    session.show(found.view.model_dump(mode="json"), f"{found.id}: {found.state}")


@click.command()
@JOB
@with_output
def resume(session: CommandSession, job: str) -> None:
    """Queue a paused JOB again, from its latest checkpoint."""
    found = find_job(session.client(), job).resume()
    session.show(found.view.model_dump(mode="json"), f"{found.id}: {found.state}")


@click.command()
@JOB
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="File to write the weights to.")
@click.option(
    "--tensorboard",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Folder to write the metrics to, as an event file in a folder of JOB's own.",
)
@click.option(
    "--wandb",
    metavar="[ENTITY/]PROJECT",
    help="Project of Weights & Biases to send the metrics to, as you are logged in there.",
)
@click.option("--follow", is_flag=True, help="With --wandb: send steps as they settle, until JOB has ended.")
@with_output
def export(
    session: CommandSession,
    job: str,
    *,
    out: Path | None,
    tensorboard: Path | None,
    wandb: str | None,
    follow: bool,
) -> None:
    """Save JOB's weights, or its metrics for TensorBoard or W&B.

    Weights are saved as a safetensors file: the final weights, or those of the latest checkpoint. Repeated exports of
    metrics do not duplicate steps.
    """
    if [out, tensorboard, wandb].count(None) != 2:
        raise click.UsageError(
            "expected one of --out, for the weights, and --tensorboard and --wandb, for the metrics."
        )
    if follow and wandb is None:
        raise click.UsageError("--follow goes with --wandb.")
    found = find_job(session.client(), job)
    if wandb is not None:
        entity, _, project = wandb.rpartition("/")
        run = found.wandb(project, entity or None, follow=follow)
        session.show({"id": found.id, "run": run}, f"{found.id}: {run}")
        return
    ways = [(Job.export, out), (Job.tensorboard, tensorboard)]
    (path,) = [save(found, place) for save, place in ways if place is not None]
    session.show({"id": found.id, "path": str(path)}, f"{found.id}: {path}, {path.stat().st_size} bytes")


@click.command()
@click.argument("jobs", nargs=-1, required=True, metavar="JOB...", type=JOB_NAME)
@click.option(
    "--metric",
    "metrics",
    multiple=True,
    metavar="NAME",
    help="Compare this metric; repeatable. Default: all.",
)
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="File to write.")
@click.option(
    "--x",
    "axis",
    type=click.Choice(["step", "wall", "relative"]),
    default="step",
    help="Draw curves by steps (the default), the time of day, or the time since each job started.",
)
@click.option("--from", "first", metavar="X", help=f"Draw curves from here. {PLACE}")
@click.option("--to", "last", metavar="X", help="Draw curves up to here.")
@with_output
def report(
    session: CommandSession,
    jobs: tuple[str, ...],
    *,
    metrics: tuple[str, ...],
    out: Path | None,
    axis: str,
    first: str | None,
    last: str | None,
) -> None:
    """Save JOB, or several side by side, as one HTML file.

    The file needs no other and runs no script: send it to anyone. Default: report-JOB.html, or comparison-….html with
    the ends of the jobs' IDs for several.
    """
    client = session.client()
    ends = [None if text is None else _place(text, axis) for text in (first, last)]
    found = [find_job(client, job) for job in jobs]
    ids = list(dict.fromkeys(job.id for job in found))
    path = out or Path(report_name(ids))
    if len(ids) > 1:
        client.report(ids, path, *metrics, axis=axis, first=ends[0], last=ends[1])
    elif metrics:
        raise click.UsageError(
            "--metric chooses what several jobs are compared by; the report of one has all."
        )
    else:
        found[0].report(path, axis=axis, first=ends[0], last=ends[1])
    session.show({"ids": ids, "path": str(path)}, f"{path}, {path.stat().st_size} bytes")


@click.command()
@JOB
@with_output
def delete(session: CommandSession, job: str) -> None:
    """Delete JOB, which must have ended, and its files."""
    found = find_job(session.client(), job)
    found.delete()
    session.show({"id": found.id, "deleted": True}, f"{found.id}: deleted")


def _place(text: str, axis: str) -> float:
    """A place on the axis: a number, or with `wall` a time."""
    try:
        return float(text)
    except ValueError:
        if axis != "wall":
            raise click.UsageError(f"{text!r} is no number. {PLACE}") from None
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise click.UsageError(f"{text!r} is neither a number nor a time. {PLACE}") from None
    return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()


def _label(text: str) -> tuple[str, str | None]:
    key, sign, value = text.partition("=")
    if not sign and not text.endswith("-"):
        raise click.UsageError(f"{text!r} is not KEY=VALUE, which sets a label, or KEY-, which removes it.")
    return (key, value) if sign else (text.removesuffix("-"), None)


def _description(job: Job) -> str:
    view = job.view
    events = list(job.events())
    facts = {
        "id": view.id,
        "name": view.name,
        "project": view.project,
        "labels": ", ".join(f"{k}={v}" for k, v in view.labels.items()),
        "state": view.state,
        "waiting because" if view.state == State.QUEUED else "problem": why_text(view.pending_reason),
        _REASON_OF.get(view.state, "ended because"): why_text(view.reason),
        "step": steps(view),
        "epoch": view.progress.epoch,
        "workers": f"{view.world_size} now, generation {view.generation}, attempt {view.attempt}",
        "failures": f"{view.failures.spent} of {view.failures.max} spent",
        "totals": _totals(view.totals, hosted=view.spec.get("framework") in HOSTED),
        "at risk": "" if view.state.ended else _at_risk(view.progress.step, events),
        "created": f"{view.created_at:%Y-%m-%d %H:%M:%S} ({ago(view.created_at)} ago)",
        "entrypoint": view.spec.get("entrypoint"),
        "framework": framework_text(view.spec),
        "surplus": view.surplus,
        "reproducible": _reproducible(view.spec),
        "page": job.url,
        "MLflow run": view.tracking.run_id,
    }
    uses = "" if view.state.ended else uses_text(job.workers())
    parts = (pairs(facts), _warnings(events), uses, _exchange(events), _result(job), _recent(events))
    return "\n".join(part for part in parts if part)


def _totals(totals: Totals, *, hosted: bool) -> str:
    """The job's cost over all its attempts, in one line."""
    counts = {"attempt": totals.attempts, "generation": totals.generations, "step": totals.steps_lost}
    attempts, generations, steps_lost = (f"{n} {what}{'' if n == 1 else 's'}" for what, n in counts.items())
    recovered = "1 recovery" if totals.recoveries == 1 else f"{totals.recoveries} recoveries"
    lost = "steps lost: only the program knows" if hosted else f"{steps_lost} lost"
    return f"{attempts}, {generations}, {recovered}, {lost}, {totals.wall_s:.1f} s of training"


def _at_risk(step: int, events: list[Event]) -> str:
    """The steps that a loss of all workers at once would cost; empty where it would cost none."""
    saved = [event for event in events if event.type == "checkpoint.saved"]
    newest = max((int(event.data["step"]) for event in saved), default=0)
    if step <= newest:
        return ""
    since = f"since the checkpoint {ago(saved[-1].time)} ago" if saved else "without a checkpoint"
    return f"{step - newest} steps {since}"


def _reproducible(source: dict[str, object]) -> str:
    """Whether the weights will depend on who computes what; nothing where this version does not know the job file."""
    try:
        spec = JobSpec.parse(source)
    except SpecInvalid:
        return ""
    why = why_other_bits(spec.framework, spec.sync)
    return f"no: {why}" if why else "yes"


def _warnings(events: list[Event]) -> str:
    """Warnings on requests that are not met, or on what will fail: each once, whichever attempt gave it."""
    told = dict.fromkeys(_warning(event) for event in events if event.type == "warning")
    return "\n".join(["\nwarnings", *(f"  {line}" for line in told)]) if told else ""


def _warning(event: Event) -> str:
    return " ".join(filter(None, (str(event.data["message"]), event.data.get("hint"))))


def _exchange(events: list[Event]) -> str:
    """The schedule that sums each group of buckets, as the newest worker of rank 0 reported it."""
    chosen = next((event for event in reversed(events) if event.type == "exchange.chosen"), None)
    return exchange_text(chosen.data, chosen.generation) if chosen is not None else ""


def _result(job: Job) -> str:
    if job.result is None:
        return ""
    result = job.result
    shown = {
        "loss": number(result.loss),
        **{name: number(score) for name, score in result.scores.items()},
        "samples": result.samples,
        "wall": f"{result.wall_s:.1f} s (compute {result.compute_s:.1f}, exposed communication "
        f"{result.exposed_communication_s:.1f}, idle {result.idle_s:.1f}, recovery {result.recovery_s:.2f})",
        "reproducible": "yes" if result.reproducible else f"no: {result.reproducible_why}",
        "staleness": _histogram(result.staleness),
        "skipped updates": result.skipped_updates or "",
        "weights": f"sha256 {result.weights_sha256}",
    }
    return "\nresult\n" + pairs({f"  {k}": v for k, v in shown.items()})


def _histogram(counts: Sequence[int]) -> str:
    """`0: 120, 1: 34`; the last bin holds all beyond."""
    last = len(counts) - 1
    return ", ".join(f"{k}{'+' if k == last else ''}: {count}" for k, count in enumerate(counts) if count)


def _recent(events: list[Event]) -> str:
    last = events[-LAST_EVENTS:]
    rows = [(e.time.strftime("%H:%M:%S"), e.generation, e.type, gist(e)) for e in last]
    return "\nlast events\n" + table(("TIME", "GENERATION", "EVENT", "DETAILS"), rows) if rows else ""


def gist(event: Event) -> str:
    """The event in one line."""
    if event.type == "exchange.chosen":
        return ", ".join(way_text(way) for way in event.data["ways"])
    if event.type == "warning":
        return _warning(event)
    return facts(event.data)


def facts(data: dict[str, object]) -> str:
    """Event data in one line."""
    return " ".join(
        f"{k}={number(v) if isinstance(v, float) else v}" for k, v in data.items() if v is not None
    )


def framework_text(spec: dict[str, object]) -> str:
    """The framework that `auto` was chosen as, and why; nothing where the job file names one."""
    chosen = chosen_in(spec)
    return f"{chosen['framework']}, chosen because {chosen['framework_why']}" if chosen else ""


def why_text(why: Why | None) -> str:
    return f"{why.message} ({why.code}) {why.hint}".strip() if why else ""
