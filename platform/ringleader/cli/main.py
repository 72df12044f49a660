"""The `ringleader` command: its sub-commands, exit codes, and errors without tracebacks."""

import os
import sys
from collections.abc import Callable, Sequence

import click

from ringleader.cli import access, bench, chaos, check, cluster, jobs, submit, up, watch
from ringleader.cli.output import CommandSession, complain, connect
from ringleader.client import Client
from ringleader.errors import ApiProblem, PackageRefused, RingleaderError, SpecInvalid

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def cli() -> None:
    """Elastic distributed training on Ray.

    Exit codes: 0 succeeded, 1 failed, 2 wrong usage or job file, 3 cancelled, 124 the wait timed out, 130 Ctrl-C.
    """


for _command in (
    *(up.up, up.down, up.status, up.run),
    *(submit.submit, submit.validate, submit.wait),
    *(
        jobs.list_jobs,
        jobs.describe,
        jobs.resize,
        jobs.prioritize,
        jobs.pause,
        jobs.resume,
        jobs.cancel,
        jobs.export,
        jobs.delete,
    ),
    chaos.chaos,
    check.check,
    *(watch.logs, watch.events, watch.workers, watch.metrics),
    *(access.whoami, access.token, access.user, access.project, access.secret, access.audit),
    *(cluster.cluster, cluster.login, cluster.version, bench.bench),
):
    cli.add_command(_command)


def main(arguments: Sequence[str] | None = None, connect: Callable[[], Client] = connect) -> int:
    """Run one command; returns the exit code."""
    session = CommandSession(connect)
    try:
        code = cli.main(
            args=None if arguments is None else list(arguments),
            prog_name="ringleader",
            standalone_mode=False,
            obj=session,
        )
        return int(code or 0)
    except click.ClickException as error:
        error.show()
        return EXIT_USAGE if isinstance(error, click.UsageError) else EXIT_FAILED
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted.", err=True)
        return EXIT_INTERRUPTED
    except RingleaderError as error:
        complain(error, session.as_json)
        return EXIT_USAGE if _is_bad_input(error) else EXIT_FAILED
    except BrokenPipeError:
        # Whoever read our output has gone (`| head`): nothing more to say, also not at exit.
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
