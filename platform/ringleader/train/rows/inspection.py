"""What `ringleader data inspect` tells of files: their contents, and what shuffling them is like.

    python -m ringleader.train.rows.inspection URI ANSWER KIND BATCH SHARDS WINDOW

The answer is written to a file, as JSON: {"found": …} or {"error", "hint", "code"}. KIND may be empty, and WINDOW, the
blocks of a window.
"""

import json
import sys
from pathlib import Path
from typing import Any

from ringleader.data.inspection import contents
from ringleader.data.sources.kinds import open_source
from ringleader.errors import RingleaderError
from ringleader.train.rows.order.shuffle_quality import by_order
from ringleader.train.rows.sorted_columns import sorted_columns

LOW = 0.9
"""Below this share of the blocks that a full shuffle has in a batch, sorted files are told of."""


def inspect(
    uri: str, kind: str = "", *, batch: int = 64, shards: int = 1, window_blocks: int | None = None
) -> dict[str, Any]:
    """The contents of files at a path or URI, and the quality of each order, as plain values.

    Args:
        batch: rows of a global batch.
        shards: logical shards.
        window_blocks: of the order by blocks; None: as many as without the key.

    Raises:
        RingleaderError, FileNotFoundError: naming what cannot be read.
    """
    kind, source = open_source(uri, kind)
    quality = by_order(source.block_rows, batch=batch, shards=shards, window_blocks=window_blocks)
    by = sorted_columns(source)
    told = {
        "batch": batch,
        "shards": shards,
        "shuffle_quality": quality,
        "sorted_by": by,
        "warnings": _warnings(by, quality),
    }
    found = {"uri": uri, "kind": kind} | contents(source)
    if window_blocks is not None:
        kept = min(window_blocks, found["blocks"])
        found |= {"window_blocks": window_blocks, "window_bytes": kept * found["block_bytes"]}
    return found | told


def _warnings(by: dict[str, float], quality: dict[str, dict[str, float]]) -> list[str]:
    """What is to be said of the order by blocks."""
    block, row = quality["block"], quality["row"]
    if block["mixing"] >= LOW:
        return []
    has = (
        f"with order: block, which auto takes for files, a batch has rows of {block['batch_blocks']:.1f} blocks, and "
        f"with order: row of {row['batch_blocks']:.1f} (mixing {block['mixing']:.2f})"
    )
    cure = "write data: {order: row}, a larger window_blocks, or files in random order"
    if not by:
        return [f"{has}: where neighbours in the files are alike, {cure}."]
    names = ", ".join(sorted(by, key=lambda name: -by[name]))
    return [
        f"the files are sorted by {names}, and sorted files shuffle worse by block: {has}. To cure it, {cure}."
    ]


def main(uri: str, answer: str, kind: str, *numbers: str) -> None:
    try:
        batch, shards, window = (int(number) if number else None for number in numbers)
        found = inspect(uri, kind, batch=batch or 1, shards=shards or 1, window_blocks=window)
        told: dict[str, Any] = {"found": found}
    except RingleaderError as error:
        told = {"error": error.message, "hint": error.hint, "code": error.code}
    except (OSError, ValueError, KeyError) as error:
        told = {"error": str(error), "hint": "", "code": "not_inspected"}
    Path(answer).write_text(json.dumps(told))


if __name__ == "__main__":
    main(*sys.argv[1:])
