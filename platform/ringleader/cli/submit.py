"""Commands that start a job and wait for one: submit, validate, wait."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from ringleader.cli.data import NotInspected, inspect
from ringleader.cli.find import find_job
from ringleader.cli.jobs import framework_text, why_text
from ringleader.cli.output import CommandSession, pairs, with_output
from ringleader.cli.terminal.completion import JOB
from ringleader.cli.terminal.listing import steps
from ringleader.cli.terminal.numbers import SECONDS
from ringleader.client import Job
from ringleader.errors import WaitTimeout
from ringleader.spec import JobSpec
from ringleader.spec.program.entrypoint import with_framework
from ringleader.spec.program.framework import why_other_bits
from ringleader.spec.working_dir import JobFileWarning, check_working_dir, root_of
from ringleader.wire.states import State
from ringleader.wire.views import Why

EXIT_BY_STATE = {State.SUCCEEDED: 0, State.FAILED: 1, State.CANCELLED: 3}
EXIT_TIMED_OUT = 124
EXIT_DETACHED = 130

JOB_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
FOLLOW = click.option("-f", "--follow", "logs", is_flag=True, help="Print the job's log lines until it ends.")
FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)


@click.command()
@click.argument("file", type=JOB_FILE)
@click.option(
    "--working-dir",
    type=FOLDER,
    help="Folder to package and send with the job, instead of the job file's working_dir.",
)
@click.option("--wait", "stay", is_flag=True, help="Wait until the job ends; the exit code says how.")
@FOLLOW
@click.option(
    "--timeout",
    type=SECONDS,
    help="With --wait or --follow: give up waiting after this many seconds.",
)
@click.option("--dry-run", is_flag=True, help="Show whether the job would start now, without submitting it.")
@with_output
def submit(
    session: CommandSession,
    file: Path,
    *,
    working_dir: Path | None,
    stay: bool,
    logs: bool,
    timeout: float | None,
    dry_run: bool,
) -> int:
    """Submit the job FILE."""
    stay = stay or logs
    if timeout is not None and not stay:
        raise click.UsageError("--timeout requires --wait or --follow.")
    if dry_run and stay:
        raise click.UsageError("--dry-run cannot be used together with --wait or --follow.")
    if dry_run:
        with remarks_noted(session):
            answer = session.client().preview(file, working_dir=working_dir)
        shuffling = _shuffling(JobSpec.load(file), answer["logical_shards"])
        answer |= {"shuffling": shuffling} if shuffling else {}
        session.show(answer, lambda: _preview(answer))
        for name, told in shuffling.items():
            for warning in told["warnings"]:
                session.note(f"warning: data.sets {name}: {warning}")
        return 0
    with remarks_noted(session):
        job = session.client().submit(file, working_dir=working_dir)
    chosen = framework_text(job.view.spec)
    if not stay:
        lines = [f"{job.id} {job.state}", job.url, *([f"framework: {chosen}"] if chosen else [])]
        session.show(job.view.model_dump(mode="json"), "\n".join(lines))
        return 0
    if chosen:
        session.note(f"framework: {chosen}")
    session.note(f"{job.id} submitted: {job.url}")
    return await_end(session, job, timeout, logs=logs)


@contextmanager
def remarks_noted(session: CommandSession) -> Iterator[None]:
    """Print the client's warnings on a job file as remarks of the command."""
    with warnings.catch_warnings(record=True) as told:
        # Whatever PYTHONWARNINGS says: they are part of the command's answer.
        warnings.simplefilter("always", JobFileWarning)
        yield
    for warning in told:
        session.note(str(warning.message))


def _shuffling(spec: JobSpec, shards: int) -> dict[str, dict[str, Any]]:
    """By name in `data.sets`, how well the job's order mixes the rows of the files there, and warnings. The files are
    read from here: what only nodes reach is told as such."""
    order = "block" if spec.data.order == "auto" else spec.data.order
    told: dict[str, dict[str, Any]] = {}
    for name, uri in spec.data.sets.items():
        try:
            found = inspect(uri, "", spec.batch.global_size, shards, spec.data.window_blocks)
        except NotInspected as error:
            told[name] = {"mixing": None, "warnings": [f"not looked at from here: {error.message}"]}
            continue
        warned = found["warnings"] if order == "block" else []
        told[name] = {"mixing": found["shuffle_quality"][order]["mixing"], "warnings": warned}
    return told


def _preview(told: dict[str, Any]) -> str:
    """Format the answer that admission would give to a job now."""
    facts = {
        "would start": "now" if told["starts_now"] else "later",
        "would wait because": why_text(Why(**told["pending_reason"]) if told["pending_reason"] else None),
        "logical shards": told["logical_shards"],
        "framework": framework_text(told.get("spec", {})),
        "surplus": told.get("surplus"),
        **{
            f"mixing of {name}": f"{each['mixing']:.2f} of a full shuffle"
            for name, each in told.get("shuffling", {}).items()
            if each["mixing"] is not None
        },
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
    base = file.absolute().parent
    root = root_of(spec, base, working_dir)
    spec = with_framework(spec, root)
    remarks = check_working_dir(spec, root, base)
    told = [f"{file} is valid: {spec.name}, {spec.entrypoint}", told_bits(spec)]
    if spec.framework_why:
        told.append(f"framework: {framework_text(spec.model_dump())}")
    session.show(spec.model_dump(mode="json"), "\n".join(told))
    for remark in remarks:
        session.note(remark)
    return 0


def told_bits(spec: JobSpec) -> str:
    """Whether the weights will depend on who computes what, and the reason."""
    why = why_other_bits(spec.framework, spec.sync)
    return f"reproducible: false ({why})" if why else "reproducible: true"


@click.command()
@JOB
@FOLLOW
@click.option("--timeout", type=SECONDS, help="Give up waiting after this many seconds.")
@with_output
def wait(session: CommandSession, job: str, *, logs: bool, timeout: float | None) -> int:
    """Wait until JOB ends; the exit code says how it ended.

    On a terminal its progress is drawn, otherwise a line is printed at each change of state and every 30 s. Ctrl-C ends
    the waiting, not the job.
    """
    return await_end(session, find_job(session.client(), job), timeout, logs=logs)


def await_end(session: CommandSession, job: Job, timeout: float | None, *, logs: bool) -> int:
    """Wait for the job's end. Exit code 0 succeeded, 1 failed, 3 cancelled, 124 timed out; Ctrl-C detaches."""
    from ringleader.cli.terminal.follow import follow  # loads Rich, which most commands do without

    try:
        follow(session, job, timeout=timeout, logs=logs)
    except WaitTimeout as error:
        session.note(str(error))
        return EXIT_TIMED_OUT
    except KeyboardInterrupt:
        again = f"ringleader wait {job.id}{' --follow' if logs else ''}"
        session.note(
            f"\ndetached; {job.id} keeps running. Wait again with `{again}`, "
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
