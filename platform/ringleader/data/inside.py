"""The Parquet sets inside a dataset."""

from collections.abc import Iterator
from typing import Any

from ringleader.data.copies import NodeCopies
from ringleader.data.parquet import ParquetDataset

MANY = 1000
"""The most entries of a list of data sets: one with more is taken for rows."""


def read_copies(dataset: Any, copies: NodeCopies) -> bool:
    """Have every Parquet set in `dataset` read this node's copies from now on; False where there is none.

    Raises:
        CopyFailed: with the source and the reason.
    """
    found = list(_parquet_sets(dataset))
    for part in found:
        part.read_copies(copies)
    return bool(found)


def _parquet_sets(dataset: Any) -> Iterator[ParquetDataset]:
    """The dataset itself, or what its attributes, and lists and dicts of them, hold at any depth."""
    seen: set[int] = set()
    left = [dataset]
    while left:
        part = left.pop()
        if id(part) in seen:
            continue
        seen.add(id(part))
        match part:
            case ParquetDataset():
                yield part
            case list() | tuple():
                left += part[:MANY]
            case dict():
                left += list(part.values())[:MANY]
            # Only what is indexed, as data sets are: any object's attributes lead to half the program.
            case object(__dict__=attributes, __getitem__=_):
                left += attributes.values()
