"""Places of data sets' files: paths and URIs of pyarrow's file systems."""

from pathlib import Path

import pyarrow.fs as pafs


def resolve(source: str) -> tuple[pafs.FileSystem, str]:
    """The file system of a path or URI, and the path there."""
    if "://" in source:
        filesystem, path = pafs.FileSystem.from_uri(source)
        return filesystem, path
    return pafs.LocalFileSystem(), str(Path(source).absolute())


def expand(source: str) -> list[str]:
    """One file, or the *.parquet of a folder by name."""
    filesystem, path = resolve(source)
    if filesystem.get_file_info(path).type is not pafs.FileType.Directory:
        return [source]
    names = [i.path for i in filesystem.get_file_info(pafs.FileSelector(path)) if i.path.endswith(".parquet")]
    # pyarrow lists paths without their scheme.
    prefix = source.split("://", 1)[0] + "://" if "://" in source else ""
    return [prefix + name for name in sorted(names)]
