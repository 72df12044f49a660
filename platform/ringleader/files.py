"""Small files that survive a power cut: whole or not there, and readable by their owner only; and private folders."""

import os
import secrets
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

SCRATCH = "RINGLEADER_SCRATCH"
"""The variable of a node's Ray processes with a folder on the node's own disk: all nodes may share RINGLEADER_HOME."""
INDEXES = "RINGLEADER_INDEXES"
"""The variable of a process that has a scratch folder of its own, and reads the indexes of files of its node in this
one, without a change to it."""


def write_once(path: Path, text: str) -> None:
    """Make the file, unless it exists: the first one stays as it is."""
    partial = _partial(path, text)
    try:
        with suppress(FileExistsError):
            os.link(partial, path)  # a rename would replace what is there
    finally:
        partial.unlink()
    _kept(path.parent)


def write_over(path: Path, text: str) -> None:
    """Make the file, replacing the one that is there."""
    _partial(path, text).replace(path)
    _kept(path.parent)


def not_private(folder: Path) -> bool:
    """Make the folder, unless it exists. Returns whether it is another account's, or open to others."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    # In a folder for temporary files anybody may have made it before, or a link in its place, which lstat tells.
    found = folder.lstat()
    return not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or bool(found.st_mode & 0o022)


def own_scratch() -> Path:
    """This account's folder on the node's own disk, for what is large. It may not be there yet."""
    return Path(os.environ.get(SCRATCH) or tempfile.gettempdir()) / f"ringleader-{os.getuid()}"


def own_indexes() -> Path:
    """The folder of the indexes of files that this account's processes on the node make for each other."""
    return own_scratch() / "indexes"


def _partial(path: Path, text: str) -> Path:
    """Write the content to disk before its name exists: else a power cut may leave a name without content."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    descriptor = os.open(partial, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    return partial


def _kept(folder: Path) -> None:
    """Write the names in a folder to disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
