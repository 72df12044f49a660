"""`ringleader top`: all jobs and the cluster at once."""

import sys
import time

import click

from ringleader.cli.output import CommandSession, terminal_width, with_output
from ringleader.cli.terminal.completion import states
from ringleader.cli.terminal.overview import PACED, OverviewReader, columns, heading, rows


@click.command()
@click.option("--once", is_flag=True, help="Print one table and exit, as is done without a terminal.")
@click.option("--state", shell_complete=states, help="Only jobs in this state.")
@click.option("--project", help="Only jobs in this project.")
@with_output
def top(session: CommandSession, *, once: bool, state: str | None, project: str | None) -> None:
    """Watch the jobs and the cluster, refreshed every second.

    Running jobs come first, then those that wait, then those that have ended: the newest 200. Press q to quit, and the
    arrows to scroll.
    """
    # They load Rich, which most commands do without.
    from ringleader.cli.terminal.pager import page
    from ringleader.cli.terminal.screen import Screen

    reader = OverviewReader(session.client(), state=state, project=project)
    screen = Screen(sys.stdout)
    if session.as_json or once or not screen.draws:
        seen = reader.look(time.monotonic())
        body = {"jobs": [view.model_dump(mode="json") for view in seen.jobs], "cluster": seen.cluster}
        # One look knows no pace.
        shown = [name for name in columns(terminal_width()) if name not in PACED]
        session.show(body, lambda: "\n".join([*heading(seen), *rows(seen, shown)]))
    else:
        page(reader, screen)
