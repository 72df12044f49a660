"""The libraries that adapters stand on, which come with extras of their own."""

from collections.abc import Iterator
from contextlib import contextmanager

from ringleader.errors import LibraryMissing


@contextmanager
def needed(library: str, extra: str) -> Iterator[None]:
    """Import a library in the block. Raises LibraryMissing: it is not installed."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != library:
            raise  # it is there, and something that it needs is not
        raise LibraryMissing(library, extra) from error
