"""Logs of services that run for months: bounded, the newest kept."""

import os
import shutil
from pathlib import Path

MOST_BYTES = 16 << 20
"""The bound on a log; the older part beside it takes as much again."""


def turn_over(log: Path, most_bytes: int = MOST_BYTES) -> bool:
    """Move the content of a log that has become larger to `NAME.log.1`, replacing that, and empty it; returns whether
    it did. Its writer goes on, having it open for appending; what it writes in that very moment may be lost."""
    try:
        if log.stat().st_size <= most_bytes:
            return False
        partial = log.with_name(f".{log.name}.1")
        shutil.copyfile(log, partial)
        partial.replace(log.with_name(f"{log.name}.1"))
        os.truncate(log, 0)
    except OSError:  # it is not there yet, or there is no room for two: it is looked at again
        return False
    return True
