"""The contents of files: kind, rows, blocks, columns and first rows, and the memory that shuffling them takes.

    python -m ringleader.data.inspection URI ANSWER [KIND]

The answer is written to a file, as JSON: {"found": …} or {"error", "hint", "code"}.
"""

import json
import sys
from itertools import islice
from pathlib import Path
from typing import Any

from ringleader.data.sources.kinds import open_source
from ringleader.data.sources.source import Source
from ringleader.errors import RingleaderError
from ringleader.spec.data import Data

SAMPLED = 3
MOST_CHARACTERS, MOST_BYTES, MOST_VALUES = 60, 8, 6
"""As much of a text, of bytes, and of a list is shown."""
ORDER_BYTES = {"shuffled": (8, 0), "row": (0, 0), "block": (0, 24)}
"""By `data.order`, the bytes that it keeps for each row and for each block."""


def inspect(uri: str, kind: str = "") -> dict[str, Any]:
    """The contents of files at a path or URI, as plain values.

    Raises:
        RingleaderError, FileNotFoundError: naming what cannot be read.
    """
    kind, source = open_source(uri, kind)
    rows, blocks = int(source.block_rows.sum()), len(source.block_rows)
    first = source.read(0, None)
    largest = int(source.block_rows.max())
    block_bytes = first.nbytes * largest // first.num_rows
    return {
        "uri": uri,
        "kind": kind,
        "rows": rows,
        "blocks": blocks,
        "block_rows": [int(source.block_rows.min()), largest],
        "block_bytes": block_bytes,
        "columns": {field.name: str(field.type) for field in source.schema},
        "sample": [{name: cut(value) for name, value in row.items()} for row in _rows(source, first)],
        "order_bytes": {
            order: rows * a_row + blocks * a_block for order, (a_row, a_block) in ORDER_BYTES.items()
        },
        "window_blocks": Data().window,
        "window_bytes": min(Data().window, blocks) * block_bytes,
        "digest": source.digest,
    }


def cut(value: Any) -> Any:
    """A value that fits on a line."""
    match value:
        case None | bool() | int() | float():
            return value
        case bytes():
            begin = value[:MOST_BYTES].hex(" ")
            return f"{len(value):,} bytes: {begin}{' …' if len(value) > MOST_BYTES else ''}"
        case list():
            rest = [f"… {len(value):,} values"] if len(value) > MOST_VALUES else []
            return [cut(each) for each in value[:MOST_VALUES]] + rest
        case dict():
            return {name: cut(each) for name, each in value.items()}
    text = str(value)
    return text if len(text) <= MOST_CHARACTERS else f"{text[:MOST_CHARACTERS]}… {len(text):,} characters"


def _rows(source: Source, first: Any) -> list[dict[str, Any]]:
    batches = (first if block == 0 else source.read(block, None) for block in range(len(source.block_rows)))
    rows = (row for batch in batches for row in batch.slice(0, SAMPLED).to_pylist())
    return list(islice(rows, SAMPLED))


def main(uri: str, answer: str, kind: str = "") -> None:
    try:
        told: dict[str, Any] = {"found": inspect(uri, kind)}
    except RingleaderError as error:
        told = {"error": error.message, "hint": error.hint, "code": error.code}
    except (OSError, ValueError, KeyError) as error:
        told = {"error": str(error), "hint": "", "code": "not_inspected"}
    Path(answer).write_text(json.dumps(told))


if __name__ == "__main__":
    main(*sys.argv[1:])
