"""The `ringleader` command: its sub-commands, exit codes, and errors without tracebacks."""

import os
import sys
from collections.abc import Callable, Sequence

import click

from ringleader.cli import access, alerts, bench, chaos, check, cluster, data, jobs, submit, sweeps, up, watch
from ringleader.cli.output import CommandSession, complain, connect
from ringleader.cli.terminal import completion, top
from ringleader.client import Client
from ringleader.errors import ApiProblem, PackageRefused, RingleaderError, SpecInvalid

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130


SECTIONS: dict[str, tuple[click.Command, ...]] = {
    "Local stack": (up.up, up.down, up.status, up.run),
    "Submit jobs": (submit.validate, check.check, data.data, submit.submit, submit.wait),
    "Inspect jobs": (
        *(jobs.list_jobs, top.top, jobs.describe),
        *(watch.logs, watch.events, watch.workers, watch.metrics, jobs.report, alerts.alerts),
    ),
    "Manage jobs": (
        *(jobs.resize, jobs.pause, jobs.resume, jobs.prioritize),
        *(jobs.label, jobs.cancel, jobs.export, jobs.delete),
    ),
    "Sweeps": (sweeps.sweep, sweeps.sweeps),
    "Cluster": (cluster.login, cluster.cluster, cluster.version),
    "Access": (access.whoami, access.token, access.user, access.project, access.secret, access.audit),
    "Shell": (completion.completion,),
    "Testing": (chaos.chaos, bench.bench),
}
"""All commands, as `ringleader --help` groups and orders them."""


class SectionedGroup(click.Group):
    """A group of commands whose help lists them by section."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        # Over all sections: click aligns each list by its own rows.
        longest = max(map(len, self.commands))
        for section, commands in SECTIONS.items():
            with formatter.section(section):
                rows = [
                    (str(command.name).ljust(longest), command.get_short_help_str(formatter.width))
                    for command in commands
                ]
                formatter.write_dl(rows)


@click.group(cls=SectionedGroup, context_settings={"help_option_names": ["-h", "--help"]})
def cli() -> None:
    """Elastic distributed training on Ray.

    JOB is a job's id, a unique prefix of its id, or its name (of several jobs with that name, the newest). FILE is a
    job file in YAML.

    \b
      ringleader up --detach        # start a local stack
      ringleader submit job.yaml    # submit a job
      ringleader logs -f JOB        # follow its logs
      ringleader resize JOB --max 8 # let it grow to 8 workers

    Exit codes: 0 succeeded, 1 failed, 2 wrong usage or invalid job file, 3 job cancelled, 124 wait timed out, 130
    interrupted by Ctrl-C.
    """


for _command in (command for section in SECTIONS.values() for command in section):
    cli.add_command(_command)


def main(arguments: Sequence[str] | None = None, connect: Callable[[], Client] = connect) -> int:
    """Run one command; returns the exit code."""
    session = CommandSession(connect)
    try:
        code = cli.main(
            args=None if arguments is None else list(arguments),
            prog_name="ringleader",
            # Else click would print errors and exit by itself: codes and JSON errors are decided below.
            standalone_mode=False,
            obj=session,
        )
        return int(code or 0)
    except click.ClickException as error:
        error.show()
        return EXIT_USAGE if isinstance(error, click.UsageError) else EXIT_FAILED
    # click makes an Abort of Ctrl-C in a command; before one begins it is a KeyboardInterrupt.
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted.", err=True)
        return EXIT_INTERRUPTED
    except RingleaderError as error:
        complain(error, session.as_json)
        return EXIT_USAGE if _is_bad_input(error) else EXIT_FAILED
    except BrokenPipeError:
        # The reader of the output has ended (`| head`): print nothing more, not at exit either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FAILED
    finally:
        session.close()


def _is_bad_input(error: RingleaderError) -> bool:
    if isinstance(error, ApiProblem):
        return error.status == 422
    return isinstance(error, (SpecInvalid, PackageRefused))


if __name__ == "__main__":
    sys.exit(main())
