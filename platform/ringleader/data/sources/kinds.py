"""The kinds of files that are read, and which of them a path names."""

from collections.abc import Callable

import pyarrow.fs as pafs

from ringleader.data.sources import arrow, jsonl, mds, parquet, webdataset
from ringleader.data.sources.files import inside, reading, size_of
from ringleader.data.sources.paths import resolve
from ringleader.data.sources.source import Source
from ringleader.data.unreadable import FileUnreadable

KINDS: dict[str, tuple[tuple[str, ...], Callable[[str], Source]]] = {
    "parquet": ((".parquet",), parquet.ParquetSource),
    "arrow": (arrow.ENDINGS, arrow.ArrowSource),
    "jsonl": (jsonl.ENDINGS, jsonl.JsonlSource),
    "webdataset": ((".tar",), webdataset.WebDatasetSource),
    "mds": ((".mds",), mds.MdsSource),
}
"""By kind, the endings of its files' names, and the source that reads it."""
MARKS = {mds.INDEX: "mds", "state.json": "arrow", "dataset_dict.json": "arrow"}
"""By the name of a file that describes its folder, the folder's kind."""


def open_source(uri: str, kind: str = "") -> tuple[str, Source]:
    """The kind of the files at a path or URI, and the source that reads them; of the given kind where one is given.

    Raises:
        FileUnreadable: no kind, or several, and whatever the source raises.
    """
    kind = kind or _kind_of(uri)
    return kind, KINDS[kind][1](uri)


def _kind_of(uri: str) -> str:
    with reading(uri):
        filesystem, path = resolve(uri)
        there = filesystem.get_file_info(path).type
    # A folder may be called data.parquet, as Spark calls it, and is judged by what is in it.
    if there is not pafs.FileType.Directory and (named := _kinds_in([uri])):
        return named[0]
    for mark, kind in MARKS.items():
        if size_of(inside(uri, mark)) is not None:
            return kind
    with reading(uri):
        if there is pafs.FileType.NotFound:
            raise FileNotFoundError
        # A URI may have more behind the path.
        names = [path] if there is pafs.FileType.File else _names_in(filesystem, path)
    found = _kinds_in(names)
    if len(found) == 1:
        return found[0]
    endings = ", ".join(ending for endings, _ in KINDS.values() for ending in endings)
    why = (
        f"it has files of several kinds ({', '.join(found)})" if found else f"nothing in it ends in {endings}"
    )
    raise FileUnreadable(uri, why, f"Say the kind: {', '.join(KINDS)}.")


def _kinds_in(names: list[str]) -> list[str]:
    return [kind for kind, (endings, _) in KINDS.items() if any(name.endswith(endings) for name in names)]


def _names_in(filesystem: pafs.FileSystem, folder: str) -> list[str]:
    return [info.base_name for info in filesystem.get_file_info(pafs.FileSelector(folder))]
