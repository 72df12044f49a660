"""A map-style data set over a source: any row at any time, read by block, values ready to be stacked."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
from torch import Tensor
from torch.utils.data import Dataset, default_collate

from ringleader.data.block_reader import BlockReader
from ringleader.data.columns import stacked, stacks, values_of
from ringleader.data.per_process import PerProcess
from ringleader.data.sources.source import Source
from ringleader.data.unreadable import RowUnreadable

Decoder = Callable[[bytes], Tensor]
"""The bytes of one value to one tensor."""
Row = dict[str, Any]
CACHE_BYTES = 256 << 20


class FileDataset(Dataset[Row]):
    """Rows of the files of a source as dicts, by position.

    Integers and booleans come as Python numbers (a batch of them is int64 or bool), floats and lists
    of numbers as tensors of their own width, strings and bytes as they are, decoded columns as decoded.

    Args:
        source: the files: one of `ringleader.data.sources`, or any object with its interface.
        columns: which columns to read; all when None.
        decode: a function from bytes to tensor for each column that holds encoded bytes, for example
            {"image": ringleader.data.decode_image}. A module-level function can be pickled with the dataset.
        keep_decoded: keep every row after its first read; for sets that fit in memory. Rows are then shared
            between reads: do not change them in place.
        cache_bytes: how much of the read blocks to keep, per process, and to read ahead at most.

    Raises:
        KeyError, ValueError: no such column, no rows.
        BlockUnreadable, RowUnreadable: at access, naming file and block, or column and row.
    """

    def __init__(
        self,
        source: Source,
        *,
        columns: Sequence[str] | None = None,
        decode: Mapping[str, Decoder] | None = None,
        keep_decoded: bool = False,
        cache_bytes: int = CACHE_BYTES,
    ) -> None:
        self._source = source
        counts = np.asarray(source.block_rows, np.int64)
        if not counts.sum():
            raise ValueError(f"there are no rows in {source.name(0) if len(counts) else 'the files given'}")
        self._columns = list(source.schema.names) if columns is None else list(columns)
        missing = [name for name in self._columns if name not in source.schema.names]
        if missing:
            raise KeyError(f"no column {missing} in {source.name(0)}; it has {source.schema.names}")
        self._decode = dict(decode or {})
        unknown = sorted(set(self._decode) - set(self._columns))
        if unknown:
            raise KeyError(f"decode names {unknown}, but the columns read are {self._columns}")
        self._stacks = all(stacks(source.schema.field(name).type) for name in self._columns)
        self._ends = np.cumsum(counts)
        self._kept: dict[int, Row] | None = {} if keep_decoded else None
        self._reader = PerProcess(partial(BlockReader, source, self._columns, cache_bytes))

    @property
    def schema(self) -> pa.Schema:
        """The columns with their types, and the metadata of the first file."""
        return self._source.schema

    @property
    def decode(self) -> Mapping[str, Decoder]:
        """By column, the function that makes a tensor of bytes."""
        return self._decode

    # Methods, not properties: a class of the program's own may have attributes of these names.
    def files(self) -> Source:
        """The source of the rows."""
        return self._source

    def names(self) -> list[str]:
        """The columns that are read."""
        return self._columns

    def by_column(self) -> bool:
        """Whether `batch` makes tensors without a Python object a row."""
        return (
            not self._decode
            and self._kept is None
            # A class of the program's own may make other rows of these.
            and type(self).__getitems__ is FileDataset.__getitems__
            and self._stacks
        )

    def expect(self, now: Sequence[int], ahead: Sequence[int]) -> None:
        """Keep these blocks in memory until this is called again, and read those ahead as far as there is room."""
        self._reader.get().expect(now, ahead)

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __getitem__(self, row: int) -> Row:
        return self.__getitems__([row])[0]

    def __getitems__(self, rows: Sequence[int]) -> list[Row]:
        """Many rows at once, in the order asked for; each block is read at most once."""
        numbers = self._positions(rows).tolist()
        kept = self._kept if self._kept is not None else {}
        found = {n: kept[n] for n in set(numbers) if n in kept}
        found.update(self._load(sorted(set(numbers) - set(found))))
        if self._kept is not None:
            self._kept.update(found)
        return [found[n] for n in numbers]

    def batch(self, rows: Sequence[int]) -> dict[str, Any]:
        """The rows as one batch, what `default_collate` makes of them: columns of numbers and of lists of one length
        become tensors without a Python object a row."""
        if not rows or not FileDataset.by_column(self):
            return default_collate(self.__getitems__(rows))  # type: ignore[no-any-return]
        numbers = self._positions(rows)
        order = np.argsort(numbers, kind="stable")
        taken = self._take(numbers[order])
        back = np.empty_like(order)
        back[order] = np.arange(len(order))
        found = {name: stacked(taken.column(name), back) for name in self._columns}
        if any(column is None for column in found.values()):
            return default_collate(self.__getitems__(rows))  # type: ignore[no-any-return]  # refuses it, by row
        return found

    def __getstate__(self) -> dict[str, Any]:
        # A loading process keeps rows of its own: those kept here would only make the pickle large.
        return {**self.__dict__, "_kept": None if self._kept is None else {}}

    def _positions(self, rows: Sequence[int]) -> np.ndarray:
        """(n,) int64, counted from the first row."""
        numbers = np.asarray(rows, np.int64)
        size = len(self)
        outside = (numbers < -size) | (numbers >= size)
        if outside.any():
            raise IndexError(f"row {numbers[outside][0]} of a dataset with {size} rows")
        return numbers % size

    def _take(self, numbers: np.ndarray) -> pa.RecordBatch:
        """The rows (n,), which ascend."""
        blocks = np.searchsorted(self._ends, numbers, side="right")
        firsts = np.flatnonzero(np.diff(blocks, prepend=-1)).tolist()
        parts = [
            self._rows_of(int(blocks[low]), numbers[low:high])
            for low, high in zip(firsts, [*firsts[1:], len(numbers)], strict=True)
        ]
        return pa.concat_batches(parts) if len(parts) != 1 else parts[0]

    def _rows_of(self, block: int, numbers: np.ndarray) -> pa.RecordBatch:
        first = int(self._ends[block] - self._source.block_rows[block])
        return self._reader.get().read(block).take(pa.array(numbers - first))

    def _load(self, rows: Sequence[int]) -> dict[int, Row]:
        by_block: dict[int, list[int]] = defaultdict(list)
        for row, block in zip(rows, np.searchsorted(self._ends, rows, side="right").tolist(), strict=True):
            by_block[block].append(row)
        loaded: dict[int, Row] = {}
        for block, members in by_block.items():
            taken = self._rows_of(block, np.array(members))
            values = {name: self._values(name, taken.column(name), members) for name in self._columns}
            loaded.update({row: {name: values[name][i] for name in values} for i, row in enumerate(members)})
        return loaded

    def _values(self, name: str, column: pa.Array, rows: Sequence[int]) -> list[Any]:
        if column.null_count:
            raise RowUnreadable(name, rows[column.is_null().to_pylist().index(True)], "it is null")
        if name in self._decode:
            values = column.to_pylist()
            return [self._decoded(name, value, row) for value, row in zip(values, rows, strict=True)]
        return values_of(column)

    def _decoded(self, name: str, value: bytes, row: int) -> Tensor:
        try:
            return self._decode[name](value)
        # Decoders are the program's own, so that any kind of error may come.
        except Exception as error:
            raise RowUnreadable(name, row, str(error)) from error
