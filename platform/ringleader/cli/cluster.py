"""Commands on the cluster and its control plane: cluster, login, version."""

from typing import Any

import click

import ringleader
from ringleader.cli.output import PATIENCE_S, CommandSession, pairs, table, with_output
from ringleader.cli.terminal.occupancy_text import history_text, occupancy_text
from ringleader.client import Client, profile
from ringleader.errors import ApiProblem, ApiUnreachable


@click.command()
@click.option(
    "--jobs", is_flag=True, help="Show what each job has reserved of each node, and the queue in its order."
)
@click.option(
    "--history",
    type=click.IntRange(1, 168),
    metavar="HOURS",
    help="Show what jobs held of the last HOURS, day by day in UTC; -o json has each minute.",
)
@with_output
def cluster(session: CommandSession, jobs: bool, history: int | None) -> None:
    """Show the cluster's nodes and their resources."""
    if jobs and history:
        raise click.UsageError("--jobs shows the cluster now, --history its last days. Give one of them.")
    if history:
        past = session.client().cluster_history(history)
        session.show(past.model_dump(mode="json"), lambda: history_text(past))
        return
    if jobs:
        seen = session.client().occupancy()
        session.show(seen.model_dump(mode="json"), lambda: occupancy_text(seen))
        return
    answer = session.client().cluster()
    session.show(answer, lambda: _cluster_text(answer))


@click.command()
@click.argument("url")
@click.option("--token", prompt="Token", hide_input=True, help="API token; prompted for by default.")
@with_output
def login(session: CommandSession, url: str, token: str) -> None:
    """Log in to the control plane at URL and save the token."""
    with Client(url, token, patience_s=PATIENCE_S) as client:
        client.cluster()  # any route that needs the credential
    profile.save(profile.home(), profile.Profile(url.rstrip("/"), token))
    session.show({"url": url}, f"logged in to {url}")


@click.command()
@with_output
def version(session: CommandSession) -> None:
    """Print the versions of the client and the control plane."""
    versions: dict[str, Any] = {"client": ringleader.__version__}
    try:
        versions["server"] = session.client().version()
    except (profile.NoControlPlane, ApiUnreachable, ApiProblem) as error:
        versions["server"] = None
        session.note(f"control plane: {error}")
    server = (versions["server"] or {}).get("version", "unreachable")
    session.show(versions, f"ringleader {versions['client']}, control plane {server}")


def _cluster_text(answer: dict[str, Any]) -> str:
    """Format scalars as pairs, then each list of objects as a table."""
    parts = [pairs({k: _rounded(v) for k, v in answer.items() if not isinstance(v, list)})]
    for name, rows in answer.items():
        if isinstance(rows, list) and rows and isinstance(rows[0], dict):
            header = list(rows[0])
            parts.append(
                f"\n{name}\n"
                + table([h.upper() for h in header], ([_rounded(r.get(h)) for h in header] for r in rows))
            )
    return "\n".join(part for part in parts if part)


def _rounded(value: Any) -> Any:
    return f"{round(value, 2):g}" if isinstance(value, float) else value
