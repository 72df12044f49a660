"""Commands that start a job and wait for one: submit, validate, wait."""

import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from ringleader.cli.find import find_job
from ringleader.cli.jobs import steps, why_text
from ringleader.cli.output import CommandSession, pairs, plain, to_terminal, with_output
from ringleader.client import Job
from ringleader.errors import JobFailed, WaitTimeout
from ringleader.spec import JobSpec
from ringleader.spec.working_dir import JobFileWarning, check_working_dir, root_of
from ringleader.wire.states import State
from ringleader.wire.views import Why

EXIT_BY_STATE = {State.SUCCEEDED: 0, State.FAILED: 1, State.CANCELLED: 3}
EXIT_TIMED_OUT = 124
EXIT_DETACHED = 130

JOB_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)
_SHOW_EVERY_S = 0.5


@click.command()
@click.argument("file", type=JOB_FILE)
@click.option(
    "--working-dir",
    type=FOLDER,
    help="Folder to package and send with the job, instead of the job file's working_dir.",
)
@click.option("--wait", "stay", is_flag=True, help="Wait until the job ends; the exit code says how.")
@click.option(
    "--timeout", type=click.FloatRange(min=0), help="With --wait: give up waiting after this many seconds."
)
@click.option("--dry-run", is_flag=True, help="Show whether the job would start now, without submitting it.")
@with_output
def submit(
    session: CommandSession,
    file: Path,
    *,
    working_dir: Path | None,
    stay: bool,
    timeout: float | None,
    dry_run: bool,
) -> int:
    """Submit the job FILE."""
    if timeout is not None and not stay:
        raise click.UsageError("--timeout requires --wait.")
    if dry_run and stay:
        raise click.UsageError("--dry-run and --wait cannot be used together.")
    if dry_run:
        with _remarks_noted(session):
            answer = session.client().preview(file, working_dir=working_dir)
        session.show(answer, lambda: _preview(answer))
        return 0
    with _remarks_noted(session):
        job = session.client().submit(file, working_dir=working_dir)
    if not stay:
        session.show(job.view.model_dump(mode="json"), f"{job.id} {job.state}\n{job.url}")
        return 0
    session.note(f"{job.id} submitted: {job.url}")
    return await_end(session, job, timeout)


@contextmanager
def _remarks_noted(session: CommandSession) -> Iterator[None]:
    """Print the client's warnings on a job file as remarks of the command."""
    with warnings.catch_warnings(record=True) as told:
        # Whatever PYTHONWARNINGS says: they are part of the command's answer.
        warnings.simplefilter("always", JobFileWarning)
        yield
    for warning in told:
        session.note(str(warning.message))


def _preview(told: dict[str, Any]) -> str:
    """Format the answer that admission would give to a job now."""
    facts = {
        "would start": "now" if told["starts_now"] else "later",
        "would wait because": why_text(Why(**told["pending_reason"]) if told["pending_reason"] else None),
        "logical shards": told["logical_shards"],
        "surplus": told.get("surplus"),
        "reproducible": "yes" if told["reproducible"] else f"no: {told['reproducible_why']}",
    }
    return f"{pairs(facts)}\nnothing was submitted."


@click.command()
@click.argument("file", type=JOB_FILE)
@click.option("--working-dir", type=FOLDER, help="Folder that `submit` would package.")
@with_output
def validate(session: CommandSession, file: Path, *, working_dir: Path | None) -> int:
    """Validate the job FILE without submitting it.

    Needs no control plane.
    """
    spec = JobSpec.load(file)
    remarks = check_working_dir(spec, root_of(spec, file.absolute().parent, working_dir))
    session.show(
        spec.model_dump(mode="json"),
        f"{file} is valid: {spec.name}, {spec.entrypoint}\n{told_bits(spec)}",
    )
    for remark in remarks:
        session.note(remark)
    return 0


def told_bits(spec: JobSpec) -> str:
    """Whether the weights will depend on who computes what, and the reason."""
    why = spec.sync.why_other_bits
    return f"reproducible: false ({why})" if why else "reproducible: true"


@click.command()
@click.argument("job")
@click.option("--timeout", type=click.FloatRange(min=0), help="Give up waiting after this many seconds.")
@with_output
def wait(session: CommandSession, job: str, timeout: float | None) -> int:
    """Wait until JOB ends; the exit code says how it ended."""
    return await_end(session, find_job(session.client(), job), timeout)


def await_end(session: CommandSession, job: Job, timeout: float | None) -> int:
    """Wait for the job's end. Exit code 0 succeeded, 1 failed, 3 cancelled, 124 timed out; Ctrl-C detaches."""
    try:
        _wait_showing(session, job, timeout)
    except WaitTimeout as error:
        session.note(str(error))
        return EXIT_TIMED_OUT
    except KeyboardInterrupt:
        session.note(
            f"\ndetached; {job.id} keeps running. Wait again with `ringleader wait {job.id}`, "
            f"or stop it with `ringleader cancel {job.id}`."
        )
        return EXIT_DETACHED
    return conclude(session, job)


def conclude(session: CommandSession, job: Job) -> int:
    """Print how an ended job ended; returns the exit code."""
    if job.state is State.FAILED and not session.as_json:
        job.wait(timeout=0)  # raises JobFailed with reason and last lines
    scores = ", ".join(f"{k} {v:.4g}" for k, v in (job.result.scores if job.result else {}).items())
    session.show(
        job.view.model_dump(mode="json"),
        f"{job.id} {job.state} at step {steps(job.view)}{', ' if scores else ''}{scores}",
    )
    return EXIT_BY_STATE[job.state]


def _wait_showing(session: CommandSession, job: Job, timeout: float | None) -> None:
    """Wait; on a terminal show progress on one line that is overwritten."""
    if not to_terminal():
        _wait_quietly(job, timeout)
        return
    give_up_at = time.monotonic() + timeout if timeout is not None else None
    while not job.state.ended:
        view = job.view
        why = f": {view.pending_reason.message}" if view.pending_reason else ""
        click.echo(
            f"\r\x1b[K{plain(f'{view.state} step {steps(view)} workers {view.world_size}{why}')}",
            nl=False,
            err=True,
        )
        left_s = give_up_at - time.monotonic() if give_up_at is not None else _SHOW_EVERY_S
        try:
            job.wait(timeout=max(0.0, min(_SHOW_EVERY_S, left_s)))
        except WaitTimeout:
            if give_up_at is not None and time.monotonic() >= give_up_at:
                raise
        except JobFailed:
            break  # `conclude` raises it again, once the progress line is cleared
    click.echo("\r\x1b[K", nl=False, err=True)


def _wait_quietly(job: Job, timeout: float | None) -> None:
    try:
        job.wait(timeout)
    except JobFailed:
        return
