"""RINGLEADER_HOME is its owner's alone: no other account may put files into it, or another folder in its place."""

import grp
import os
import pwd
import stat
import struct
import tempfile
from contextlib import suppress
from pathlib import Path

from ringleader.errors import RingleaderError

ACCESS_LIST = "system.posix_acl_access"
NAMED_USER, OWNING_GROUP, NAMED_GROUP = 0x02, 0x04, 0x08
WRITE = 0o2
NUMBERS = Path("/proc/self/uid_map")
"""The accounts of this process's user namespace, on Linux."""
ALL = ["0", "0", str((1 << 32) - 1)]
"""What is there of a process that is in none but the machine's."""
OVERFLOW = Path("/proc/sys/kernel/overflowuid")
"""The number that stands in a user namespace for accounts that have none there."""


class HomeExposed(RingleaderError):
    """Other accounts can put their files in place of those of RINGLEADER_HOME."""

    code = "home_exposed"


class HomeUnusable(RingleaderError):
    """RINGLEADER_HOME is no folder in which this account may write."""

    code = "home_unusable"


def make_home(home: Path) -> None:
    """Make RINGLEADER_HOME, unless it exists.

    Of a file server that gives what this process makes to another account ("squashes" it), that account's folders and
    files are as good as one's own; `home_warning` says so.

    Raises:
        HomeUnusable: it cannot be made, or this process's account may not read and write it.
        HomeExposed: an account besides root's and this process's can write to it, can move it away, or has left files
            in it.
    """
    try:
        home.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise _unusable(f"{home} cannot be made ({error.strerror}).") from None
    if not os.access(home, os.R_OK | os.W_OK | os.X_OK):
        whose = _user(home.stat().st_uid)
        raise _unusable(f"{home} belongs to {whose}, and this process may not read and write it.")
    stand_in = _stand_in(home)
    for place in _way(home):
        if not _trusted(owner := place.lstat().st_uid) and (owner, place.lstat().st_dev) != stand_in:
            # Of a folder above nothing is proposed: it may be that account's own home.
            cure = f"chown -h {os.geteuid()} {place}" if place.is_symlink() or place.samefile(home) else ""
            raise _exposed(place, home, _user(owner), cure)
        found = place.stat()
        # In a sticky folder, as /tmp, others cannot move what is not theirs; into the home itself they could put files.
        if not place.is_symlink() and not (found.st_mode & stat.S_ISVTX and not place.samefile(home)):
            _refuse_writers(place, found, home)
    with os.scandir(home) as entries:
        for entry in entries:
            with suppress(FileNotFoundError):  # another process writes there, too
                found = entry.stat(follow_symlinks=False)
                if (found.st_uid, found.st_dev) != stand_in:
                    _refuse_left(Path(entry.path), found.st_uid)


def home_warning(home: Path) -> str:
    """What is to be said of a home that a group may write to of which this machine knows no other account, or that is
    an unknown account's, as a volume of a container, or where another account owns what is made; else nothing."""
    found = home.stat()
    if (stand_in := _stand_in(home)) is not None:
        return (
            f"the server of {home} makes {_user(stand_in[0])} the owner of what is made there (it squashes accounts): "
            "what runs as that account, on any machine that mounts the folder, controls this stack."
        )
    owners = {place.lstat().st_uid: place for place in _way(home)}
    unknown = [uid for uid in owners if uid not in (0, os.geteuid()) and not _is_known(uid)]
    if found.st_mode & stat.S_IWGRP and found.st_gid not in (0, os.getegid()):
        who = f"the group {_group(found.st_gid)} may write to {home}: what runs with that group"
    elif unknown:
        who = f"{_user(unknown[0])}, unknown here, owns {owners[unknown[0]]}: what runs as that account"
    else:
        return ""
    return f"{who}, wherever the folder is mounted, controls this stack."


def _way(home: Path) -> list[Path]:
    """The folders and links that decide where the home lies, itself first."""
    way: list[Path] = []
    ends = [home.absolute()]
    while ends:
        end = ends.pop()
        for place in (end, *end.parents):
            if place not in way:
                way.append(place)
                if place.is_symlink():
                    ends.append(place.parent / place.readlink())
    return way


def _stand_in(home: Path) -> tuple[int, int] | None:
    """The account that a file server puts in this process's place, and the device where it does; None: there is none.

    It shows in a new file, which belongs to whoever made it anywhere else, and in the folder, which could be another
    account's trap if it were not that account's as well.
    """
    folder = home.stat()
    if _trusted(folder.st_uid):
        return None
    try:
        with tempfile.TemporaryFile(dir=home) as made:
            found = os.fstat(made.fileno())
    except OSError as error:
        raise _unusable(f"no file can be made in {home} ({error.strerror}).") from None
    alike = (found.st_uid, found.st_dev) == (folder.st_uid, folder.st_dev)
    return (found.st_uid, found.st_dev) if alike else None


def _trusted(uid: int) -> bool:
    """Whether an account is root's, this process's, or none of this machine, or of its user namespace."""
    # The number of a host's account, in a container that root has started, is unknown there.
    if uid in (0, os.geteuid()) or not _is_known(uid):
        return True
    # In a container that root did not start, one number stands for every account outside, the host's root among them.
    return _is_namespace() and uid == int(OVERFLOW.read_text(encoding="ascii"))


def _is_namespace() -> bool:
    """Whether this process sees the accounts of a user namespace, and not the machine's."""
    return NUMBERS.exists() and NUMBERS.read_text(encoding="ascii").split() != ALL


def _is_known(uid: int) -> bool:
    try:
        pwd.getpwuid(uid)
    except KeyError:
        return False
    return True


def _refuse_left(entry: Path, owner: int) -> None:
    """Raises HomeExposed for what another account owns in the home: who could write there before may have left it."""
    if not _trusted(owner):
        raise HomeExposed(
            f"{entry} belongs to {_user(owner)}, who may have put it into this home as a token or a database.",
            hint=f"Run rm -r {entry}; or, if you know it, chown -hR {os.geteuid()} {entry}.",
        )


def _refuse_writers(place: Path, found: os.stat_result, home: Path) -> None:
    """Raises HomeExposed if other accounts may write to a folder on the way to the home."""
    if found.st_mode & stat.S_IWOTH:
        raise _exposed(place, home, "every account", f"chmod go-w {place}")
    if not found.st_mode & stat.S_IWGRP:  # where there is an access list, its mask
        return
    users, groups = _listed(place, found)
    for uid in users:
        if not _trusted(uid):
            raise _exposed(place, home, _user(uid), f"setfacl -x u:{uid} {place}")
    for gid in groups:
        if others := _others(gid):
            named = ", ".join(others[:3]) + (", …" if len(others) > 3 else "")
            cure = f"chmod g-w {place}" if gid == found.st_gid else f"setfacl -x g:{gid} {place}"
            raise _exposed(place, home, f"the group {_group(gid)} ({named})", cure)


def _listed(place: Path, found: os.stat_result) -> tuple[list[int], list[int]]:
    """The users, besides the owner, and the groups that may write to a folder, by its access list where it has one."""
    try:
        packed = os.getxattr(place, ACCESS_LIST)
    except (OSError, AttributeError):  # none, or the file system, or the platform, knows none
        return [], [found.st_gid]
    writing = [
        (tag, number) for tag, rights, number in struct.iter_unpack("<HHI", packed[4:]) if rights & WRITE
    ]
    groups = [number for tag, number in writing if tag == NAMED_GROUP]
    groups += [found.st_gid for tag, _ in writing if tag == OWNING_GROUP]
    return [number for tag, number in writing if tag == NAMED_USER], groups


def _others(gid: int) -> list[str]:
    """The accounts in a group besides root's and this process's. Group 0 is root's, and all in it the system's."""
    if gid == 0:
        return []
    uids = {entry.pw_name: entry.pw_uid for entry in pwd.getpwall() if entry.pw_gid == gid}
    for name in _members(gid):
        try:
            uids[name] = pwd.getpwnam(name).pw_uid
        except KeyError:  # named there, but no account
            continue
    return sorted(name for name, uid in uids.items() if uid not in (0, os.geteuid()))


def _members(gid: int) -> list[str]:
    try:
        return grp.getgrgid(gid).gr_mem
    except KeyError:  # as that of a volume in a container
        return []


def _unusable(message: str) -> HomeUnusable:
    return HomeUnusable(message, hint="Set RINGLEADER_HOME to a folder to which you can write.")


def _exposed(place: Path, home: Path, who: str, cure: str) -> HomeExposed:
    return HomeExposed(
        f"{place} can be changed by {who}, who could replace the token and the database in {home}.",
        hint=(f"Run {cure}; or set" if cure else "Set")
        + " RINGLEADER_HOME to a folder to which only you can write.",
    )


def _user(uid: int) -> str:
    try:
        return f"the account {pwd.getpwuid(uid).pw_name}"
    except KeyError:
        return f"the account {uid}"


def _group(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)
