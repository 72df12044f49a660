"""Paths and URIs of the files of a source."""

from collections.abc import Sequence
from os import PathLike, fspath
from pathlib import Path

import pyarrow.fs as pafs

AnyPath = str | PathLike[str]


def resolve(source: str) -> tuple[pafs.FileSystem, str]:
    """The file system of a path or URI, and the path there."""
    if "://" in source:
        filesystem, path = pafs.FileSystem.from_uri(source)
        return filesystem, path
    return pafs.LocalFileSystem(), str(Path(source).absolute())


def files_in(sources: AnyPath | Sequence[AnyPath], ending: str, kind: str) -> list[str]:
    """The files of paths, folders and URIs, in the order given; those of a folder by name.

    Args:
        sources: one, or several.
        ending: of the names that count in a folder: ".parquet".
        kind: of the files, for errors: "Parquet".

    Raises:
        FileNotFoundError: there is none.
    """
    listed = [sources] if isinstance(sources, str | PathLike) else list(sources)
    names = [fspath(source) for source in listed]
    found = [path for name in names for path in _files_of(name, ending)]
    if not found:
        raise FileNotFoundError(f"no {kind} file found under {', '.join(names) or 'an empty list'}")
    return found


def _files_of(source: str, ending: str) -> list[str]:
    """One file, or those of a folder by name."""
    filesystem, path = resolve(source)
    if filesystem.get_file_info(path).type is not pafs.FileType.Directory:
        return [source]
    names = [i.path for i in filesystem.get_file_info(pafs.FileSelector(path)) if i.path.endswith(ending)]
    # pyarrow lists paths without their scheme.
    prefix = source.split("://", 1)[0] + "://" if "://" in source else ""
    return [prefix + name for name in sorted(names)]
