"""The data sets over files inside a dataset."""

from collections.abc import Iterator
from typing import Any

from ringleader.data.copies import NodeCopies
from ringleader.data.file_dataset import FileDataset
from ringleader.data.parquet import ParquetDataset

MANY = 1000
"""The most entries of a list of data sets: one with more is taken for rows."""


def read_copies(dataset: Any, copies: NodeCopies) -> bool:
    """Have every Parquet set in `dataset` read this node's copies from now on; False where there is none.

    Raises:
        CopyFailed: with the source and the reason.
    """
    found = [part for part in _file_sets(dataset) if isinstance(part, ParquetDataset)]
    for part in found:
        part.read_copies(copies)
    return bool(found)


def file_set(dataset: Any) -> FileDataset | None:
    """The data set over files that gives a dataset its rows: itself, or the only one inside that has as many."""
    found = list(_file_sets(dataset))
    return found[0] if len(found) == 1 and len(found[0]) == len(dataset) else None


def digest_of(dataset: Any) -> str:
    """The digest of all files inside a dataset, in hex; empty where it reads none."""
    return "".join(FileDataset.files(part).digest for part in _file_sets(dataset))


def _file_sets(dataset: Any) -> Iterator[FileDataset]:
    """The dataset itself, or what its attributes, and lists and dicts of them, hold at any depth."""
    seen: set[int] = set()
    left = [dataset]
    while left:
        part = left.pop()
        if id(part) in seen:
            continue
        seen.add(id(part))
        match part:
            case FileDataset():
                yield part
            case list() | tuple():
                left += part[:MANY]
            case dict():
                left += list(part.values())[:MANY]
            # Only what is indexed, as data sets are: any object's attributes lead to half the program.
            case object(__dict__=attributes, __getitem__=_):
                left += attributes.values()
