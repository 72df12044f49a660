"""The libraries that adapters stand on, which come with extras of their own."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version

from ringleader.errors import LibraryMissing


@contextmanager
def needed(library: str, extra: str) -> Iterator[None]:
    """Import a library in the block. Raises LibraryMissing: it is not installed, or has not all that is imported."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != library:
            raise  # it is there, and something that it needs is not
        raise LibraryMissing(library, extra, _installed(library)) from error
    except ImportError as error:
        if (error.name or "").partition(".")[0] != library:
            raise
        raise LibraryMissing(library, extra, _installed(library)) from error


def _installed(library: str) -> str:
    """The library's version; empty where it is not installed."""
    try:
        return version(library)
    except PackageNotFoundError:
        return ""
