"""Completion by the shell: the script that `ringleader completion` prints, and the jobs that TAB offers."""

import re
import threading
from collections.abc import Callable
from contextlib import suppress
from itertools import islice

import click
from click.shell_completion import CompletionItem, get_completion_class

from ringleader.cli.output import CommandSession
from ringleader.client import Client
from ringleader.wire.states import State

DEADLINE_S = 0.5  # somebody has pressed TAB
MOST_JOBS = 200  # one page
_NEEDS_NO_QUOTES = re.compile(r"[\w.-]+", re.ASCII)


class JobName(click.types.StringParamType):
    """An argument that means a job: an id, the beginning of one, or a name."""

    def __init__(self, deadline_s: float = DEADLINE_S) -> None:
        self._deadline_s = deadline_s

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """The names and ids that begin so, of the newest jobs; nothing where the control plane does not answer."""
        session = ctx.find_object(CommandSession)
        assert session is not None
        offered: dict[str, str] = {}
        for job_id, name, state in _asked(session.connect, self._deadline_s):
            offered.setdefault(name, state)
            # All ids begin with these letters: only for those who ask for ids.
            if incomplete[:1] == "j":
                offered.setdefault(job_id, f"{name}, {state}")
        return [
            CompletionItem(text, help=state)
            for text, state in offered.items()
            # The shell puts it into the command line as it is.
            if text.startswith(incomplete) and _NEEDS_NO_QUOTES.fullmatch(text)
        ]


JOB = click.argument("job", type=JobName())


def states(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    return [state.value for state in State if state.startswith(incomplete)]


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the script that completes commands, options and jobs.

    \b
      eval "$(ringleader completion bash)"      # in ~/.bashrc
      eval "$(ringleader completion zsh)"       # in ~/.zshrc, after compinit
      ringleader completion fish | source       # in ~/.config/fish/config.fish
    """
    kind = get_completion_class(shell)
    assert kind is not None
    program = click.get_current_context().find_root().command
    click.echo(kind(program, {}, "ringleader", "_RINGLEADER_COMPLETE").source())


def _asked(connect: Callable[[], Client], deadline_s: float) -> list[tuple[str, str, str]]:
    """Id, name and state of the newest jobs; none where they are not there in time."""
    found: list[tuple[str, str, str]] = []

    def ask() -> None:
        # Whatever goes wrong: an error between what somebody types is worse than nothing offered.
        with suppress(Exception), connect() as client:
            for job in islice(client.jobs(limit=MOST_JOBS), MOST_JOBS):
                found.append((job.id, job.view.name, job.state))

    # A thread: neither looking up a host nor an answer that trickles in obeys the client's own deadlines.
    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(deadline_s)
    return list(found)
