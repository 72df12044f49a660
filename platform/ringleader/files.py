"""Small files that outlive a power cut: whole or not there, and readable by their owner only."""

import os
import secrets
from contextlib import suppress
from pathlib import Path


def write_once(path: Path, text: str) -> None:
    """Make the file. Who was first holds: theirs stays as it is."""
    partial = _partial(path, text)
    try:
        with suppress(FileExistsError):
            os.link(partial, path)
    finally:
        partial.unlink()
    _kept(path.parent)


def write_over(path: Path, text: str) -> None:
    """Make the file, in place of what is there."""
    _partial(path, text).replace(path)
    _kept(path.parent)


def _partial(path: Path, text: str) -> Path:
    """The content on disk before the name is: a name without its content is what a power cut leaves else."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    descriptor = os.open(partial, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    return partial


def _kept(folder: Path) -> None:
    """Have the disk keep the names in a folder."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
