"""The files that a job under another account has left, copied to the stack's own."""

import os
import shutil
import stat

from ringleader.accounts import files_as
from ringleader.errors import RingleaderError
from ringleader.runtime.messages import AttemptLaunch

SPARE_BYTES = 1 << 30
"""The space that is left free: the database lies on the same disk."""
CHUNK_BYTES = 1 << 20


class NotFetched(RingleaderError):
    """A file that the job has left cannot be copied."""


def fetch(launch: AttemptLaunch, name: str) -> None:
    """Copy that artifact into the home, if the job has left it.

    Raises:
        NotFetched: it is no file, or there is no room for it.
    """
    if launch.run_as is None:
        return
    source, target = launch.left / name, launch.artifacts / name
    try:
        # With the job's rights: a link on the way leads to nothing that the job's program could not have read.
        with files_as(launch.run_as.account):
            # Without blocking: a pipe in its place would hold this process until somebody writes.
            descriptor = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    except OSError as error:
        raise NotFetched(f"cannot read {source}: {error}.") from None
    with os.fdopen(descriptor, "rb") as file:
        # Of what is open: the path may lead to another file by now.
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise NotFetched(
                f"{source} is not a plain file.",
                hint="The training function has replaced it by something else.",
            )
        target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        if shutil.disk_usage(target.parent).free < found.st_size + SPARE_BYTES:
            raise NotFetched(f"{target.parent} has no room for the {found.st_size} bytes of {source}.")
        partial = target.with_suffix(".partial")
        with partial.open("wb") as copy:
            left = found.st_size  # it may grow meanwhile
            while left and (chunk := file.read(min(left, CHUNK_BYTES))):
                copy.write(chunk)
                left -= len(chunk)
        partial.replace(target)
