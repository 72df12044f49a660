"""Commands that start and stop everything embedded: up, down, status, run."""

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import click

from ringleader.cli.output import CommandSession, pairs, with_output
from ringleader.cli.stack.home import Home, read_json
from ringleader.cli.stack.process import PidIdentity
from ringleader.cli.stack.service import recorded
from ringleader.cli.stack.stack import DEFAULT_CPUS, ForeignCluster, running, take_down
from ringleader.cli.submit import EXIT_DETACHED, JOB_FILE, await_end
from ringleader.client import Client, profile
from ringleader.errors import RingleaderError
from ringleader.home_folder import home_warning

DETACH_DEADLINE_S = 240.0

CPUS = click.option(
    "--num-cpus",
    type=click.IntRange(min=1),
    default=DEFAULT_CPUS,
    show_default=True,
    help="Logical CPUs for jobs. The default is never below 4, so that three workers fit on a two-core machine.",
)


class NotUp(RingleaderError):
    """`up --detach` did not start."""

    code = "not_up"


# No Exception: a handler for those, on the way to the cleaning up, must not swallow it.
class Stopped(BaseException):
    """SIGTERM or SIGINT arrived."""


@click.command()
@click.option("--detach", is_flag=True, help="Run in the background; stop it with `ringleader down`.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=0,
    help="Port of the API and the web page; 0 takes the port used last, or a free one.",
)
@CPUS
@click.option(
    "--ray-address",
    default="",
    metavar="HOST:PORT",
    help="Use this running Ray cluster instead of starting one. This machine must be one of its nodes; see "
    "docs/how-to/run-on-a-cluster.md.",
)
@click.option(
    "--ray-token",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    default=None,
    metavar="FILE",
    help="File with that cluster's token; it is copied to the home folder.",
)
@with_output
def up(
    session: CommandSession,
    *,
    detach: bool,
    port: int,
    num_cpus: int,
    ray_address: str,
    ray_token: Path | None,
) -> int:
    """Start a local stack: Ray, MLflow, the API and the web page.

    All of them listen on loopback only.
    """
    if bool(ray_address) != bool(ray_token):
        raise click.UsageError(
            "--ray-address and --ray-token must be given together: the cluster requires its token."
        )
    cluster = ForeignCluster(ray_address, ray_token.resolve()) if ray_token else None
    home = Home(profile.home())
    if detach:
        return _detached(session, home, port, num_cpus, cluster)
    try:
        with (
            stoppable() as stop_asked,
            running(home, num_cpus=num_cpus, port=port, say=session.note, cluster=cluster),
        ):
            _show(session, home)
            if not session.as_json:
                session.note("Press Ctrl-C to stop everything.")
            stop_asked.wait()
    except Stopped:
        session.note("stopped.")
    return 0


@click.command()
@with_output
def down(session: CommandSession) -> int:
    """Stop the local stack that `ringleader up` started.

    Jobs on its own Ray end. Jobs on another cluster (--ray-address) keep running.
    """
    home = Home(profile.home())
    found = take_down(home)
    session.show(
        {"home": str(home.root), "stopped": found},
        "stopped" if found else f"no stack is running in {home.root}",
    )
    return 0


@click.command()
@with_output
def status(session: CommandSession) -> int:
    """Show whether the local stack is running, and where.

    Exit code 1 if it is not.
    """
    home = Home(profile.home())
    who = PidIdentity.read(read_json(home.up))
    if who is None or not who.alive:
        session.show(
            {"home": str(home.root), "up": False, "services": {}}, f"no stack is running in {home.root}"
        )
        return 1
    _show(session, home)
    return 0


@click.command()
@click.argument("file", type=JOB_FILE)
@CPUS
@with_output
def run(session: CommandSession, file: Path, num_cpus: int) -> int:
    """Run a job on a temporary local stack and clean up afterwards.

    Starts the stack, submits the job FILE, prints its logs until it ends, and stops the stack.
    """
    with tempfile.TemporaryDirectory(prefix="ringleader-", ignore_cleanup_errors=True) as folder:
        try:
            with stoppable(), running(Home(Path(folder)), num_cpus=num_cpus, say=session.note) as stack:
                own = stack.profile
                with Client(own.url, own.token) as client:
                    job = client.submit(file)
                    session.note(f"{job.id} submitted: {job.url}")
                    return await_end(session, job, timeout=None, logs=True)
        except Stopped:
            session.note("stopped, together with the job.")
            return EXIT_DETACHED


@contextmanager
def stoppable() -> Iterator[threading.Event]:
    """Turn the first SIGTERM, SIGINT or SIGHUP into `Stopped`; later ones do not disturb the cleaning up."""
    stopping = threading.Event()

    def stop(number: int, frame: FrameType | None) -> None:
        if not stopping.is_set():
            stopping.set()
            raise Stopped

    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    before = {number: signal.signal(number, stop) for number in numbers}
    try:
        yield stopping
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _detached(
    session: CommandSession, home: Home, port: int, num_cpus: int, cluster: ForeignCluster | None
) -> int:
    home.prepare()
    options = ["--port", str(port), "--num-cpus", str(num_cpus)]
    if cluster is not None:
        options += ["--ray-address", cluster.address, "--ray-token", str(cluster.token)]
    log = home.log("up")
    with log.open("ab") as sink:
        begun = sink.tell()
        child = subprocess.Popen(
            [sys.executable, "-m", "ringleader.cli.main", "up", *options],
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=sink,
            # It outlives this terminal, whose Ctrl-C and hang-up go to this session alone.
            start_new_session=True,
            env={**os.environ, "RINGLEADER_HOME": str(home.root)},
        )
    give_up_at = time.monotonic() + DETACH_DEADLINE_S
    while time.monotonic() < give_up_at:
        said = read_json(home.up)
        # The record of an earlier `up` may still be there.
        if said.get("pid") == child.pid and said.get("url"):
            _show(session, home)
            return 0
        if child.poll() is not None:
            raise NotUp(f"`up` ended with code {child.returncode}:\n{_tail(log, begun)}", hint=f"See {log}.")
        time.sleep(0.1)
    # By a signal that it handles: it stops what it has started so far.
    child.terminate()
    raise NotUp(f"`up` was not ready within {DETACH_DEADLINE_S:g} s and was stopped.", hint=f"See {log}.")


def _show(session: CommandSession, home: Home) -> None:
    said = read_json(home.up)
    services = {name: "runs" if who.alive else "down" for name, who in recorded(home).items()}
    answer = {"home": str(home.root), "up": True, "url": said.get("url"), "mlflow": said.get("mlflow")}
    shown = {
        "web page and API": said.get("url"),
        "MLflow": f"{said.get('url')}/mlflow/",
        "token": home.api_token,
        "home": home.root,
        **services,
    }
    session.show({**answer, "pid": said.get("pid"), "services": services}, pairs(shown))
    if warning := home_warning(home.root):
        session.note(f"warning: {warning}")


def _tail(log: Path, begun: int, lines: int = 20) -> str:
    """The last lines from byte `begun` on: those of an earlier start are not of this one."""
    told = log.read_bytes()
    # Turned over meanwhile, it holds nothing of an earlier one.
    text = told[begun if begun <= len(told) else 0 :].decode(errors="replace")
    return "\n".join(f"  | {line}" for line in text.splitlines()[-lines:])
