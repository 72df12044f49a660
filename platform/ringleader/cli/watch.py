"""Commands that look into a running job: logs, events, workers, metrics."""

from collections.abc import Callable, Iterable
from typing import Any

import click

from ringleader.cli.find import find_job
from ringleader.cli.jobs import gist
from ringleader.cli.output import CommandSession, OutageNotes, log_text, number, table, with_output
from ringleader.cli.submit import EXIT_DETACHED
from ringleader.cli.terminal.completion import JOB
from ringleader.cli.terminal.system_text import USES, use_cells
from ringleader.client import Event, Job
from ringleader.client.records import as_json
from ringleader.errors import RingleaderError


@click.command()
@JOB
@click.option("-f", "--follow", is_flag=True, help="Follow new output until the job ends.")
@with_output
def logs(session: CommandSession, job: str, follow: bool) -> int:
    """Print the logs of JOB's workers."""
    found = find_job(session.client(), job)
    return print_feed(session, found.logs(follow=follow, reached=_noting(session, found)), log_text)


@click.command()
@JOB
@click.option("-f", "--follow", is_flag=True, help="Follow new output until the job ends.")
@with_output
def events(session: CommandSession, job: str, follow: bool) -> int:
    """Print the events of JOB."""
    found = find_job(session.client(), job)
    return print_feed(session, found.events(follow=follow, reached=_noting(session, found)), event_text)


@click.command()
@JOB
@with_output
def workers(session: CommandSession, job: str) -> None:
    """List JOB's workers, and what each uses.

    CPU is in percent of one core. A worker's figures are those of its process and of all that this has started.
    """
    found = find_job(session.client(), job).workers()
    header = ("ID", "ROLE", "RANK", "PID", "NODE", "STATE", "GENERATION", "SHARDS", *USES)
    rows = (
        (
            w.id,
            w.role,
            w.rank,
            w.pid,
            w.address or w.node,
            w.state,
            w.generation,
            _span(w.shards),
            *use_cells(w),
        )
        for w in found
    )
    session.show([as_json(w) for w in found], lambda: table(header, rows, empty="no workers"))


@click.command()
@JOB
@click.argument("name", required=False)
@click.option(
    "--max-points",
    type=click.IntRange(min=4),
    default=40,
    show_default=True,
    help="Maximum number of points.",
)
@with_output
def metrics(session: CommandSession, job: str, name: str | None, max_points: int) -> None:
    """Print the metric NAME of JOB by step, or list its metrics."""
    found = find_job(session.client(), job)
    if name is None:
        names = found.metric_names()
        session.show(names, "\n".join(names) or "no metrics yet")
        return
    points = found.metrics(name, max_points=max_points)
    if not points:
        _there_may_be(found, name)
    header = ("STEP", name.upper(), "GENERATION", "TIME")
    rows = ((p.step, number(p.value), p.generation, f"{p.time:%H:%M:%S}") for p in points)
    session.show(
        [as_json(p) for p in points], lambda: table(header, rows, empty=f"no points of {name!r} yet")
    )


class NoSuchMetric(RingleaderError):
    """The job has ended, and never logged it."""

    code = "metric_not_found"


def _there_may_be(job: Job, name: str) -> None:
    """Raise NoSuchMetric unless `name` may still come, or was logged but has no value that could be sent."""
    names = job.metric_names()
    if job.view.state.ended and name not in names:
        which = f"Its metrics are {', '.join(names)}." if names else "It logged no metrics."
        raise NoSuchMetric(f"job {job.id} has no metric {name!r}.", hint=which)


def print_feed(session: CommandSession, items: Iterable[Any], text: Callable[[Any], str]) -> int:
    """Print one line an item as it comes (JSON lines with -o json); Ctrl-C ends the printing, not the job."""
    try:
        for item in items:
            session.show(as_json(item), text(item))
    except KeyboardInterrupt:
        session.note("\ndetached; the job keeps running.")
        return EXIT_DETACHED
    return 0


def _noting(session: CommandSession, job: Job) -> Callable[[bool], None]:
    return OutageNotes(session.note, job.id).reached


def event_text(event: Event) -> str:
    return f"{event.time:%H:%M:%S} {event.type:<20} {gist(event)}".rstrip()


def _span(shards: tuple[int, int]) -> str:
    start, stop = shards
    return f"{start}-{stop - 1}" if stop > start else ""
