"""Commands on jobs: list, describe, resize, prioritize, pause, resume, cancel, export, delete."""

from collections.abc import Sequence
from pathlib import Path

import click

from ringleader.cli.exchange import exchange_text, way_text
from ringleader.cli.find import find_job
from ringleader.cli.output import CommandSession, ago, number, pairs, table, with_output
from ringleader.client import Event, Job
from ringleader.errors import SpecInvalid
from ringleader.spec import JobSpec
from ringleader.wire.states import State
from ringleader.wire.views import JobView, Totals, Why

LAST_EVENTS = 8
_REASON_OF = {State.PAUSED: "paused because", State.STOPPING: "stopping because"}


@click.command("jobs")
@click.option("--state", help="Only jobs in this state.")
@click.option("--project", help="Only jobs in this project.")
@click.option("--name", help="Only jobs with this name.")
@click.option("--label", metavar="KEY=VALUE", help="Only jobs with this label.")
@with_output
def list_jobs(
    session: CommandSession, state: str | None, project: str | None, name: str | None, label: str | None
) -> None:
    """List jobs, newest first."""
    found = list(session.client().jobs(state=state, project=project, name=name, label=label))
    header = ("ID", "NAME", "STATE", "STEP", "WORKERS", "AGE", "REASON")
    session.show(
        [job.view.model_dump(mode="json") for job in found],
        lambda: table(header, (_row(job.view) for job in found), empty="no jobs"),
    )


@click.command()
@click.argument("job")
@with_output
def describe(session: CommandSession, job: str) -> None:
    """Show the details of JOB."""
    found = find_job(session.client(), job)
    session.show(found.view.model_dump(mode="json"), lambda: _description(found))


@click.command()
@click.argument("job")
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
@click.argument("job")
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
@click.argument("job")
@click.option("--grace-s", type=click.FloatRange(min=0), help="Seconds that the current step gets to finish.")
@with_output
def cancel(session: CommandSession, job: str, grace_s: float | None) -> None:
    """Cancel JOB."""
    found = find_job(session.client(), job).cancel(grace_s)
    session.show(found.view.model_dump(mode="json"), f"{found.id}: {found.state}")


@click.command()
@click.argument("job")
@with_output
def pause(session: CommandSession, job: str) -> None:
    """Checkpoint JOB after its current step and release its workers.

    `ringleader resume` continues it.
    """
    found = find_job(session.client(), job).pause()
    session.show(found.view.model_dump(mode="json"), f"{found.id}: {found.state}")


@click.command()
@click.argument("job")
@with_output
def resume(session: CommandSession, job: str) -> None:
    """Queue a paused JOB again, from its latest checkpoint."""
    found = find_job(session.client(), job).resume()
    session.show(found.view.model_dump(mode="json"), f"{found.id}: {found.state}")


@click.command()
@click.argument("job")
@click.option("--out", required=True, type=click.Path(dir_okay=False, path_type=Path), help="File to write.")
@with_output
def export(session: CommandSession, job: str, out: Path) -> None:
    """Save JOB's weights as a safetensors file.

    These are the final weights, or those of the latest checkpoint.
    """
    found = find_job(session.client(), job)
    path = found.export(out)
    session.show({"id": found.id, "path": str(path)}, f"{found.id}: {path}, {path.stat().st_size} bytes")


@click.command()
@click.argument("job")
@with_output
def delete(session: CommandSession, job: str) -> None:
    """Delete JOB, which must have ended, and its files."""
    found = find_job(session.client(), job)
    found.delete()
    session.show({"id": found.id, "deleted": True}, f"{found.id}: deleted")


def steps(view: JobView) -> str:
    total = view.progress.total_steps
    return f"{view.progress.step}/{total}" if total is not None else str(view.progress.step)


def _row(view: JobView) -> tuple[str, ...]:
    bounds = view.spec.get("workers", {})
    wanted = f"{bounds.get('min', 1)}-{bounds.get('max', 1)}"
    workers = f"{view.world_size} of {wanted}" if not view.state.ended else wanted
    why = view.pending_reason or view.reason
    return (
        view.id,
        view.name,
        view.state,
        steps(view),
        workers,
        ago(view.created_at),
        last_line(why.message) if why else "",
    )


def last_line(message: str) -> str:
    """The last line that is not blank: of a traceback, the exception that was raised."""
    return next((line.strip() for line in reversed(message.splitlines()) if line.strip()), "")


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
        "totals": _totals(view.totals),
        "at risk": "" if view.state.ended else _at_risk(view.progress.step, events),
        "created": f"{view.created_at:%Y-%m-%d %H:%M:%S} ({ago(view.created_at)} ago)",
        "entrypoint": view.spec.get("entrypoint"),
        "surplus": view.surplus,
        "reproducible": _reproducible(view.spec),
        "page": job.url,
        "MLflow run": view.tracking.run_id,
    }
    parts = (pairs(facts), _warnings(events), _exchange(events), _result(job), _recent(events))
    return "\n".join(part for part in parts if part)


def _totals(totals: Totals) -> str:
    """The job's cost over all its attempts, in one line."""
    counts = {"attempt": totals.attempts, "generation": totals.generations, "step": totals.steps_lost}
    attempts, generations, steps_lost = (f"{n} {what}{'' if n == 1 else 's'}" for what, n in counts.items())
    recovered = "1 recovery" if totals.recoveries == 1 else f"{totals.recoveries} recoveries"
    return f"{attempts}, {generations}, {recovered}, {steps_lost} lost, {totals.wall_s:.1f} s of training"


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
    why = spec.sync.why_other_bits
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


def why_text(why: Why | None) -> str:
    return f"{why.message} ({why.code}) {why.hint}".strip() if why else ""
