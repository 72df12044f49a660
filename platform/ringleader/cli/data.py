"""The command that shows what files hold, and what shuffling them is like."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import click

from ringleader.cli.output import CommandSession, json_line, table, with_output
from ringleader.errors import RingleaderError

ENGINE = "ringleader.train.rows.inspection"
LIMIT_S = 3600.0
KINDS = ("parquet", "arrow", "jsonl", "webdataset", "mds")


class NotInspected(RingleaderError):
    """The files cannot be read, or not within the time limit."""

    code = "not_inspected"


@click.group()
def data() -> None:
    """Inspect data files."""


@data.command("inspect")
@click.argument("uri")
@click.option("--kind", type=click.Choice(KINDS), help="Format of the files; by default their names decide.")
@click.option("--batch", type=click.IntRange(1), default=64, help="Rows of a global batch. Default: 64.")
@click.option("--shards", type=click.IntRange(1), default=1, help="Logical shards of the job. Default: 1.")
@click.option("--window", type=click.IntRange(1), help="Value of window_blocks in the job file. Default: 16.")
@with_output
def inspect_data(
    session: CommandSession, uri: str, *, kind: str | None, batch: int, shards: int, window: int | None
) -> None:
    """Show what files contain, and how well each order shuffles them.

    URI is a path, a folder, or a URI such as s3:// or hf://. Prints the kind, rows, blocks (a block is read at once),
    columns with types, and three rows with long values cut. For each order of rows it prints the memory that a worker
    needs, the rows decoded for each row used (with the default cache_bytes), the blocks that a batch comes from, their
    share of the blocks in a full shuffle (mixing, from 0 to 1), and the correlation with the order in the files, from
    -1 to 1 (about 0 is shuffled). Warns of files sorted by a column where mixing is low. Needs no control plane.
    """
    if shards > batch:
        raise click.UsageError("--shards is above --batch; each logical shard has a row at least.")
    found = inspect(uri, kind or "", batch, shards, window)
    session.show(found, lambda: _told(found))
    for warning in found["warnings"]:
        session.note(f"warning: {warning}")


def inspect(uri: str, kind: str, batch: int, shards: int, window: int | None = None) -> dict[str, Any]:
    """The contents of files.

    Raises:
        NotInspected: with the reason.
    """
    with tempfile.TemporaryDirectory(prefix="ringleader-data-") as place:
        # In a file: what reads may print anything on standard output.
        answer = Path(place) / "answer.json"
        numbers = [str(batch), str(shards), "" if window is None else str(window)]
        # Read by a process of its own: the command line loads neither numpy nor torch.
        command = [sys.executable, "-m", ENGINE, uri, str(answer), kind, *numbers]
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
        table(
            ["ORDER", "MEMORY IN EACH WORKER", "DECODED", "BLOCKS IN A BATCH", "MIXING", "ORDER KEPT"],
            _orders(found),
        ),
        f"batches of {found['batch']:,} rows, logical shards: {found['shards']:,}; decoded: rows for each one used",
    ]
    return "\n".join(lines)


def _orders(found: dict[str, Any]) -> list[tuple[str, ...]]:
    kept = {order: _bytes(size) for order, size in found["order_bytes"].items()}
    window = f"{_bytes(found['window_bytes'])} a logical shard (window of {found['window_blocks']} blocks)"
    memory = {
        order: f"{size} + {window}" if order == "block" else f"{size} + cache_bytes"
        for order, size in kept.items()
    }
    quality = found["shuffle_quality"]
    return [
        (
            order,
            taken,
            f"{found['decoded_per_row'][order]:,.0f}",
            f"{quality[order]['batch_blocks']:.1f}",
            f"{quality[order]['mixing']:.2f}",
            f"{quality[order]['rank_correlation']:.2f}",
        )
        for order, taken in memory.items()
    ]


def _bytes(size: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"
