"""Paths and URIs of the files of a source."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from os import PathLike, fspath
from pathlib import Path

import pyarrow.fs as pafs

from ringleader.data.unreadable import FileUnreadable
from ringleader.data.uris import filesystem_of, hint_for, said
from ringleader.errors import RingleaderError

AnyPath = str | PathLike[str]
_RANGE = re.compile(r"\{(\d+)\.\.(\d+)\}")


def resolve(source: str) -> tuple[pafs.FileSystem, str]:
    """The file system of a path or URI, and the path there."""
    if "://" in source:
        return filesystem_of(source)
    return pafs.LocalFileSystem(), str(Path(source).absolute())


def paths_of(sources: AnyPath | Sequence[AnyPath]) -> list[str]:
    """The paths and URIs of one, or of a list of them, as texts."""
    return [fspath(each) for each in ([sources] if isinstance(sources, str | PathLike) else sources)]


@contextmanager
def reaching(source: str) -> Iterator[None]:
    """Name the source, and what is missing, where its file system refuses or does not answer.

    Raises:
        FileUnreadable: in place of an error of the file system that is no FileNotFoundError.
    """
    try:
        yield
    except (FileNotFoundError, RingleaderError):
        raise
    except Exception as error:  # of whatever kind: each file system has its own
        raise FileUnreadable(source, said(error), hint_for(error, source)) from error


def files_in(sources: AnyPath | Sequence[AnyPath], ending: str | tuple[str, ...], kind: str) -> list[str]:
    """The files of paths, folders and URIs, in the order given; those of a folder by name. `{000..012}` in a name
    stands for each number.

    Args:
        sources: one, or several.
        ending: of the names that count in a folder: ".parquet"; or several.
        kind: of the files, for errors: "Parquet".

    Raises:
        FileNotFoundError: there is none.
    """
    listed = paths_of(sources)
    found = [path for source in listed for each in _numbered(source) for path in _files_of(each, ending)]
    if not found:
        raise FileNotFoundError(f"no {kind} file found under {', '.join(listed) or 'an empty list'}")
    return found


def _numbered(source: str) -> list[str]:
    """Each name that one with ranges stands for."""
    found = _RANGE.search(source)
    if found is None:
        return [source]
    first, last = found.groups()
    numbers = [str(number).zfill(len(first)) for number in range(int(first), int(last) + 1)]
    return [name for n in numbers for name in _numbered(source[: found.start()] + n + source[found.end() :])]


def _files_of(source: str, ending: str | tuple[str, ...]) -> list[str]:
    """One file, or those of a folder by name."""
    filesystem, path = resolve(source)
    with reaching(source):
        if filesystem.get_file_info(path).type is not pafs.FileType.Directory:
            return [source]
        names = [i.base_name for i in filesystem.get_file_info(pafs.FileSelector(path))]
    # Below the name that was given: pyarrow lists paths without their scheme.
    return [f"{source.rstrip('/')}/{name}" for name in sorted(names) if name.endswith(ending)]
