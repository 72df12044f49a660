"""Files of token rows for the benchmark of reading, and a source that counts what is decoded."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ringleader.data.sources.source import Source
from ringleader.spec.data import Data
from ringleader.train.rows.order.cursor import Epoch
from ringleader.train.rows.slices import Slice

TOKENS = 512
VOCABULARY = 50_000


def write_tokens(folder: Path, *, files: int, groups: int, rows: int, tokens: int = TOKENS) -> Path:
    """Write files of so many row groups of so many rows: `tokens`, int32 of one length, and `id`."""
    folder.mkdir()
    drawn = np.random.default_rng(0)
    for file in range(files):
        firsts = range(file * groups * rows, (file + 1) * groups * rows, rows)
        tables = [_tokens(drawn, first, rows, tokens) for first in firsts]
        with pq.ParquetWriter(folder / f"{file:05d}.parquet", tables[0].schema, compression="zstd") as writer:
            for table in tables:
                writer.write_table(table)
    return folder


def _tokens(drawn: np.random.Generator, first: int, rows: int, tokens: int) -> pa.Table:
    values = drawn.integers(0, VOCABULARY, rows * tokens, dtype=np.int32)
    return pa.table(
        {
            "tokens": pa.FixedSizeListArray.from_arrays(pa.array(values), tokens),
            "id": np.arange(first, first + rows),
        }
    )


class CountedSource:
    """A source with the bytes that were decoded."""

    def __init__(self, source: Source) -> None:
        self.schema = source.schema
        self.block_rows = source.block_rows
        self.digest = source.digest
        self.name = source.name
        self.decoded_bytes: list[int] = []
        self._source = source

    def read(self, block: int, columns: Sequence[str] | None) -> pa.RecordBatch:
        read = self._source.read(block, columns)
        self.decoded_bytes.append(read.nbytes)  # of several threads
        return read


def pass_over(block_rows: np.ndarray, *, batch: int, shards: int, data: Data | None) -> Epoch:
    """One pass over a data set of such blocks; None: not shuffled."""
    return Epoch.shuffled(
        rows=int(block_rows.sum()),
        batch=batch,
        shards=shards,
        seed=0,
        epoch=0,
        shuffle=data is not None,
        data=data or Data(),
        block_rows=block_rows,
    )


def slices_of(epoch: Epoch, shards: Sequence[int]) -> Iterator[Slice]:
    """The slices that a worker that owns these shards loads in a pass."""
    for offset in range(epoch.steps):
        for shard in shards:
            rows, windows = epoch.rows(offset, shard), epoch.windows_of(offset, [shard])
            if len(rows):
                yield Slice(("step", offset, shard), shard, rows, windows)
