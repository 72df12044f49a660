"""Columns of Arrow as what a batch is made of: row by row, or as one tensor for all rows."""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch

_LISTED = (
    *(pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8()),
    *(pa.float32(), pa.float64(), pa.bool_()),
)
"""Types whose lists a batch has as tensors of that type."""
_TEXTS = (pa.string(), pa.large_string(), pa.binary(), pa.large_binary())
_VIEWS = {pa.string_view(): pa.large_string(), pa.binary_view(): pa.large_binary()}
"""Types of which pyarrow cannot take rows, and those in which it can: Polars writes such files."""
_WIDE = (pa.uint16(), pa.uint32())
"""Types whose single values a batch has as int64."""


def plain(block: pa.RecordBatch) -> pa.RecordBatch:
    """A block of which rows can be taken, its tensors of one shape as lists of that shape."""
    fields = [field.with_type(_plain_type(field.type)) for field in block.schema]
    schema = pa.schema(fields, block.schema.metadata)
    if schema.types == block.schema.types:
        return block
    columns = [_plain_column(column, field.type) for column, field in zip(block.columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def values_of(column: pa.Array) -> list[Any]:
    """The values of a column without nulls, one a row: floats, and lists of numbers or booleans, as tensors of the
    column's own type; everything else as it is."""
    values: list[Any] = column.to_pylist()
    kind = column.type
    # As tensors: of Python's floats `default_collate` would make float64, whatever the column's type is.
    if pa.types.is_floating(kind):
        return list(torch.tensor(values, dtype=_dtype(kind)).unbind())
    leaf = _leaf(kind)
    numbers = pa.types.is_floating(leaf) or pa.types.is_integer(leaf) or pa.types.is_boolean(leaf)
    if leaf is not kind and numbers:
        return [torch.tensor(value, dtype=_dtype(leaf)) for value in values]
    return values


def stacks(kind: pa.DataType) -> bool:
    """Whether a batch of values of this type is made without a Python object a row, where rows have one shape."""
    kind = _plain_type(kind)
    leaf = _leaf(kind)
    return leaf in _LISTED or (leaf is kind and (leaf in _TEXTS or leaf in _WIDE))


def rows_in(column: pa.Array) -> np.ndarray | pa.Array | None:
    """(n, …) the rows of a column of numbers, or of lists of one length, as they lie in memory; texts as they are; None
    where rows differ in shape, or one is null.

    Args:
        column: (n,) of a type that `stacks`.
    """
    if column.null_count or column.type in _TEXTS:
        return None if column.null_count else column
    shape = [len(column)]
    while is_list(column.type):
        sizes = _sizes(column)
        # What lies between the lists is no part of them: `flatten` leaves it out.
        column = column.flatten()
        if len(sizes) != 1 or column.null_count:
            return None
        shape += sizes
    # A copy where there has to be one: Arrow keeps booleans as bits.
    numbers: np.ndarray = column.to_numpy(zero_copy_only=False)
    return numbers.reshape(shape)


def is_list(kind: pa.DataType) -> bool:
    """Whether values of this type are lists, of one length or of any."""
    return any(
        is_one(kind) for is_one in (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    )


class ColumnStack:
    """A column of a batch, filled block by block: what torch's `default_collate` makes of its rows.

    Args:
        count: of rows.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._filled = 0
        self._found: np.ndarray | None = None
        self._texts: list[Any] = []

    def add(self, rows: np.ndarray | pa.Array | None, taken: np.ndarray) -> bool:
        """Add rows of a block; False where they have another shape than those before, or one is null or no text.

        Args:
            rows: of the whole block, as `rows_in` gives them.
            taken: (m,) int64, which of them.
        """
        if not isinstance(rows, np.ndarray):
            try:
                self._texts += [] if rows is None else rows.take(pa.array(taken)).to_pylist()
            except UnicodeDecodeError:  # whoever asks for the rows one by one is told which
                return False
            return rows is not None
        if self._found is None:
            self._found = np.empty((self._count, *rows.shape[1:]), rows.dtype)
        if self._found.shape[1:] != rows.shape[1:]:
            return False
        into = self._found[self._filled : self._filled + len(taken)]
        # Without `mode` numpy copies once more.
        np.take(rows, taken, axis=0, out=into, mode="clip")
        self._filled += len(taken)
        return True

    def batch(self, places: np.ndarray) -> Any:
        """A tensor, or a list of texts.

        Args:
            places: (n,) int64, for each row of the batch when it was added.
        """
        if self._found is None:
            return [self._texts[place] for place in places.tolist()]
        found = self._found[places]
        # Single numbers alone: row by row they would be Python's integers, which torch makes int64 of. Lists would be
        # tensors of the column's own type.
        if found.ndim == 1 and found.dtype.kind in "iu":
            found = found.astype(np.int64)
        return torch.from_numpy(found)


def _plain_type(kind: pa.DataType) -> pa.DataType:
    """The type in which rows of a column are taken: that of a tensor is a list of lists."""
    if pa.types.is_run_end_encoded(kind):
        return _plain_type(kind.value_type)
    if pa.types.is_list_view(kind) or pa.types.is_large_list_view(kind):
        return pa.large_list(_plain_type(kind.value_type))
    if not isinstance(kind, pa.FixedShapeTensorType) or 0 in kind.shape:
        return _VIEWS.get(kind, kind)
    # Of another order of dimensions its numbers do not lie in the order of its lists.
    if list(kind.permutation or []) not in ([], [*range(len(kind.shape))]):
        return kind
    listed = kind.value_type
    for size in reversed(kind.shape):
        listed = pa.list_(listed, size)
    return listed


def _plain_column(column: pa.Array, kind: pa.DataType) -> pa.Array:
    if isinstance(column, pa.RunEndEncodedArray):
        column = pc.run_end_decode(column)
    if isinstance(column, pa.ListViewArray | pa.LargeListViewArray):
        # Not by a cast: that of pyarrow 25.0.1 gives the last row no values.
        sizes = pc.fill_null(pc.list_value_length(column), 0).to_numpy(zero_copy_only=False)
        ends = pa.array(np.cumsum([0, *sizes], dtype=np.int64))
        mask = column.is_null() if column.null_count else None
        column = pa.LargeListArray.from_arrays(ends, column.flatten(), mask=mask)
    if not isinstance(column, pa.FixedShapeTensorArray) or kind == column.type:
        return column.cast(kind)
    flat, size = column.storage, column.storage.type.list_size
    # Not `flatten`, which leaves out what lies under nulls.
    rows = flat.values.slice(flat.offset * size, len(flat) * size)
    for length in reversed(column.type.shape[1:]):
        rows = pa.FixedSizeListArray.from_arrays(rows, length)
    mask = flat.is_null() if flat.null_count else None
    return pa.FixedSizeListArray.from_arrays(rows, column.type.shape[0], mask=mask).cast(kind)


def _sizes(column: pa.Array) -> list[int]:
    """The lengths that the lists of a column have."""
    if pa.types.is_fixed_size_list(column.type):
        return [column.type.list_size]
    lengths = column.value_lengths().to_numpy(zero_copy_only=False)
    return np.unique(lengths).tolist()  # type: ignore[no-any-return]


def _leaf(kind: pa.DataType) -> pa.DataType:
    """The type of the innermost lists' values; the type itself where it is no list."""
    while is_list(kind):
        kind = kind.value_type
    return kind


def _dtype(kind: pa.DataType) -> torch.dtype:
    """torch's name for a pyarrow number."""
    # pyarrow calls 16 bits halffloat, and all other numbers as torch does.
    dtype: torch.dtype = getattr(torch, {"halffloat": "half"}.get(str(kind), str(kind)))
    return dtype
