"""Accounts of the machine that jobs run under; only a stack of root's can give them one."""

import ctypes
import os
import platform
import pwd
import stat
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ringleader.errors import RingleaderError

EVERYBODY = "*"
SETGROUPS = {"x86_64": 116, "aarch64": 159}
"""The system call, which changes the groups of one thread. The C library's function changes those of all."""
PASSED = 0o711
"""The mode of folders on the way to a job's own: others pass through them, and see no names."""
# No valid id: setfsuid and setfsgid then change nothing, and return the present one.
_SAME = ctypes.c_uint(-1).value


class RunAsImpossible(RingleaderError):
    """Jobs cannot run under an account of their own here."""

    code = "run_as_impossible"


@dataclass(frozen=True, slots=True)
class Account:
    """An account of the machine, by its numbers: those hold on every node."""

    name: str
    uid: int
    gid: int


@dataclass(frozen=True, slots=True)
class RunAs:
    """The account that the program of a job runs under, and the folder below which it may write."""

    account: Account
    folder: Path

    def have(self, path: Path) -> None:
        """Make a folder below `folder` that belongs to the account alone; those on the way are the stack's.

        Raises:
            RunAsImpossible: it is another account's, or this process may not make it.
        """
        owner_only(self.folder)
        try:
            for part in reversed(path.relative_to(self.folder).parents):
                (self.folder / part).mkdir(exist_ok=True)
                (self.folder / part).chmod(PASSED)  # whatever this process's mask is
            path.mkdir(mode=0o700, exist_ok=True)
            found = path.lstat()
            if stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid():
                os.chown(path, self.account.uid, self.account.gid, follow_symlinks=False)
            elif not stat.S_ISDIR(found.st_mode) or found.st_uid != self.account.uid:
                raise RunAsImpossible(f"{path} belongs to another account.", hint="Move it out of the way.")
        except OSError as error:
            raise RunAsImpossible(
                f"cannot give {path} to the account {self.account.name}: {error}.",
                hint="A node runs jobs under other accounts only if its Ray processes run as root.",
            ) from None


def owner_only(folder: Path) -> None:
    """Make the folder, through which all may pass and in which its owner alone may write; so with those above it.

    Raises:
        RunAsImpossible: others may write there, or cannot pass.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=PASSED)
    folder.chmod(PASSED)
    for place in (folder, *folder.parents):
        found = place.lstat()
        mine = stat.S_ISDIR(found.st_mode) and found.st_uid in (0, os.geteuid())
        # In a sticky folder, as /tmp, others cannot move or replace what is not theirs.
        others_write = found.st_mode & 0o022 and not found.st_mode & stat.S_ISVTX
        if not mine or others_write or not found.st_mode & 0o001:
            raise RunAsImpossible(
                f"{place} belongs to another account, or others can write to it, or cannot pass through it.",
                hint="RINGLEADER_RUN_AS_FOLDER must be below folders of root with mode 0755 or 0711, such as /var/lib.",
            )


def accounts_of(table: str) -> Mapping[str, Account]:
    """Parse `RINGLEADER_RUN_AS`: an account for everybody, or `USER=ACCOUNT` by commas, `*` for all others.

    Raises:
        RunAsImpossible: there is no such account, it is the owner's own, or this process may not change to any.
    """
    if not table.strip():
        return {}
    if sys.platform != "linux" or platform.machine() not in SETGROUPS or os.geteuid() != 0:
        raise RunAsImpossible(
            "RINGLEADER_RUN_AS needs a stack started by root on Linux: only root can change to other accounts.",
            hint="Start the stack as root, or give each group of users a separate stack.",
        )
    pairs = [part.strip() for part in table.split(",") if part.strip()]
    found = dict(_pair(part) for part in pairs)
    if len(found) < len(pairs):
        raise RunAsImpossible("RINGLEADER_RUN_AS lists a user twice.")
    return found


def _pair(part: str) -> tuple[str, Account]:
    user, _, name = part.rpartition("=")
    try:
        entry = pwd.getpwnam(name.strip())
    except KeyError:
        raise RunAsImpossible(
            f"RINGLEADER_RUN_AS names {name.strip()!r}, which is not an account of this machine.",
            hint=f"Create it: useradd --system {name.strip()}",
        ) from None
    if entry.pw_uid in (0, os.geteuid()) or entry.pw_gid == 0:
        raise RunAsImpossible(
            f"RINGLEADER_RUN_AS names {entry.pw_name}, which has the rights of the stack's owner.",
            hint="Name an account that has no other rights.",
        )
    return user.strip() or EVERYBODY, Account(entry.pw_name, entry.pw_uid, entry.pw_gid)


@contextmanager
def files_as(account: Account | None) -> Iterator[None]:
    """Have the calling thread open, make and remove files with that account's rights alone: a link leads it to nothing
    that the account could not reach itself. None: with this process's own."""
    if account is None:
        yield
        return
    libc = ctypes.CDLL(None, use_errno=True)
    groups, user, group = os.getgroups(), os.geteuid(), os.getegid()
    try:
        _set_groups(libc, [account.gid])
        libc.setfsgid(account.gid)
        libc.setfsuid(account.uid)
        # They return what was there before, and say nothing of a failure.
        if (libc.setfsgid(_SAME), libc.setfsuid(_SAME)) != (account.gid, account.uid):
            raise RunAsImpossible(f"this process cannot access files as {account.name}.")
        yield
    finally:
        libc.setfsuid(user)
        libc.setfsgid(group)
        _set_groups(libc, groups)


def _set_groups(libc: ctypes.CDLL, groups: list[int]) -> None:
    numbers = (ctypes.c_uint * len(groups))(*groups)
    if libc.syscall(SETGROUPS[platform.machine()], len(groups), numbers):
        error = ctypes.get_errno()
        raise RunAsImpossible(f"this process cannot change its groups: {os.strerror(error)}.")
