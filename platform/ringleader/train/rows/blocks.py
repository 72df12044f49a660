"""The blocks of the files that a data set takes its rows from."""

from typing import Any

import numpy as np

from ringleader.data import FileDataset
from ringleader.data.inside import file_set
from ringleader.train.job_warnings import JobWarnings

ABOUT = "data_order"


def blocks_of(dataset: Any, warnings: JobWarnings) -> np.ndarray | None:
    """(blocks,) int64, the rows of each block; None for a data set without blocks, whose rows are shuffled one by one,
    with a warning."""
    files = file_set(dataset)
    if files is not None:
        return FileDataset.files(files).block_rows
    warnings.add(
        ABOUT,
        f"data.order is block, but {type(dataset).__name__} is not made of one data set over files: its rows are "
        "shuffled one by one.",
        "Keep one ringleader.data.ParquetDataset of the same length in an attribute, or use data.order: row.",
    )
    return None
