"""Columns of Arrow as what a batch is made of: row by row, or as one tensor for all rows."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import torch

_PLAIN_LEAVES = (pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.float32(), pa.float64())
_TEXTS = (pa.string(), pa.large_string(), pa.binary(), pa.large_binary())
_WIDE = (pa.uint16(), pa.uint32(), pa.bool_())
"""Types whose single values a batch has as int64 or bool."""


def values_of(column: pa.Array) -> list[Any]:
    """The values of a column without nulls, one a row: floats and lists as tensors of the column's own type; everything
    else as it is."""
    values: list[Any] = column.to_pylist()
    kind = column.type
    if pa.types.is_floating(kind):
        return list(torch.tensor(values, dtype=_dtype(kind)).unbind())
    leaf = _leaf(kind)
    if leaf is not kind and (pa.types.is_floating(leaf) or pa.types.is_integer(leaf)):
        return [torch.tensor(value, dtype=_dtype(leaf)) for value in values]
    return values


def stacks(kind: pa.DataType) -> bool:
    """Whether values of this type can be taken by `stacked`."""
    leaf = _leaf(kind)
    return leaf in _PLAIN_LEAVES or (leaf is kind and (leaf in _TEXTS or leaf in _WIDE))


def stacked(column: pa.Array, order: np.ndarray) -> Any:
    """What torch's `default_collate` makes of `values_of` in this order, without a Python object a row; None where rows
    differ in shape, or one is null.

    Args:
        column: (n,) of a type that `stacks`.
        order: (n,) the places in the column.
    """
    if column.null_count:
        return None
    if column.type in _TEXTS:
        values = column.to_pylist()
        return [values[place] for place in order.tolist()]
    shape = [len(column)]
    single = column.type
    while _is_list(column.type):
        sizes = set(_sizes(column))
        # Of a list, what lies between the rows is no part of it: `flatten` leaves it out.
        column = column.flatten()
        if len(sizes) != 1 or column.null_count:
            return None
        shape += sizes
    numbers = column.to_numpy(zero_copy_only=False).reshape(shape)[order]
    if column.type is single and pa.types.is_integer(single):
        numbers = numbers.astype(np.int64)
    return torch.from_numpy(numbers)


def _sizes(column: pa.Array) -> Iterator[int]:
    """The lengths of the lists of a column."""
    if pa.types.is_fixed_size_list(column.type):
        yield column.type.list_size
    else:
        lengths = column.value_lengths().to_numpy(zero_copy_only=False)
        yield from np.unique(lengths).tolist()


def _is_list(kind: pa.DataType) -> bool:
    return any(
        is_one(kind) for is_one in (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    )


def _leaf(kind: pa.DataType) -> pa.DataType:
    """The type of the innermost lists' values; the type itself where it is no list."""
    while _is_list(kind):
        kind = kind.value_type
    return kind


def _dtype(kind: pa.DataType) -> torch.dtype:
    """torch's name for a pyarrow number."""
    # pyarrow calls 16 bits halffloat, and all other numbers as torch does.
    dtype: torch.dtype = getattr(torch, {"halffloat": "half"}.get(str(kind), str(kind)))
    return dtype
