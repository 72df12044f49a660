"""Commands that start a job and wait for one: submit, validate, wait."""

import time
from pathlib import Path

import click

from ringleader.cli.find import find_job
from ringleader.cli.jobs import steps
from ringleader.cli.output import Session, to_terminal, with_output
from ringleader.client import Job
from ringleader.errors import JobFailed, WaitTimeout
from ringleader.spec import JobSpec
from ringleader.wire.states import State

EXIT_BY_STATE = {State.SUCCEEDED: 0, State.FAILED: 1, State.CANCELLED: 3}
EXIT_TIMED_OUT = 124
EXIT_DETACHED = 130

JOB_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_SHOW_EVERY_S = 0.5


@click.command()
@click.argument("file", type=JOB_FILE)
@click.option(
    "--working-dir", type=click.Path(exists=True, file_okay=False, path_type=Path), help="Folder to pack."
)
@click.option("--wait", "stay", is_flag=True, help="Wait for its end; the exit code tells how it ended.")
@click.option("--timeout", type=click.FloatRange(min=0), help="With --wait: seconds to wait at most.")
@with_output
def submit(session: Session, file: Path, working_dir: Path | None, stay: bool, timeout: float | None) -> int:
    """Submit the job FILE."""
    job = session.client().submit(file, working_dir=working_dir)
    if not stay:
        session.show(job.view.model_dump(mode="json"), f"{job.id} {job.state}\n{job.url}")
        return 0
    session.note(f"{job.id} submitted: {job.url}")
    return await_end(session, job, timeout)


@click.command()
@click.argument("file", type=JOB_FILE)
@with_output
def validate(session: Session, file: Path) -> int:
    """Check the job FILE without submitting it. Needs no control plane."""
    spec = JobSpec.load(file)
    session.show(
        spec.model_dump(mode="json"),
        f"{file} is valid: {spec.name}, {spec.entrypoint}\n{told_bits(spec)}",
    )
    return 0


def told_bits(spec: JobSpec) -> str:
    """Whether the weights will depend on who computes what, and what makes them."""
    why = spec.sync.why_other_bits
    return f"reproducible: false ({why})" if why else "reproducible: true"


@click.command()
@click.argument("job")
@click.option("--timeout", type=click.FloatRange(min=0), help="Seconds to wait at most.")
@with_output
def wait(session: Session, job: str, timeout: float | None) -> int:
    """Wait for JOB's end; the exit code tells how it ended."""
    return await_end(session, find_job(session.client(), job), timeout)


def await_end(session: Session, job: Job, timeout: float | None) -> int:
    """Exit code 0 succeeded, 1 failed, 3 cancelled, 124 timed out; Ctrl-C detaches."""
    try:
        _wait_showing(session, job, timeout)
    except WaitTimeout as error:
        session.note(str(error))
        return EXIT_TIMED_OUT
    except KeyboardInterrupt:
        session.note(
            f"\ndetached: {job.id} goes on. `ringleader wait {job.id}` waits again, `cancel` stops it."
        )
        return EXIT_DETACHED
    return conclude(session, job)


def conclude(session: Session, job: Job) -> int:
    """Print how an ended job ended; returns the exit code."""
    if job.state is State.FAILED and not session.as_json:
        job.wait(timeout=0)  # raises JobFailed with reason and last lines
    scores = ", ".join(f"{k} {v:.4g}" for k, v in (job.result.scores if job.result else {}).items())
    session.show(
        job.view.model_dump(mode="json"),
        f"{job.id} {job.state} at step {steps(job.view)}{', ' if scores else ''}{scores}",
    )
    return EXIT_BY_STATE[job.state]


def _wait_showing(session: Session, job: Job, timeout: float | None) -> None:
    """Wait; on a terminal show progress on one line that is overwritten."""
    if not to_terminal():
        _wait_quietly(job, timeout)
        return
    give_up_at = time.monotonic() + timeout if timeout is not None else None
    while not job.state.ended:
        view = job.view
        why = f": {view.pending_reason.message}" if view.pending_reason else ""
        click.echo(
            f"\r\x1b[K{view.state} step {steps(view)} workers {view.world_size}{why}", nl=False, err=True
        )
        left_s = give_up_at - time.monotonic() if give_up_at is not None else _SHOW_EVERY_S
        try:
            job.wait(timeout=max(0.0, min(_SHOW_EVERY_S, left_s)))
        except WaitTimeout:
            if give_up_at is not None and time.monotonic() >= give_up_at:
                raise
        except JobFailed:
            break
    click.echo("\r\x1b[K", nl=False, err=True)


def _wait_quietly(job: Job, timeout: float | None) -> None:
    try:
        job.wait(timeout)
    except JobFailed:
        return
