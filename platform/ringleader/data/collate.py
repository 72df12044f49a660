"""Collating the rows of one slice into one batch."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.utils.data import default_collate

from ringleader.errors import DatasetUnsupported

# Something that torch does not stack, tensors of other shapes, dicts with other keys, numbers beyond 64 bits.
_REFUSED = (TypeError, RuntimeError, KeyError, ValueError)


def collate(rows: Sequence[Any]) -> Any:
    """Stack rows (dicts, tuples, tensors, arrays, numbers, strings) along a new first dimension.

    Raises:
        DatasetUnsupported: when the rows differ in shape or hold something that cannot be stacked.
    """
    try:
        return default_collate(list(rows))
    except _REFUSED as error:
        raise DatasetUnsupported(
            f"the rows of a slice cannot be stacked into a batch: {_place(rows, error)}.",
            hint="Give every row the same keys and shapes, leave the column out (columns=[…] where rows are read from "
            "files), or pass your own collate to session.batches.",
        ) from error


def _place(rows: Sequence[Any], error: Exception) -> str:
    """What cannot be stacked, under its key where rows are dicts."""
    names = list(rows[0]) if rows and all(isinstance(row, Mapping) for row in rows) else []
    for name in names:
        if any(name not in row for row in rows):
            return f"{name!r} is not in all of them"
        values = [row[name] for row in rows]
        try:
            default_collate(values)
        except _REFUSED as own:
            shapes = dict.fromkeys(tuple(value.shape) for value in values if isinstance(value, Tensor))
            unequal = f"has the shapes {' and '.join(str(shape) for shape in [*shapes][:2])}"
            return f"{name!r} {unequal}" if len(shapes) > 1 else f"{name!r}: {str(own).rstrip('.')}"
    return str(error).rstrip(".")
