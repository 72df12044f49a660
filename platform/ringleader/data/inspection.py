"""The contents of files: kind, rows, blocks, columns and first rows, and the memory that shuffling them takes."""

from itertools import islice
from typing import Any

from ringleader.data.decoding import decoded_per_row
from ringleader.data.file_dataset import CACHE_BYTES
from ringleader.data.sources.source import Source
from ringleader.spec.data import Data

SAMPLED = 3
SLICE_ROWS = 32
"""Rows that a worker reads together, for the forecast of what is decoded again."""
MOST_CHARACTERS, MOST_BYTES, MOST_VALUES = 60, 8, 6
"""As much of a text, of bytes, and of a list is shown."""
ORDER_BYTES = {"shuffled": (8, 0), "row": (0, 0), "block": (0, 24)}
"""By `data.order`, the bytes that it keeps for each row and for each block."""


def contents(source: Source) -> dict[str, Any]:
    """The contents of a source, as plain values.

    Raises:
        RingleaderError: naming what cannot be read.
    """
    rows, blocks = int(source.block_rows.sum()), len(source.block_rows)
    first = source.read(0, None)
    largest = int(source.block_rows.max())
    # From one block, as reading all of a large set would take long: others have about as many bytes a row.
    block_bytes = first.nbytes * largest // first.num_rows
    again = decoded_per_row(
        rows=rows, blocks=blocks, size_bytes=block_bytes * blocks, cache_bytes=CACHE_BYTES, at_once=SLICE_ROWS
    )
    return {
        "rows": rows,
        "blocks": blocks,
        "block_rows": [int(source.block_rows.min()), largest],
        "block_bytes": block_bytes,
        "columns": {field.name: str(field.type) for field in source.schema},
        "sample": [{name: cut(value) for name, value in row.items()} for row in _rows(source, first)],
        "order_bytes": {
            order: rows * a_row + blocks * a_block for order, (a_row, a_block) in ORDER_BYTES.items()
        },
        "decoded_per_row": dict.fromkeys(("shuffled", "row"), round(again, 1)) | {"block": 1.0},
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
