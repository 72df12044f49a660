"""Copies that jobs leave on a machine for the next ones, by what they are copies of."""

import os
import shutil
from contextlib import suppress
from pathlib import Path

SHARE = 0.1
"""The most of the disk that copies have which no job uses."""


class KeptCopies:
    """Names of copies beside those in the folders of jobs: hard links, so that a job that has one keeps it whatever
    becomes of this folder.

    Args:
        folder: on the same disk as the folders of jobs, and private to the account.
        share: of the disk, for copies that no job uses.
    """

    def __init__(self, folder: Path, share: float = SHARE) -> None:
        self._folder = folder
        self._share = share

    def take(self, name: str, copy: Path) -> bool:
        """Have a copy under the path `copy` too; False where none of this name is kept."""
        try:
            os.link(self._folder / name, copy)
        except FileNotFoundError:
            return False
        return True

    def keep(self, name: str, copy: Path) -> None:
        """Keep a copy that a job has made. Where the file system has no links, nothing is kept."""
        with suppress(OSError):
            self._folder.mkdir(mode=0o700, exist_ok=True)
            os.link(copy, self._folder / name)
        self.make_room()

    def drop(self, name: str) -> None:
        """Keep a copy no longer."""
        (self._folder / name).unlink(missing_ok=True)

    def make_room(self, bytes_needed: int = 0) -> None:
        """Remove what no job uses, the longest unused first, until the rest is no more than its share of the disk, and
        so much is free."""
        unused = []
        for kept in self._folder.glob("*"):
            with suppress(OSError):  # another job's worker removes some too
                found = kept.stat()
                # The time of a change of its links: when a job last took it, or left it.
                # A second name is that in the folder of a job, which needs the bytes whether this one goes or not.
                unused += [(found.st_ctime_ns, found.st_size, kept)] if found.st_nlink == 1 else []
        taken_bytes = sum(size for _, size, _ in unused)
        for _, size, kept in sorted(unused):
            # Asked each time: other processes write to this disk, and remove from it.
            disk = shutil.disk_usage(self._folder)
            if taken_bytes <= self._share * disk.total and disk.free >= bytes_needed:
                return
            kept.unlink(missing_ok=True)
            taken_bytes -= size
