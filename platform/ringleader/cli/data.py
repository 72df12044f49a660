"""The command that shows what files hold, and what training on them takes in memory."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import click

from ringleader.cli.output import CommandSession, json_line, table, with_output
from ringleader.errors import RingleaderError

ENGINE = "ringleader.data.inspection"
LIMIT_S = 3600.0
KINDS = ("parquet", "arrow", "jsonl", "webdataset", "mds")


class NotInspected(RingleaderError):
    """The files cannot be read, or not within the time limit."""

    code = "not_inspected"


@click.group()
def data() -> None:
    """Look at files to train on."""


@data.command("inspect")
@click.argument("uri")
@click.option("--kind", type=click.Choice(KINDS), help="Read the files as this; by default their names say.")
@with_output
def inspect_data(session: CommandSession, uri: str, kind: str | None) -> None:
    """Show what files hold, and what training on them takes in memory.

    URI is a path, a folder, or a URI such as s3:// or hf://. Prints kind, rows, blocks (what is read at once), columns
    with types, three rows with long values cut, and the memory that each order of rows takes in a worker. Needs no
    control plane.
    """
    found = inspect(uri, kind or "")
    session.show(found, lambda: _told(found))


def inspect(uri: str, kind: str) -> dict[str, Any]:
    """The contents of files, read by a process of its own: the command line loads neither numpy nor torch.

    Raises:
        NotInspected: with the reason.
    """
    with tempfile.TemporaryDirectory(prefix="ringleader-data-") as place:
        # In a file: what reads may print anything on standard output.
        answer = Path(place) / "answer.json"
        command = [sys.executable, "-m", ENGINE, uri, str(answer), kind]
        try:
            ended = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=LIMIT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise NotInspected(
                f"{uri} was not read within {LIMIT_S:g} s.", hint="Name fewer files."
            ) from None
        if not answer.exists():
            raise NotInspected(
                f"the process that read {uri} failed:\n{ended.stderr.strip()}", hint=_why(ended.stderr)
            )
        told: dict[str, Any] = json.loads(answer.read_text())
    if "error" in told:
        raise NotInspected(told["error"], hint=told["hint"])
    found: dict[str, Any] = told["found"]
    return found


def _why(stderr: str) -> str:
    if "No module named" in stderr:
        return 'Install the engine in the environment of this command: pip install "ringleader[engine]".'
    return ""


def _told(found: dict[str, Any]) -> str:
    least, most = found["block_rows"]
    rows = f"{most:,} rows" if least == most else f"{least:,} to {most:,} rows"
    size = _bytes(found["block_bytes"])
    lines = [
        f"{found['uri']}: {found['kind']}, {found['rows']:,} rows",
        f"{found['blocks']:,} blocks of {rows}; the largest has about {size} in memory",
        "",
        table(["COLUMN", "TYPE"], found["columns"].items()),
        "",
        *(json_line(row) for row in found["sample"]),
        "",
        table(["ORDER", "MEMORY IN EACH WORKER"], _orders(found)),
    ]
    return "\n".join(lines)


def _orders(found: dict[str, Any]) -> list[tuple[str, str]]:
    kept = {order: _bytes(size) for order, size in found["order_bytes"].items()}
    window = f"{_bytes(found['window_bytes'])} a logical shard (window of {found['window_blocks']} blocks)"
    return [
        (order, f"{size} + {window}" if order == "block" else f"{size} + cache_bytes")
        for order, size in kept.items()
    ]


def _bytes(size: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"
