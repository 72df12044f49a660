"""Commands on the control plane: cluster, login, version, bench."""

import importlib.util
import subprocess
import sys
from typing import Any

import click

import ringleader
from ringleader.cli.output import PATIENCE_S, CommandSession, pairs, table, with_output
from ringleader.client import Client, profile
from ringleader.errors import ApiProblem, ApiUnreachable, RingleaderError


class BenchMissing(RingleaderError):
    """The benchmarks' packages are not installed."""

    code = "bench_missing"


@click.command()
@with_output
def cluster(session: CommandSession) -> None:
    """Show the cluster's nodes and what is free."""
    answer = session.client().cluster()
    session.show(answer, lambda: _cluster_text(answer))


@click.command()
@click.argument("url")
@click.option("--token", prompt="Token", hide_input=True, help="Asked for when not given.")
@with_output
def login(session: CommandSession, url: str, token: str) -> None:
    """Remember the control plane at URL for the next commands."""
    with Client(url, token, patience_s=PATIENCE_S) as client:
        client.cluster()  # any route that needs the credential
    profile.save(profile.home(), profile.Profile(url.rstrip("/"), token))
    session.show({"url": url}, f"logged in to {url}")


@click.command()
@with_output
def version(session: CommandSession) -> None:
    """Print the versions of this client and of the control plane."""
    versions: dict[str, Any] = {"client": ringleader.__version__}
    try:
        versions["server"] = session.client().version()
    except (profile.NoControlPlane, ApiUnreachable, ApiProblem) as error:
        versions["server"] = None
        session.note(f"control plane: {error}")
    server = (versions["server"] or {}).get("version", "not reached")
    session.show(versions, f"ringleader {versions['client']}, control plane {server}")


@click.command(
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False}, add_help_option=False
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def bench(arguments: tuple[str, ...]) -> int:
    """Run the benchmark NAME (`bench --help` lists them)."""
    if importlib.util.find_spec("torch") is None or importlib.util.find_spec("ray") is None:
        raise BenchMissing("the benchmarks need the engine.", hint='Install "ringleader[engine,server]".')
    # Its own process: benchmarks load torch and ray, the command line never does.
    return subprocess.run([sys.executable, "-m", "ringleader.bench.main", *arguments], check=False).returncode


def _cluster_text(answer: dict[str, Any]) -> str:
    """Format scalars as pairs, then each list of objects as a table."""
    parts = [pairs({k: v for k, v in answer.items() if not isinstance(v, list)})]
    for name, rows in answer.items():
        if isinstance(rows, list) and rows and isinstance(rows[0], dict):
            header = list(rows[0])
            parts.append(
                f"\n{name}\n" + table([h.upper() for h in header], ([r.get(h) for h in header] for r in rows))
            )
    return "\n".join(part for part in parts if part)
