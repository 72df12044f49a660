"""Completion by the shell: the script that `ringleader completion` prints, and the jobs and sweeps that TAB offers."""

import re
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import islice

import click
from click.shell_completion import CompletionItem, get_completion_class

from ringleader.cli.output import CommandSession
from ringleader.client import Client
from ringleader.wire.states import State

DEADLINE_S = 0.5  # somebody has pressed TAB
MOST = 200  # one page
_NEEDS_NO_QUOTES = re.compile(r"[\w.-]+", re.ASCII)


Known = tuple[str, str, str]
"""Id, name and state of a job or a sweep."""


def known_jobs(client: Client) -> Iterator[Known]:
    return ((job.id, job.view.name, job.state) for job in client.jobs(limit=MOST))


def known_sweeps(client: Client) -> Iterator[Known]:
    return ((sweep.id, sweep.view.name, sweep.view.state) for sweep in client.sweeps.all())


class KnownName(click.types.StringParamType):
    """An argument that means a job or a sweep: an id, the beginning of one, or a name.

    Args:
        known: those that there are, newest first.
        letter: that with which all ids begin.
    """

    def __init__(
        self, known: Callable[[Client], Iterator[Known]], letter: str, deadline_s: float = DEADLINE_S
    ) -> None:
        self._known = known
        self._letter = letter
        self._deadline_s = deadline_s

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """The names and ids that begin so, of the newest; nothing where the control plane does not answer."""
        session = ctx.find_object(CommandSession)
        assert session is not None
        offered: dict[str, str] = {}
        for one_id, name, state in _asked(session.connect, self._known, self._deadline_s):
            offered.setdefault(name, state)
            # All ids begin with these letters: only for those who ask for ids.
            if incomplete[:1] == self._letter:
                offered.setdefault(one_id, f"{name}, {state}")
        return [
            CompletionItem(text, help=state)
            for text, state in offered.items()
            # The shell puts it into the command line as it is.
            if text.startswith(incomplete) and _NEEDS_NO_QUOTES.fullmatch(text)
        ]


JOB_NAME = KnownName(known_jobs, "j")
JOB = click.argument("job", type=JOB_NAME)
SWEEP_NAME = KnownName(known_sweeps, "s")
SWEEP = click.argument("sweep", type=SWEEP_NAME)


def states(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    return [state.value for state in State if state.startswith(incomplete)]


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the script that completes commands, options, jobs and sweeps.

    \b
      eval "$(ringleader completion bash)"      # in ~/.bashrc
      eval "$(ringleader completion zsh)"       # in ~/.zshrc, after compinit
      ringleader completion fish | source       # in ~/.config/fish/config.fish
    """
    kind = get_completion_class(shell)
    assert kind is not None
    program = click.get_current_context().find_root().command
    click.echo(kind(program, {}, "ringleader", "_RINGLEADER_COMPLETE").source())


def _asked(
    connect: Callable[[], Client], known: Callable[[Client], Iterator[Known]], deadline_s: float
) -> list[Known]:
    """The newest of those that there are; none where they are not there in time."""
    found: list[Known] = []

    def ask() -> None:
        # Whatever goes wrong: an error between what somebody types is worse than nothing offered.
        with suppress(Exception), connect() as client:
            for one in islice(known(client), MOST):
                found.append(one)

    # A thread: neither looking up a host nor an answer that trickles in obeys the client's own deadlines.
    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(deadline_s)
    return list(found)
