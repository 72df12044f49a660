"""A node's own folder, for what is large and belongs to jobs that run there: copies of data sets."""

import os
import tempfile
from pathlib import Path

SCRATCH = "RINGLEADER_SCRATCH"
"""Of a node's Ray processes: a folder on a disk of its own. RINGLEADER_HOME may be shared by all nodes."""


def copies_of(attempt: str) -> Path:
    """This machine's copies for one attempt: a folder for each Ray node on it."""
    base = os.environ.get(SCRATCH) or tempfile.gettempdir()
    return Path(base) / f"ringleader-{os.getuid()}" / attempt
