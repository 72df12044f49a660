"""A file system that notes who opens which file: `counted:///path`, local files behind it."""

import os
from pathlib import Path
from typing import Any

import fsspec
from fsspec.implementations.local import LocalFileSystem

SCHEME = "counted://"


class CountedFiles(LocalFileSystem):  # type: ignore[misc] # fsspec has no types
    """Local files. Beside each lies one with the number of the process for each time that it was opened."""

    protocol = ("counted",)
    cachable = False

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if isinstance(path, list):
            return [cls._strip_protocol(each) for each in path]
        return super()._strip_protocol(str(path).removeprefix(SCHEME))

    def _open(self, path: str, mode: str = "rb", **named: Any) -> Any:
        with opened_file(path).open("a") as noted:
            noted.write(f"{os.getpid()}\n")
        return super()._open(path, mode, **named)


def count_files() -> None:
    """Have this process know the scheme."""
    fsspec.register_implementation("counted", CountedFiles, clobber=True)


def opened_file(path: str | Path) -> Path:
    return Path(f"{path}.opened")


def openers(path: str | Path) -> list[int]:
    """The processes that opened a file, one for each time."""
    noted = opened_file(path)
    return [int(line) for line in noted.read_text().split()] if noted.exists() else []


def settle(folder: Path, age_s: float = 3600) -> None:
    """Have all files there been written long ago."""
    for file in folder.iterdir():
        now = file.stat().st_mtime
        os.utime(file, (now - age_s, now - age_s))
