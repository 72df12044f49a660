"""Commands on alerts: what was sent, and the rules of projects."""

from collections.abc import Iterable
from itertools import islice
from pathlib import Path

import click

from ringleader.cli.find import find_job
from ringleader.cli.output import CommandSession, ago, table, with_output
from ringleader.spec.alerts import AlertTerms
from ringleader.spec.yaml_file import Unreadable, read
from ringleader.wire.alerts import AlertState, AlertView

PROJECT = click.option("--project", default="default", show_default=True, help="The project of the rule.")


@click.group(invoke_without_command=True)
@click.pass_context
def alerts(context: click.Context) -> None:
    """Show alerts; set, test and delete the rules of a project.

    Without a sub-command it lists alerts.
    """
    if context.invoked_subcommand is None:
        context.invoke(list_alerts)


@alerts.command("list")
@click.option("--job", help="Only alerts of this job.")
@click.option("--project", help="Only alerts of this project.")
@click.option(
    "--state", type=click.Choice([state.value for state in AlertState]), help="Only alerts in this state."
)
@click.option(
    "--limit", type=click.IntRange(min=1), default=50, show_default=True, help="Maximum number of alerts."
)
@with_output
def list_alerts(
    session: CommandSession, job: str | None, project: str | None, state: str | None, limit: int
) -> None:
    """List alerts and whether they were sent, newest first."""
    client = session.client()
    job_id = find_job(client, job).id if job is not None else None
    log = client.alerts.history(job=job_id, project=project, state=state, page=min(limit, 200))
    _show(session, list(islice(log, limit)))


@alerts.command("rules")
@PROJECT
@with_output
def list_rules(session: CommandSession, project: str) -> None:
    """List the alert rules of a project."""
    found = session.client().alerts.rules(project)
    rows = [
        (
            rule.name,
            _condition(rule),
            ", ".join(one.target for one in rule.channels),
            rule.set_by,
            ago(rule.set_at),
        )
        for rule in found
    ]
    session.show(
        [rule.model_dump(mode="json", exclude_none=True) for rule in found],
        lambda: table(("NAME", "WHEN", "CHANNELS", "SET BY", "AGE"), rows, empty="no rules"),
    )


@alerts.command("set")
@click.argument("name")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@PROJECT
@with_output
def set_rule(session: CommandSession, name: str, file: Path, project: str) -> None:
    """Set or replace the alert rule NAME.

    FILE is YAML with the keys `when` and `channels`, as a rule of a job file has them.
    """
    try:
        terms = read(file)
    except Unreadable as error:
        raise click.BadParameter(str(error)) from None
    if not isinstance(terms, dict) or set(terms) != {"when", "channels"}:
        raise click.BadParameter(f"{file} has to be a mapping with the keys when and channels.")
    made = session.client().alerts.set_rule(project, name, **terms)
    for warning in made.warnings:
        session.note(f"warning: {warning}")
    session.show(made.model_dump(mode="json", exclude_none=True), f"{project}/{name}: set")


@alerts.command("test")
@click.argument("name")
@PROJECT
@with_output
def test_rule(session: CommandSession, name: str, project: str) -> None:
    """Send a test to each channel of the alert rule NAME.

    `ringleader alerts` shows what became of it.
    """
    _show(session, session.client().alerts.test_rule(project, name))


@alerts.command("delete")
@click.argument("name")
@PROJECT
@with_output
def delete_rule(session: CommandSession, name: str, project: str) -> None:
    """Delete the alert rule NAME."""
    session.client().alerts.drop_rule(project, name)
    session.show({"project": project, "name": name}, f"{project}/{name}: deleted")


def _show(session: CommandSession, found: Iterable[AlertView]) -> None:
    shown = list(found)
    header = ("AGE", "STATE", "RULE", "MESSAGE", "CHANNEL", "TRIES", "ERROR")
    rows = [
        (ago(one.at), one.state.value, one.rule, one.message, one.target, str(one.tries), one.error)
        for one in shown
    ]
    session.show(
        [one.model_dump(mode="json") for one in shown], lambda: table(header, rows, empty="no alerts")
    )


def _condition(rule: AlertTerms) -> str:
    """`metric=loss above=10 steps=3`."""
    given = rule.when.model_dump(exclude_none=True, exclude_defaults=True)
    return " ".join(
        f"{key}={value:g}" if isinstance(value, float) else f"{key}={value}" for key, value in given.items()
    )
