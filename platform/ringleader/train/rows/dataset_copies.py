"""Data sets that are copied onto every node, where the job's `data.distribution` is `replicated`."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from ringleader.errors import DatasetUnsupported
from ringleader.spec import JobSpec

Near = Callable[[Any], bool]
"""A function that has a dataset read this node's copies of its files; False where it reads none."""


def near(spec: JobSpec, folder: Path | None) -> Near | None:
    """The function that brings data sets onto this node, into `folder`; None where they are read from their source."""
    if folder is None or spec.data.distribution == "sharded":
        return None
    from ringleader.data.copies import NodeCopies  # only here: what reads Parquet takes its time
    from ringleader.data.inside import read_copies

    return partial(read_copies, copies=NodeCopies(folder))


def bring(dataset: Any, to: Near | None) -> None:
    """Have the dataset that is trained on read this node's copies of its files.

    Raises:
        DatasetUnsupported: (a TypeError) where it reads no file.
        CopyFailed: a file cannot be copied.
    """
    if to is not None and not to(dataset):
        raise DatasetUnsupported(
            f"data.distribution is replicated, but {type(dataset).__name__} has no files to copy.",
            hint="Keep a ringleader.data.ParquetDataset in an attribute of the dataset, or use data.distribution: "
            "sharded.",
        )
