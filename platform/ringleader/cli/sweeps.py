"""Commands on sweeps: `sweep FILE`, and `sweeps` with list, show, pause, resume, cancel."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from ringleader.cli.output import CommandSession, ago, number, pairs, table, with_output
from ringleader.cli.submit import EXIT_DETACHED, FOLDER, JOB_FILE, remarks_noted
from ringleader.cli.terminal.completion import SWEEP
from ringleader.client import Sweep
from ringleader.spec.sweep import ID_LABEL
from ringleader.wire.sweeps import SweepPreview, SweepState, SweepView, TrialView

EXIT_BY_STATE = {SweepState.SUCCEEDED: 0, SweepState.FAILED: 1, SweepState.CANCELLED: 3}


@click.command()
@click.argument("file", type=JOB_FILE)
@click.option(
    "--working-dir",
    type=FOLDER,
    help="Folder to package, instead of the working_dir of the sweep's template.",
)
@click.option("--dry-run", is_flag=True, help="Show the first trials without creating the sweep.")
@click.option(
    "-f", "--follow", is_flag=True, help="Print its progress until it ends; the exit code says how."
)
@with_output
def sweep(
    session: CommandSession, file: Path, *, working_dir: Path | None, dry_run: bool, follow: bool
) -> int:
    """Submit the sweep FILE: many trials of one job file."""
    if dry_run and follow:
        raise click.UsageError("--dry-run cannot be used together with --follow.")
    with remarks_noted(session):
        if dry_run:
            told = session.client().sweeps.preview(file, working_dir)
            session.show(told.model_dump(mode="json"), lambda: _preview(told))
            return 0
        made = session.client().sweep(file, working_dir)
    if not follow:
        session.show(made.view.model_dump(mode="json"), f"{made.id} {made.view.state}\n{made.url}")
        return 0
    session.note(f"{made.id} submitted: {made.url}")
    return _follow(session, made)


@click.group(invoke_without_command=True)
@click.pass_context
def sweeps(context: click.Context) -> None:
    """List, show, pause, resume and cancel sweeps.

    Without a sub-command it lists them.
    """
    if context.invoked_subcommand is None:
        context.invoke(list_sweeps)


@sweeps.command("list")
@with_output
def list_sweeps(session: CommandSession) -> None:
    """List sweeps, newest first."""
    found = [one.view for one in session.client().sweeps.all()]
    header = ("ID", "NAME", "STATE", "TRIALS", "ENDED", "BEST", "SCORE", "AGE")
    rows = (
        (v.id, v.name, v.state, v.trials, v.ended, v.best, number(v.best_score), ago(v.created_at))
        for v in found
    )
    session.show([v.model_dump(mode="json") for v in found], lambda: table(header, rows, empty="no sweeps"))


@sweeps.command("show")
@SWEEP
@with_output
def show(session: CommandSession, sweep: str) -> None:
    """Show SWEEP and its trials, the best first."""
    found = session.client().sweeps.find(sweep)
    trials = found.trials()
    value = {**found.view.model_dump(mode="json"), "leaderboard": [t.model_dump(mode="json") for t in trials]}
    session.show(value, lambda: f"{_facts(found)}\n\n{_leaderboard(trials)}")


@sweeps.command("pause")
@SWEEP
@with_output
def pause(session: CommandSession, sweep: str) -> None:
    """Pause SWEEP and its jobs.

    `ringleader sweeps resume` continues it.
    """
    _told(session, session.client().sweeps.find(sweep).pause())


@sweeps.command("resume")
@SWEEP
@with_output
def resume(session: CommandSession, sweep: str) -> None:
    """Continue a paused SWEEP."""
    _told(session, session.client().sweeps.find(sweep).resume())


@sweeps.command("cancel")
@SWEEP
@with_output
def cancel(session: CommandSession, sweep: str) -> None:
    """Cancel SWEEP and its jobs."""
    _told(session, session.client().sweeps.find(sweep).cancel())


def _told(session: CommandSession, found: Sweep) -> None:
    session.show(found.view.model_dump(mode="json"), f"{found.id}: {found.view.state}")


def _follow(session: CommandSession, made: Sweep) -> int:
    """Print a line at each change; Ctrl-C detaches."""
    before = ""
    try:
        for view in made.watch():
            line = _progress(view)
            if line != before and not session.as_json:
                session.note(line)
            before = line
    except KeyboardInterrupt:
        session.note(f"\ndetached; {made.id} goes on. Look at it with `ringleader sweeps show {made.id}`.")
        return EXIT_DETACHED
    session.show(
        made.view.model_dump(mode="json"), lambda: f"{_facts(made)}\n\n{_leaderboard(made.trials())}"
    )
    return EXIT_BY_STATE[made.view.state]


def _progress(view: SweepView) -> str:
    best = "" if view.best is None else f", best: trial {view.best} with {number(view.best_score)}"
    return f"{view.name} {view.state}: {view.submitted} of {view.trials} trials submitted, {view.ended} ended{best}"


def _facts(found: Sweep) -> str:
    view = found.view
    metric = view.spec["metric"]
    return pairs(
        {
            "id": view.id,
            "name": view.name,
            "state": view.state,
            "reason": view.reason.message if view.reason else None,
            "metric": f"{metric['name']} ({metric.get('goal', 'minimize')})",
            "trials": f"{view.trials}, {view.submitted} submitted, {view.ended} ended",
            "rungs": ", ".join(map(str, view.rungs)),
            "best": None if view.best is None else f"trial {view.best}: {number(view.best_score)}",
            "jobs": f"ringleader jobs --label {ID_LABEL}={view.id}",
            "page": found.url,
        }
    )


def _leaderboard(trials: list[TrialView]) -> str:
    header = ("TRIAL", "STATE", "STEP", "SCORES", "POINT", "JOB")
    rows = (
        (t.number, t.state, t.step, " ".join(map(number, t.scores)), _point(t.point), t.job) for t in trials
    )
    return table(header, rows)


def _preview(told: SweepPreview) -> str:
    facts = {
        "trials": told.trials,
        "rungs": ", ".join(map(str, told.rungs)),
        "first trial would start": "now" if told.starts_now else "later",
        "because": told.pending_reason.message if told.pending_reason else None,
    }
    points = "\n".join(f"  {n}: {_point(point)}" for n, point in enumerate(told.points))
    return f"{pairs(facts)}\npoints\n{points}\nnothing was submitted."


def _point(point: Mapping[str, Any] | None) -> str:
    return " ".join(f"{key}={json.dumps(value)}" for key, value in (point or {}).items())
