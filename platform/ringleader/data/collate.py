"""Collating the rows of one slice into one batch."""

from collections.abc import Sequence
from typing import Any

from torch.utils.data import default_collate

from ringleader.errors import DatasetUnsupported


def collate(rows: Sequence[Any]) -> Any:
    """Stack rows (dicts, tuples, tensors, arrays, numbers, strings) along a new first dimension.

    Raises:
        DatasetUnsupported: when the rows differ in shape or hold something that cannot be stacked.
    """
    try:
        return default_collate(list(rows))
    # In this order: something that torch does not stack, tensors of other shapes, dicts with other keys.
    except (TypeError, RuntimeError, KeyError) as error:
        raise DatasetUnsupported(
            f"the rows of a slice cannot be stacked into a batch: {error}.",
            hint="Give every row the same keys and shapes, or pass your own collate to session.batches.",
        ) from error
