"""The interface of files that rows are read from, whatever their format: blocks of rows, read one at a time."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import numpy as np
import pyarrow as pa


@runtime_checkable
class Source(Protocol):
    """Rows of one or many files, in an order that never changes, cut into blocks: what is read and decoded at once, as
    a row group of Parquet. Row numbers go on from block to block.

    A source is pickled to loading processes and used by several threads at once. It opens files when it needs them, and
    keeps few of them open (32 at most).
    """

    @property
    def schema(self) -> pa.Schema:
        """The columns with their types, without reading a block."""

    @property
    def block_rows(self) -> np.ndarray:
        """(blocks,) int64, the rows of each block, at least one."""

    @property
    def digest(self) -> str:
        """Equal for equal files in equal order: a changed, added or missing file gives another one. In hex."""

    def read(self, block: int, columns: Sequence[str] | None) -> pa.RecordBatch:
        """Read and decode a block: the named columns in the order of the names, all when None.

        Raises:
            BlockUnreadable: naming the file and the block, where the bytes there are damaged or not what they were.
        """

    def name(self, block: int) -> str:
        """The place of a block in words, for errors: "file.parquet, row group 3"."""


def columns_of(schema: pa.Schema, names: Sequence[str] | None) -> pa.Schema:
    """The schema of the named columns, in the order of the names; of all when None."""
    return schema if names is None else pa.schema([schema.field(name) for name in names])
