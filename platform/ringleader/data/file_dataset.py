"""A map-style data set over a source: any row at any time, read by block, values ready to be stacked."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice, pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from torch import Tensor
from torch.utils.data import Dataset

from ringleader.data.block_reader import BlockReader, DecodedBlock
from ringleader.data.collate import collate
from ringleader.data.columns import ColumnStack, stacks, values_of
from ringleader.data.decoding import decoded_per_row
from ringleader.data.sources.open_files import PerProcess
from ringleader.data.sources.parquet import ParquetSource
from ringleader.data.sources.source import Source
from ringleader.data.unreadable import RowUnreadable
from ringleader.data.uris import said

Decoder = Callable[[bytes], Tensor]
"""The bytes of one value to one tensor."""
Row = dict[str, Any]
CACHE_BYTES = 256 << 20


class FileDataset(Dataset[Row]):
    """Rows of the files of a source as dicts, by position.

    Integers and booleans come as Python numbers (a batch of them is int64 or bool), floats and lists
    of numbers or booleans as tensors of their own type, strings and bytes as they are, decoded columns as decoded.

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
        twice = [name for name in self._columns if source.schema.names.count(name) > 1]
        if twice:
            raise ValueError(
                f"{source.name(0)} has several columns {twice[0]!r}, and rows are dicts by name: write it with one "
                f"of them, or leave the name out of columns=[…]"
            )
        missing = [name for name in self._columns if name not in source.schema.names]
        if missing:
            raise KeyError(f"no column {missing} in {source.name(0)}; it has {source.schema.names}")
        self._decode = dict(decode or {})
        unknown = sorted(set(self._decode) - set(self._columns))
        if unknown:
            raise KeyError(f"decode names {unknown}, but the columns read are {self._columns}")
        self._stacks = all(stacks(source.schema.field(name).type) for name in self._columns)
        self._ends = np.cumsum(counts)
        self._firsts = self._ends - counts
        self._kept: dict[int, Row] | None = {} if keep_decoded else None
        self._cache_bytes = cache_bytes
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

    def keeps_rows(self) -> bool:
        """Whether rows stay in memory once they were read."""
        return self._kept is not None

    def block_bytes(self) -> int:
        """The bytes that a block takes in memory, in the mean, as far as its source tells; 0 where it does not."""
        told = getattr(self._source, "decoded_bytes", None)
        return 0 if told is None else told(self._columns) // len(self._ends)

    def decoded_per_row(self, at_once: int) -> float:
        """The number of rows decoded for each one used, about, where rows are shuffled one by one and so many are read
        together: 1 where all stay in memory or are decoded on disk, or the source does not tell its size."""
        if self._kept is not None or not isinstance(self._source, ParquetSource) or self._source.copied:
            return 1.0
        return decoded_per_row(
            rows=len(self),
            blocks=len(self._ends),
            size_bytes=self._source.decoded_bytes(self._columns),
            cache_bytes=self._cache_bytes,
            at_once=at_once,
        )

    def expect(self, now: Sequence[int], ahead: Sequence[int]) -> None:
        """Keep these blocks in memory until this is called again, and read those ahead as far as there is room."""
        if self._kept is None or len(self._kept) < len(self):  # else nothing is read any more
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
            return collate(self.__getitems__(rows))  # type: ignore[no-any-return]
        numbers = self._positions(rows)
        # By block, so that each is asked for once, however rows are shuffled.
        order = np.argsort(numbers, kind="stable")
        columns = {name: ColumnStack(len(numbers)) for name in self._columns}
        for block, taken in self._parts(numbers[order]):
            if not all(stack.add(block.rows(name), taken) for name, stack in columns.items()):
                return collate(self.__getitems__(rows))  # type: ignore[no-any-return]  # refuses it, by row
        places = np.empty_like(order)
        places[order] = np.arange(len(order))
        return {name: stack.batch(places) for name, stack in columns.items()}

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

    def _parts(self, numbers: np.ndarray) -> Iterator[tuple[DecodedBlock, np.ndarray]]:
        """Blocks one after the other, and (m,) which of their rows, of rows (n,) that ascend."""
        blocks = np.searchsorted(self._ends, numbers, side="right")
        inside = numbers - self._firsts[blocks]
        edges = np.flatnonzero(np.diff(blocks, prepend=-1, append=-1)).tolist()
        for low, high in pairwise(edges):
            yield self._reader.get().read(int(blocks[low])), inside[low:high]

    def _load(self, rows: Sequence[int]) -> dict[int, Row]:
        loaded: dict[int, Row] = {}
        left = iter(rows)
        for block, taken in self._parts(np.asarray(rows, np.int64)):
            members = list(islice(left, len(taken)))
            # Before any Python object is made: a block has thousands of rows, and often few of them are wanted.
            found = block.batch.take(pa.array(taken))
            values = {name: self._values(name, found.column(name), members) for name in self._columns}
            loaded.update({row: {name: values[name][i] for name in values} for i, row in enumerate(members)})
        return loaded

    def _values(self, name: str, column: pa.Array, rows: Sequence[int]) -> list[Any]:
        if column.null_count:
            raise RowUnreadable(name, rows[column.is_null().to_pylist().index(True)], "it is null")
        if name in self._decode:
            values = column.to_pylist()
            return [self._decoded(name, value, row) for value, row in zip(values, rows, strict=True)]
        try:
            return values_of(column)
        except (TypeError, ValueError) as error:
            row = next(number for number in range(len(rows)) if not _is_sound(column.slice(number, 1)))
            raise RowUnreadable(name, rows[row], _why(error)) from error

    def _decoded(self, name: str, value: bytes, row: int) -> Tensor:
        try:
            return self._decode[name](value)
        # Decoders are the program's own, so that any kind of error may come.
        except Exception as error:
            raise RowUnreadable(name, row, str(error)) from error


def _is_sound(values: pa.Array) -> bool:
    """Whether values can be made of a column."""
    try:
        values_of(values)
    except (TypeError, ValueError):
        return False
    return True


def _why(error: Exception) -> str:
    """Why no value can be made of a column's."""
    if isinstance(error, UnicodeDecodeError):
        return f"its text is not UTF-8 ({said(error)})"
    return "there is a null in its list" if "NoneType" in str(error) else said(error)
